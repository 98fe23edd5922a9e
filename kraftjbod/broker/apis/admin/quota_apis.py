"""LOOP. AlterClientQuotas and DescribeClientQuotas (KIP-546).

The controller decides about changes. Descriptions come from this broker's metadata. A change takes
effect on each broker when the broker has replayed the controller's records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from kraftjbod.broker.apis.admin.forwarding import forward
from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.client_quota import CLIENT_ID, IP, USER, QuotaEntity, entity_of
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.protocol import rpc_quota_messages as rpc
from kraftjbod.protocol.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_EXACT: Final = 0
_DEFAULT: Final = 1
_ANY: Final = 2
#: More operations on one entity contain a repeated or unknown key, and so do the first ones.
_MAX_OPS: Final = 100
_TWICE: Final = "An entity cannot be altered twice in the same request"
Altered = AlterClientQuotasResponse.EntryData
Described = DescribeClientQuotasResponse.EntryData


class _Wanted(NamedTuple):
    """``names``: the wanted name by type; None for the default, ``_ANY`` for each name."""

    names: Mapping[str, str | int | None]
    is_strict: bool

    def includes(self, entity: QuotaEntity) -> bool:
        names = dict(entity)
        if self.is_strict and names.keys() != self.names.keys():
            return False
        return all(
            kind in names and (wanted == _ANY or names[kind] == wanted)
            for kind, wanted in self.names.items()
        )


class QuotaApis:
    def __init__(
        self, *, cache: MetadataCache, channel: ControllerChannel, timeout_ms: int
    ) -> None:
        """:param timeout_ms: time limit of a change, because Kafka's request has none."""
        self._cache = cache
        self._channel = channel
        self._timeout_ms = timeout_ms

    async def alter_client_quotas(
        self, request: AlterClientQuotasRequest, _context: RequestContext
    ) -> AlterClientQuotasResponse:
        changes = [
            rpc.QuotaChange(
                entity=tuple((one.entity_type, one.entity_name) for one in entry.entity),
                ops=tuple(
                    rpc.QuotaOp(key=op.key, value=None if op.remove else _finite(op.value))
                    for op in entry.ops[:_MAX_OPS]
                ),
            )
            async for entry in in_slices(list(request.entries))
        ]
        # The parts of a request are sent one by one, so the controller cannot see repetitions.
        counts = Counter(entity_of(dict(change.entity)) for change in changes)
        once = [change for change in changes if counts[entity_of(dict(change.entity))] == 1]
        outcomes = await forward(
            self._channel,
            once,
            ask=lambda part: rpc.AlterClientQuotasRequestRpc(
                changes=part, validate_only=request.validate_only
            ),
            outcomes=lambda response: response.results,
            refuse=lambda _, e: rpc.QuotaOutcome(error_code=e.code, error_message=e.message),
            timeout_ms=self._timeout_ms,
        )
        in_order = iter(outcomes)
        repeated = rpc.QuotaOutcome(error_code=ErrorCode.INVALID_REQUEST, error_message=_TWICE)
        entries = []
        for change in changes:
            is_once = counts[entity_of(dict(change.entity))] == 1
            outcome = next(in_order) if is_once else repeated
            entries.append(
                Altered(
                    error_code=outcome.error_code,
                    error_message=outcome.error_message,
                    entity=[
                        AlterClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in change.entity
                    ],
                )
            )
        return AlterClientQuotasResponse(entries=entries)

    async def describe_client_quotas(
        self, request: DescribeClientQuotasRequest, _context: RequestContext
    ) -> DescribeClientQuotasResponse:
        try:
            wanted = _wanted(request)
        except OperatingError as e:
            return DescribeClientQuotasResponse(
                error_code=e.code, error_message=e.message, entries=None
            )
        entries = [
            Described(
                entity=[
                    DescribeClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity
                ],
                values=[
                    DescribeClientQuotasResponse.ValueData(key=key, value=value)
                    for key, value in sorted(values.items())
                ],
            )
            async for entity, values in in_slices(list(self._cache.state.client_quotas.items()))
            if wanted.includes(entity)
        ]
        return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _finite(value: float) -> float:
    """Return ``value``, or -1, which the controller refuses, for infinity and NaN."""
    return value if math.isfinite(value) else -1.0


def _wanted(request: DescribeClientQuotasRequest) -> _Wanted:
    """Return the filter of a request.

    :raises OperatingError: INVALID_REQUEST, or UNSUPPORTED_VERSION for an unknown type.
    """
    names: dict[str, str | int | None] = {}
    for one in request.components:
        kind = one.entity_type
        if kind not in (USER, CLIENT_ID, IP):
            raise OperatingError(
                f"Custom entity type '{kind[:40]}' not supported",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        if kind in names:
            raise _invalid(f"Duplicate filter component entity type {kind}")
        if one.match_type == _EXACT and one.match is not None:
            names[kind] = one.match
        elif one.match_type in (_DEFAULT, _ANY) and one.match is None:
            names[kind] = None if one.match_type == _DEFAULT else _ANY
        else:
            raise _invalid(
                f"Match type {one.match_type} of {kind}: 0 needs a name, 1 and 2 have none"
            )
    if IP in names and len(names) > 1:
        raise _invalid("Invalid entity filter component combination")
    return _Wanted(names, request.strict)


def _invalid(message: str) -> OperatingError:
    return OperatingError(message, code=ErrorCode.INVALID_REQUEST)
