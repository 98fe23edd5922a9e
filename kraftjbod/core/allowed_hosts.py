"""PURE. ``AllowedHosts``: the parsed value of ``cluster.action.allowed.hosts``.

The value lists addresses, networks (``10.1.0.0/16``) and host names, or is ``*`` for every host.
An IPv4 address in IPv6 notation (``::ffff:10.1.2.3``) equals the plain IPv4 address.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Self

ALLOWED_HOSTS_KEY: Final = "cluster.action.allowed.hosts"
EVERY_HOST: Final = "*"
#: Limited because host names are resolved periodically.
MAX_HOSTS: Final = 1000
_MAX_NAME_CHARS: Final = 253
#: Container names may contain underscores, although no RFC allows them.
_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
#: Text of digits and dots only is meant as an address.
_NUMBERS: Final = re.compile(r"[0-9.]+")

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK: Final[tuple[Network, ...]] = (ip_network("127.0.0.0/8"), ip_network("::1"))


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Parsed list of the hosts in ``cluster.action.allowed.hosts``."""

    networks: tuple[Network, ...] = ()
    """Addresses and networks; an address is a network of one."""
    names: tuple[str, ...] = ()
    """Host names that are not resolved yet."""
    is_every: bool = False
    """Whether every host is allowed."""

    @classmethod
    def parse(cls, items: Sequence[str]) -> Self:
        """Parse the items of the list.

        :raises ValueError: there is no item, there are too many, or an item is not an address,
            network or host name.
        """
        if not items:
            raise ValueError(
                "it names no host; remove it to allow the hosts of registered brokers and "
                f"controllers, or write {EVERY_HOST} to allow every host"
            )
        if len(items) > MAX_HOSTS:
            raise ValueError(f"it names {len(items)} hosts; {MAX_HOSTS} may be: write networks")
        if EVERY_HOST in items:
            if len(items) > 1:
                raise ValueError(f"{EVERY_HOST} allows every host, so it must stand alone")
            return cls(is_every=True)
        networks, names = list[Network](), list[str]()
        for item in items:
            network = _network_of(item)
            if network is not None:
                networks.append(network)
            elif _is_name(item):
                names.append(item.lower())
            else:
                raise ValueError(
                    f"{item!r} is no address, network or host name: write for example 10.0.0.7, "
                    f"10.1.0.0/16, broker-1.example.org, or {EVERY_HOST} alone; without a port"
                )
        return cls(tuple(networks), tuple(dict.fromkeys(names)))


def address_of(text: str) -> Address | None:
    """Parse an IP address, with or without brackets. Return None if ``text`` is not an address.

    The interface of a link-local address is omitted. An IPv4 address in IPv6 notation is returned
    as IPv4.
    """
    try:
        # The interface of a link-local address (``%eth0``) differs from host to host.
        address = ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _network_of(text: str) -> Network | None:
    address = address_of(text)
    if address is not None:
        return ip_network(address)
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _is_name(text: str) -> bool:
    is_long = len(text) > _MAX_NAME_CHARS
    return not is_long and not _NUMBERS.fullmatch(text) and _NAME.fullmatch(text) is not None
