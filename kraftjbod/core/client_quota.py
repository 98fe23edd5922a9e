"""PURE. Quotas of clients: their keys, the entities that they belong to, and their order (KIP-546).

An entity is a tuple of pairs ``(type, name)``, sorted by type. The name None is the default of its
type: its quota applies to each user, client id or address that no more specific entity names.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

QuotaEntity = tuple[tuple[str, str | None], ...]
Quotas = Mapping[QuotaEntity, Mapping[str, float]]
"""Values by key, by entity."""

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"

_MAX_NAME_CHARS: Final = 1_000
_MAX_LONG: Final = 2**63 - 1


class QuotaKey(NamedTuple):
    """``types``: the types of entities that may have the quota."""

    types: frozenset[str]
    is_integral: bool


QUOTA_KEYS: Final[Mapping[str, QuotaKey]] = {
    PRODUCER_BYTE_RATE: QuotaKey(frozenset({USER, CLIENT_ID}), is_integral=True),
    CONSUMER_BYTE_RATE: QuotaKey(frozenset({USER, CLIENT_ID}), is_integral=True),
}


def entity_of(names: Mapping[str, str | None]) -> QuotaEntity:
    return tuple(sorted(names.items()))


def why_invalid_entity(pairs: tuple[tuple[str, str | None], ...]) -> str | None:
    """Return an error message about the entity of a request, or None if the entity is valid."""
    types = [kind for kind, _ in pairs]
    if not pairs:
        return "Invalid empty client quota entity"
    if len(set(types)) < len(types):
        return "A client quota entity names each type once"
    if any(kind not in (USER, CLIENT_ID, IP) for kind in types):
        return f"Unhandled client quota entity type: {', '.join(types)}"[:_MAX_NAME_CHARS]
    if IP in types and len(types) > 1:
        return f"An entity of the type {IP} has no other type"
    for kind, name in pairs:
        if name is None:
            continue
        if not name or len(name) > _MAX_NAME_CHARS:
            return f"The name of a {kind} has 1 to {_MAX_NAME_CHARS} characters"
        if kind == IP and not _is_address(name):
            return f"{name} is no numeric IP address"
    return None


def why_invalid_quota(types: frozenset[str], key: str, value: float) -> str | None:
    """Return an error message about a quota of an entity with these types; None if it is valid."""
    known = QUOTA_KEYS.get(key)
    if known is None or not types <= known.types:
        served = sorted(name for name, one in QUOTA_KEYS.items() if types <= one.types)
        return f"Invalid configuration key {key[:_MAX_NAME_CHARS]}: expected one of {served}"
    if not 0 < value <= _MAX_LONG:
        return f"Quota {key} must be greater than 0 and at most {_MAX_LONG}"
    if known.is_integral and value != int(value):
        return f"{key} cannot be a fractional value"
    return None


def candidates(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, QuotaEntity]]:
    """Yield pairs of entities, the first of which has the quota, in order of precedence.

    The clients of the second entity share the rate. It is another one for a default, whose rate
    each user or client id has separately.
    """
    both = ((CLIENT_ID, client_id), (USER, user))
    yield both, both
    yield ((CLIENT_ID, None), (USER, user)), both
    yield ((USER, user),), ((USER, user),)
    yield ((CLIENT_ID, client_id), (USER, None)), both
    yield ((CLIENT_ID, None), (USER, None)), both
    yield ((USER, None),), ((USER, user),)
    yield ((CLIENT_ID, client_id),), ((CLIENT_ID, client_id),)
    yield ((CLIENT_ID, None),), ((CLIENT_ID, client_id),)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
