"""Free ports on loopback that no other test process takes meanwhile.

A port that is free now is bound only when a daemon gets that far, seconds later. So a port is
reserved: by a lock on a file of its own, which the kernel takes back when the process ends. Test
processes of several users and of pytest-xdist may run side by side.

Ports lie below those that the system gives to the near end of connections, which could take one
that is reserved.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import stat
import tempfile
from pathlib import Path
from typing import Final

from kraftjbod.core.errors import StartupError

HOST: Final = "127.0.0.1"
_LOWEST: Final = 20_000
_USUAL_EPHEMERAL: Final = 32_768
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_WORLD: Final = 0o777 | stat.S_ISVTX


class PortReservation:
    """A port that is this process's own until :meth:`release`."""

    def __init__(self, port: int, lock: int) -> None:
        self.port = port
        self._lock = lock

    def release(self) -> None:
        """Nothing of the daemons' is done here; release after they stopped."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def reserve_port() -> PortReservation:
    """Any port that nobody uses or has reserved.

    :raises StartupError: if there is none.
    """
    locks = _lock_dir()
    ports = range(_LOWEST, max(_LOWEST + 1000, _ephemeral_from()))
    begin = random.randrange(len(ports))  # noqa: S311 - so that processes seldom meet
    for port in (*ports[begin:], *ports[:begin]):
        lock = _try_lock(locks / str(port))
        if lock is None:
            continue
        if is_free(port):
            return PortReservation(port, lock)
        os.close(lock)
    raise StartupError(f"no port of {ports.start} to {ports.stop - 1} on {HOST} is free")


def is_free(port: int) -> bool:
    """Whether a daemon could listen on it. Connections that linger from one do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _lock_dir() -> Path:
    path = Path(tempfile.gettempdir(), "kraftjbod-ports")
    with contextlib.suppress(FileExistsError):
        path.mkdir()
        path.chmod(_WORLD)
    return path


def _try_lock(path: Path) -> int | None:
    """The open file whose lock is ours; None if another process or another cluster has it."""
    try:
        # Read-only is enough for a lock, and all that others may do with a file of root's.
        fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        # A sticky folder lets nobody open for creation what belongs to somebody else.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _ephemeral_from() -> int:
    try:
        return int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        return _USUAL_EPHEMERAL
