"""WIRE. Reservation of free loopback ports, so that no other test process takes them.

A daemon binds its port seconds after the port was chosen. The reservation is an abstract Unix
socket, which the kernel has per network namespace and releases when the process ends. So test
processes of several users and of pytest-xdist can run side by side.

The ports are below the ephemeral range, from which the kernel could take a reserved port for an
outgoing connection.
"""

from __future__ import annotations

import os
import random
import socket
import weakref
from pathlib import Path
from typing import Final

from kraftjbod.core.errors import StartupError

HOST: Final = "127.0.0.1"
_LOWEST: Final = 20_000
_USUAL_EPHEMERAL: Final = 32_768
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class PortReservation:
    """A port reserved for this process until :meth:`release` or garbage collection."""

    def __init__(self, port: int, lock: socket.socket) -> None:
        self.port = port
        self._release = weakref.finalize(self, os.close, lock.detach())

    def release(self) -> None:
        """Release the port, whose listener must have stopped."""
        self._release()


def reserve_port() -> PortReservation:
    """Reserve any port that is free and not reserved.

    :raises StartupError: no port is left.
    """
    ports = range(_LOWEST, max(_LOWEST + 1000, _ephemeral_from()))
    begin = random.randrange(len(ports))  # noqa: S311 - so that processes seldom meet
    for port in (*ports[begin:], *ports[:begin]):
        lock = socket.socket(socket.AF_UNIX)
        if _is_bound(lock, f"\0kraftjbod-port-{port}") and is_free(port):
            return PortReservation(port, lock)
        lock.close()
    raise StartupError(f"no port of {ports.start} to {ports.stop - 1} on {HOST} is free")


def is_free(port: int) -> bool:
    """Return whether a daemon could listen on ``port`` of 127.0.0.1 now. Connections in TIME_WAIT
    do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _is_bound(probe, (HOST, port))


def _is_bound(sock: socket.socket, address: str | tuple[str, int]) -> bool:
    try:
        sock.bind(address)
    except OSError:
        return False
    return True


def _ephemeral_from() -> int:
    try:
        return int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        return _USUAL_EPHEMERAL
