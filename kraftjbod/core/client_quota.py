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
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_MAX_NAME_CHARS: Final = 1_000
_MAX_LONG: Final = 2**63 - 1
_MAX_INT: Final = 2**31 - 1
_OF_CLIENTS: Final = frozenset({USER, CLIENT_ID})


class QuotaKey(NamedTuple):
    """Constraints of one quota: the types of entities that may have it (``user``, ``client-id`` or
    ``ip``), its largest value, and whether the value must be an integer.
    """

    types: frozenset[str]
    is_integral: bool = True
    max_value: int = _MAX_LONG


QUOTA_KEYS: Final[Mapping[str, QuotaKey]] = {
    PRODUCER_BYTE_RATE: QuotaKey(_OF_CLIENTS),
    CONSUMER_BYTE_RATE: QuotaKey(_OF_CLIENTS),
    CONTROLLER_MUTATION_RATE: QuotaKey(_OF_CLIENTS, is_integral=False),
    CONNECTION_CREATION_RATE: QuotaKey(frozenset({IP}), max_value=_MAX_INT),
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
        if kind == IP and (why := _why_no_address(name)) is not None:
            return why
    return None


def why_invalid_quota(types: frozenset[str], key: str, value: float) -> str | None:
    """Return an error message about a quota of an entity with these types; None if it is valid."""
    known = QUOTA_KEYS.get(key)
    if known is None or not types <= known.types:
        served = sorted(name for name, one in QUOTA_KEYS.items() if types <= one.types)
        return f"Invalid configuration key {key[:_MAX_NAME_CHARS]}: expected one of {served}"
    if not 0 < value <= known.max_value:
        return f"Quota {key} must be greater than 0 and at most {known.max_value}"
    if known.is_integral and value != int(value):
        return f"{key} cannot be a fractional value"
    return None


def client_entity(user: str, client_id: str) -> QuotaEntity:
    """Return the entity of a client. Names beyond the longest one with a quota are cut, because
    nodes remember the entities of thousands of clients."""
    most = _MAX_NAME_CHARS + 1
    return ((CLIENT_ID, client_id[:most]), (USER, user[:most]))


def address_entity(host: str) -> QuotaEntity:
    """Return the quota entity of clients that connect from ``host``, a numeric address."""
    return ((IP, host),)


def candidates(client: QuotaEntity) -> Iterator[tuple[QuotaEntity, QuotaEntity]]:
    """Yield the entities whose quota may apply to a client, in Kafka's order of precedence, each
    with the entity that shares its rate.

    The first item of a pair is the entity to look up. The second one names the clients that share
    one balance: for a default (name None), each user, client id or address has its own.

    :param client: as :func:`client_entity` or :func:`address_entity` returns it.
    """
    if len(client) == 1:
        yield client, client
        yield ((IP, None),), client
        return
    of_client_id, of_user = client[:1], client[1:]
    yield client, client
    yield ((CLIENT_ID, None), *of_user), client
    yield of_user, of_user
    yield (*of_client_id, (USER, None)), client
    yield ((CLIENT_ID, None), (USER, None)), client
    yield ((USER, None),), of_user
    yield of_client_id, of_client_id
    yield ((CLIENT_ID, None),), of_client_id


def _why_no_address(name: str) -> str | None:
    """Return the error of an address; None if it is in the form that connections have."""
    try:
        canonical = str(ipaddress.ip_address(name))
    except ValueError:
        return f"{name} is no numeric IP address"
    return None if name == canonical else f"Write the address {name} as {canonical}"
