"""WIRE. Free ports on loopback that no other test process takes meanwhile.

A port that is free now is bound only when a daemon gets that far, seconds later. So a port is
reserved: by a name in the kernel, which has as many of them as there are network namespaces and
takes them back when the process ends. Test processes of several users and of pytest-xdist may run
side by side.

Ports lie below those that the system gives to the near end of connections, which could take one
that is reserved.
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
    """A port that is this process's own until :meth:`release`, or until nobody holds this."""

    def __init__(self, port: int, lock: socket.socket) -> None:
        self.port = port
        self._release = weakref.finalize(self, os.close, lock.detach())

    def release(self) -> None:
        """Let others have it, once; for who has stopped what listened there."""
        self._release()


def reserve_port() -> PortReservation:
    """Any port that nobody uses or has reserved.

    :raises StartupError: if there is none.
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
    """Whether a daemon could listen on it. Connections that linger from one do not count."""
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
