"""PURE. Listeners by name: Kafka's rules for their addresses, and keys of a single listener.

* Names are compared in upper case, as in Kafka.
* Hosts are compared as addresses, so that ``::1`` and ``0:0::1`` are equal.
* ``0.0.0.0`` and ``::`` are wildcards. A listener on ``::`` accepts only IPv6 connections, as
  asyncio's servers do. A Java process would also accept IPv4 there.
* ``listener.name.<lower-case name>.<key>`` overrides ``<key>`` for one listener.
* Every listener of a file written for an earlier version stays valid: names without an entry in
  ``listener.security.protocol.map`` are PLAINTEXT, unless another listener is secure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pydantic import Field

from kraftjbod.core.allowed_hosts import address_of
from kraftjbod.core.config_model import nearest_hint
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.sasl_config import SaslConfig
from kraftjbod.core.security_keys import PROTOCOLS
from kraftjbod.core.ssl_config import SslConfig

LISTENER_PREFIX: Final = "listener.name."
ANY_HOST: Final = "0.0.0.0"  # noqa: S104 - what Kafka takes an empty host for
_IPV6_LOOPBACK: Final = "::1"

Address = tuple[str, str, int]
"""Name, host and port of a listener."""


class ListenerConfig(SslConfig, SaslConfig):
    """Configuration of one listener, after the keys ``listener.name.<lower-case name>.<key>`` have
    overridden ``<key>``.
    """

    max_connections: int = Field(default=10_000, ge=1)
    """Connections of this listener that are open at once."""


def is_wildcard(host: str) -> bool:
    """Return whether a listener that is bound to ``host`` accepts connections to all addresses."""
    address = address_of(host)
    return address is not None and address.is_unspecified


def advertised_host(host: str, *, ipv4_loopback: str) -> str:
    """Return the host to advertise for a listener that is bound to ``host``.

    :param ipv4_loopback: replaces ``0.0.0.0``; ``::1`` replaces the wildcard of IPv6.
    """
    if not is_wildcard(host):
        return host
    return _IPV6_LOOPBACK if _version(host) == 6 else ipv4_loopback


def upper_names(names: object) -> object:
    """Return names of listeners in upper case. Values of other types are returned unchanged."""
    if isinstance(names, tuple):
        return tuple(name.upper() if isinstance(name, str) else name for name in names)
    return names.upper() if isinstance(names, str) else names


def require_protocol_map(items: Collection[str]) -> None:
    """Require that each item of ``listener.security.protocol.map`` is ``NAME:PROTOCOL``.

    :raises ValueError: an item has another form, an unknown protocol, or a name for the second
        time.
    """
    names = set()
    for item in items:
        name, colon, protocol = (part.strip().upper() for part in item.partition(":"))
        if not (name and colon):
            raise ValueError(f"{item!r} is no entry of the map: write NAME:PROTOCOL")
        if protocol not in PROTOCOLS:
            raise ValueError(f"{item!r} has the protocol {protocol}: use {', '.join(PROTOCOLS)}")
        if name in names:
            raise ValueError(f"{name} has two protocols: keep one")
        names.add(name)


def require_addresses(listeners: Sequence[Address], advertised: Sequence[Address]) -> None:
    """Require that names and addresses of the listeners are distinct, as Kafka does.

    :param advertised: ``advertised.listeners``; empty if it is not set.
    :raises ValueError: a name occurs twice, two listeners cannot have the same port, an advertised
        name is no listener, or an advertised host is a wildcard.
    """
    for key, addresses in (("listeners", listeners), ("advertised.listeners", advertised)):
        names = [name for name, _, _ in addresses]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{key} has the name {', '.join(twice)} twice: rename one listener")
    for index, (name, host, port) in enumerate(listeners):
        for other, other_host, other_port in listeners[:index]:
            if port == other_port != 0 and _overlap(host, other_host):
                raise ValueError(
                    f"listeners has {other} and {name} on port {port}: give one of them another "
                    "port"
                )
    known = {name for name, _, _ in listeners}
    for name, host, port in advertised:
        if name not in known:
            raise ValueError(
                f"advertised.listeners has {name}, which listeners does not have: add it there, or "
                "use one of its names"
            )
        if is_wildcard(host):
            raise ValueError(
                f"advertised.listeners has {name}://{host}:{port}, to which no client can connect: "
                "write the host name or address that clients use"
            )


def _overlap(host: str, other: str) -> bool:
    """Return whether two listeners with these hosts cannot have the same port."""
    if host == other or address_of(host) == address_of(other) is not None:
        return True
    if not (is_wildcard(host) or is_wildcard(other)):
        return False
    return {_version(host), _version(other)} != {4, 6}


def _version(host: str) -> int | None:
    """Return 4 or 6 for an address, None for a name."""
    address = address_of(host)
    return None if address is None else address.version


def key_without_listener(key: str) -> str:
    """Return ``key`` without ``listener.name.<name>.``."""
    if not key.startswith(LISTENER_PREFIX):
        return key
    return key.removeprefix(LISTENER_PREFIX).partition(".")[2]


def listener_of(key: str) -> str | None:
    """Return the upper-case name of the listener in ``listener.name.<name>.…``; None for another
    key."""
    if not key.startswith(LISTENER_PREFIX):
        return None
    return key.removeprefix(LISTENER_PREFIX).partition(".")[0].upper()


def listener_values(
    values: Mapping[str, str], keys: Collection[str], *, listeners: Collection[str], source: str
) -> dict[str, dict[str, str]]:
    """Return the values of single listeners by upper-case name and by key without prefix.

    :param keys: the keys that a listener can override; other keys are left out.
    :param listeners: upper-case names of the listeners.
    :raises ConfigError: naming ``source`` and a key whose listener does not exist.
    """
    found: dict[str, dict[str, str]] = {}
    for full in served_listener_keys(values, keys):
        name, _, key = full.removeprefix(LISTENER_PREFIX).partition(".")
        upper = name.upper()
        if upper not in listeners:
            raise ConfigError(
                f"{source}: {full} is about the listener {upper}, which listeners does not have"
                f"{nearest_hint(upper, listeners)}"
            )
        found.setdefault(upper, {})[key] = values[full]
    return found


def served_listener_keys(values: Mapping[str, str], keys: Collection[str]) -> list[str]:
    """Return the keys in ``values`` that override one of ``keys`` for one listener."""
    return [
        full
        for full in values
        if full.startswith(LISTENER_PREFIX)
        and full.removeprefix(LISTENER_PREFIX).partition(".")[2] in keys
    ]
