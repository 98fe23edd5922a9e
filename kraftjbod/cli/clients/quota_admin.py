"""WIRE. Requests about quotas of clients (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error
from kraftjbod.core.client_quota import QuotaEntity, entity_of
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import AlterClientQuotasRequest, DescribeClientQuotasRequest

_EXACT: Final = 0
_DEFAULT: Final = 1
_ANY: Final = 2
ANY_NAME: Final = ""
"""Stands for each name and the default. No entity has an empty name."""


async def describe_quotas(
    client: ClusterClient, names: Mapping[str, str | None]
) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas of all entities that have exactly the types of ``names``, sorted.

    :param names: the name by type; None for the default, ``ANY_NAME`` for all.
    :raises OperatingError: no broker responds, or the request is refused.
    """
    kind = DescribeClientQuotasRequest.ComponentData
    components = [
        kind(
            entity_type=entity_type,
            match_type=_ANY if name == ANY_NAME else _DEFAULT if name is None else _EXACT,
            match=None if name == ANY_NAME else name,
        )
        for entity_type, name in names.items()
    ]
    answer = await client.request_from_any_broker(
        DescribeClientQuotasRequest(components=components, strict=True)
    )
    _require(answer.error_code, "the quotas", answer.error_message)
    found = {
        entity_of({one.entity_type: one.entity_name for one in entry.entity}): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries or ()
    }
    return dict(sorted(found.items(), key=_by_name))


def _by_name(found: tuple[QuotaEntity, object]) -> list[tuple[str, bool, str]]:
    """Return a sort key: defaults follow names."""
    return [(kind, name is None, name or "") for kind, name in found[0]]


async def alter_quotas(
    client: ClusterClient, names: Mapping[str, str | None], changes: Mapping[str, float | None]
) -> None:
    """Change quotas of one entity.

    :param names: the name by type; None for the default.
    :param changes: the new value by key; None removes the quota.
    :raises OperatingError: the change is refused.
    """
    kinds = AlterClientQuotasRequest
    entity = [
        kinds.EntityData(entity_type=entity_type, entity_name=name)
        for entity_type, name in names.items()
    ]
    ops = [
        kinds.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
        for key, value in changes.items()
    ]
    request = kinds(entries=[kinds.EntryData(entity=entity, ops=ops)], validate_only=False)
    answer = await client.request_from_any_broker(request)
    for entry in answer.entries:
        _require(entry.error_code, "the quotas", entry.error_message)


def _require(code: int, what: str, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise kafka_error(code, what, message)
