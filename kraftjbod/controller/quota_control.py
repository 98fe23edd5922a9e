"""PURE. ``QuotaControlManager``: change quotas of clients (KIP-546).

The checks and error codes are those of Kafka's ``ClientQuotaControlManager``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.client_quota import (
    QuotaEntity,
    entity_of,
    why_invalid_entity,
    why_invalid_quota,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.metadata.records import ClientQuotaRecord
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_quota_messages import (
    AlterClientQuotasRequestRpc,
    AlterClientQuotasResponseRpc,
    QuotaChange,
    QuotaOutcome,
)

#: Entities with quotas, which each node keeps in memory.
MAX_ENTITIES: Final = 100_000
_LEAST_LEVEL: Final = MetadataVersion.IV_4_4_IV2_J1


class QuotaControlManager:
    """Decides changes of client quotas. Returns records; the replay of the records changes the
    metadata.
    """

    def __init__(self, *, state: MetadataState) -> None:
        self._state = state

    def alter(
        self, request: AlterClientQuotasRequestRpc
    ) -> ControllerResult[AlterClientQuotasResponseRpc]:
        """Return the records of the valid changes; none with ``validate_only``. Entities are
        independent of each other. Invalid changes have an error in the response.
        """
        counts = Counter(entity_of(dict(change.entity)) for change in request.changes)
        records: list[ClientQuotaRecord] = []
        results: list[QuotaOutcome] = []
        new = 0
        for change in request.changes:
            try:
                entity = self._entity(change, counts)
                changed = list(_changes(change, entity, self._state))
                if changed and entity not in self._state.client_quotas:
                    if len(self._state.client_quotas) + new >= MAX_ENTITIES:
                        raise _refused(
                            f"{MAX_ENTITIES} entities have quotas already: delete some.",
                            ErrorCode.POLICY_VIOLATION,
                        )
                    new += 1
            except OperatingError as e:
                results.append(QuotaOutcome(error_code=e.code, error_message=e.message))
            else:
                records += changed
                results.append(QuotaOutcome())
        response = AlterClientQuotasResponseRpc(results=tuple(results))
        if request.validate_only:
            records = []
        return ControllerResult(records=tuple(records), response=response, is_atomic=False)

    def _entity(self, change: QuotaChange, counts: Counter[QuotaEntity]) -> QuotaEntity:
        """Return the entity of a valid change.

        :raises OperatingError: UNSUPPORTED_VERSION or INVALID_REQUEST.
        """
        self._state.metadata_version.require_for(_LEAST_LEVEL, "Quotas of clients")
        why = why_invalid_entity(change.entity)
        entity = entity_of(dict(change.entity))
        if why is None and counts[entity] > 1:
            why = "An entity cannot be altered twice in the same request"
        if why is not None:
            raise _refused(why, ErrorCode.INVALID_REQUEST)
        return entity


def _changes(
    change: QuotaChange, entity: QuotaEntity, state: MetadataState
) -> Iterator[ClientQuotaRecord]:
    """Yield a record for each quota that changes.

    :raises OperatingError: INVALID_REQUEST: a key is repeated or unknown, or a value is invalid.
    """
    present = state.client_quotas.get(entity, {})
    types = frozenset(kind for kind, _ in entity)
    keys = Counter(op.key for op in change.ops)
    for op in change.ops:
        why = why_invalid_quota(types, op.key, 1.0 if op.value is None else op.value)
        if keys[op.key] > 1:
            why = f"Duplicate quota key {op.key}"
        if why is not None:
            raise _refused(why, ErrorCode.INVALID_REQUEST)
        if op.value != present.get(op.key):
            yield ClientQuotaRecord(entity=entity, key=op.key, value=op.value)


def _refused(message: str, code: ErrorCode) -> OperatingError:
    return OperatingError(message, code=code)
