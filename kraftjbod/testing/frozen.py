"""WIRE. A hanging or crawling disk: a frozen file system, and a process that always thaws it.

While the file system is frozen, every write, create and fsync waits in the kernel and cannot be
killed. Cached data can be read. A crawling disk is frozen most of the time and thawed for moments,
so that every write waits.

A separate process freezes and thaws. It thaws finally when its standard input ends, for example
because the test run is killed, or after a time limit, so that no file system stays frozen.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from kraftjbod.testing.mounts import Disk, DiskKitError

#: Arguments: path to freeze, limit in seconds, seconds per freeze (0: frozen all the time).
_FREEZER: Final = """
import errno, fcntl, os, select, signal, sys, time
FREEZE, THAW, MOMENT_S = 0xC0045877, 0xC0045878, 0.002
def thaw():
    try:
        fcntl.ioctl(fd, THAW, 0)
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
def is_over(at_most_s):
    return bool(select.select([0], [], [], max(0.0, min(at_most_s, end - time.monotonic())))[0])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
end = time.monotonic() + float(sys.argv[2])
at_a_time_s = float(sys.argv[3]) or float(sys.argv[2])
is_said = False
try:
    while time.monotonic() < end:
        fcntl.ioctl(fd, FREEZE, 0)
        if not is_said:
            is_said = print("frozen", flush=True) is None
        if is_over(at_a_time_s):
            break
        thaw()
        time.sleep(MOMENT_S)
finally:
    thaw()
"""


class Freeze:
    """A disk that hangs until :meth:`thaw`, or crawls. Only root can freeze, and only ext4 and xfs.

    :param at_most_s: thaw it after this time in any case.
    :param at_a_time_s: let it crawl: freeze it for this time, thaw it for 2 ms, and so on. 0: it
        hangs.
    :raises DiskKitError: the kernel refused.
    """

    def __init__(self, disk: Disk, *, at_most_s: float, at_a_time_s: float = 0.0) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own words, no shell
            [sys.executable, "-c", _FREEZER, disk.path, str(at_most_s), str(at_a_time_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "frozen\n":
            raise DiskKitError(f"cannot freeze {disk.path}: {self._process.communicate()[1]}")

    def thaw(self) -> None:
        """Thaw the disk, unless it was thawed by its time limit.

        :raises DiskKitError: the kernel refused.
        """
        _, problem = self._process.communicate()
        if self._process.returncode != 0:
            raise DiskKitError(f"cannot thaw: {problem}")


@contextlib.contextmanager
def frozen(disk: Disk, *, at_most_s: float) -> Iterator[None]:
    """Let ``disk`` hang during the ``with`` block, but not longer than ``at_most_s`` seconds.

    :raises DiskKitError: the kernel refused.
    """
    freeze = Freeze(disk, at_most_s=at_most_s)
    try:
        yield
    finally:
        freeze.thaw()
