"""WIRE. Network namespaces as hosts of daemons, on a switch, each with a cable that can be cut.

A dead process closes its connections, and a port without listener refuses connections. A host
without power sends no packet at all. Network namespaces simulate such hosts on one machine (root
only, by ``ip``): each daemon has its own address, and :func:`cut` disconnects its host.

The switch is in a namespace too, so that this machine's packet filter does not affect it.
A cluster has one network, ``198.18.N.0/24`` (for benchmarks, RFC 2544), in which this machine is
``.1``. All names derive from addresses, so no state is stored. :func:`remove` or a reboot removes
the namespaces.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from typing import Final

from kraftjbod.core.errors import StartupError

_NETWORKS: Final = "198.18"
_FIRST_HOST: Final = 11
_MOST_HOSTS: Final = 200
_IP_TIMEOUT_S: Final = 30


def plan(count: int) -> list[str]:
    """Return addresses for ``count`` hosts (at most 200) in an unused network. Creates nothing.

    :raises StartupError: this user or this machine cannot create network namespaces, or all
        networks are in use.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise StartupError(
            "hosts of their own are network namespaces, which root makes with the command ip "
            "(package iproute2): run this as root, with iproute2 installed"
        )
    assert count <= _MOST_HOSTS, count
    taken = _namespaces()
    free = [number for number in range(1, 255) if _switch(number) not in taken]
    if not free:
        raise StartupError(
            f"all networks {_NETWORKS}.1.0 to {_NETWORKS}.254.0 are in use: remove what is left of "
            "them with ip netns list and ip netns del"
        )
    number = random.choice(free)  # noqa: S311 - so that processes seldom meet
    return [f"{_NETWORKS}.{number}.{_FIRST_HOST + index}" for index in range(count)]


def further(addresses: Sequence[str], count: int) -> list[str]:
    """Return addresses for ``count`` more hosts in the network of ``addresses``."""
    network, _, _ = addresses[0].rpartition(".")
    first = max(int(address.rpartition(".")[2]) for address in addresses) + 1
    assert first + count <= _FIRST_HOST + _MOST_HOSTS, (addresses, count)
    return [f"{network}.{first + index}" for index in range(count)]


def allowed_hosts(address: str) -> str:
    """Return the value of ``cluster.action.allowed.hosts`` that allows the network of ``address``
    and this machine's loopback addresses."""
    return f"127.0.0.0/8,::1,{_NETWORKS}.{_number(address)}.0/24"


def is_own_host(address: str) -> bool:
    """Return whether ``address`` is that of a simulated host: in one of the networks that
    :func:`plan` chooses from.
    """
    return address.startswith(f"{_NETWORKS}.")


def command_prefix(address: str) -> tuple[str, ...]:
    """Return the words with which a command runs on the host ``address``; empty for this machine's
    own addresses."""
    return ("ip", "netns", "exec", _host(address)) if is_own_host(address) else ()


def make(addresses: Iterable[str]) -> None:
    """Create the missing hosts of one network, and connect all of them.

    :raises StartupError: the ``ip`` command failed; the message has its output.
    """
    wanted = list(addresses)
    there = _namespaces() if wanted else set()
    for address in wanted:
        number = _number(address)
        switch = _switch(number)
        if switch not in there:
            _make_switch(number)
            there.add(switch)
        host, port = _host(address), _port(address)
        if host not in there:
            _ip("netns", "add", host)
            _ip("link", "add", port, "netns", switch, *_veth("eth0", host))
            _ip("-n", switch, "link", "set", port, "master", "switch")
            _ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "lo", "up")
            _ip("-n", host, "link", "set", "eth0", "up")
        mend(address)


def cut(address: str) -> None:
    """Disconnect the host: packets are dropped, and no connection is closed or reset.

    :raises StartupError: the ``ip`` command failed; it requires root.
    """
    _ip("-n", _switch(_number(address)), "link", "set", _port(address), "down")


def mend(address: str) -> None:
    """Connect a host again that :func:`cut` disconnected. No effect on a connected host.

    :raises StartupError: the ``ip`` command failed; it requires root.
    """
    _ip("-n", _switch(_number(address)), "link", "set", _port(address), "up")


def remove(addresses: Iterable[str]) -> None:
    """Remove the hosts, and with them the whole network of each host.

    Addresses outside these networks are ignored. The processes on the hosts must have ended.
    """
    own = [address for address in addresses if is_own_host(address)]
    if not own:
        return
    for number in sorted({_number(address) for address in own}):
        # The kernel removes the link some time after its namespace, and the next start reuses it.
        if os.path.exists(f"/sys/class/net/{_uplink(number)}"):
            _ip("link", "del", _uplink(number))
    wanted = {*map(_host, own), *(_switch(_number(address)) for address in own)}
    for name in sorted(wanted & _namespaces()):
        _ip("netns", "del", name)


def _make_switch(number: int) -> None:
    switch, uplink = _switch(number), _uplink(number)
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", "switch", "type", "bridge")
    _ip("-n", switch, "link", "set", "switch", "up")
    _ip("link", "add", uplink, *_veth("uplink", switch))
    _ip("-n", switch, "link", "set", "uplink", "master", "switch", "up")
    _ip("addr", "add", f"{_NETWORKS}.{number}.1/24", "dev", uplink)
    _ip("link", "set", uplink, "up")


def _veth(peer: str, namespace: str) -> tuple[str, ...]:
    return ("type", "veth", "peer", "name", peer, "netns", namespace)


def _number(address: str) -> int:
    return int(address.split(".")[2])


def _switch(number: int) -> str:
    return f"kraftjbod-{_NETWORKS}.{number}"


def _uplink(number: int) -> str:
    """Return the name of this machine's interface to the switch."""
    return f"kjb{number}"


def _host(address: str) -> str:
    return f"kraftjbod-{address}"


def _port(address: str) -> str:
    """Return the name of the switch's interface to the host."""
    return f"host{address.split('.')[3]}"


def _namespaces() -> set[str]:
    return {line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()}


def _ip(*words: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own words, no shell
        ["ip", *words],  # noqa: S607 - wherever the distribution has it
        capture_output=True,
        text=True,
        timeout=_IP_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise StartupError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
