"""A disk that hangs: a frozen file system, and a process that thaws it whatever happens.

While it is frozen every write, create and fsync waits in the kernel and cannot be killed; what is
cached can be read. The thaw timer is a process of its own that is started *first*, so that not
even a test run that is killed leaves a file system frozen.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from kraftjbod.testing.mounts import Disk

_FIFREEZE: Final = 0xC0045877
_FITHAW: Final = 0xC0045878
#: Thaws what its first argument names after as many seconds as its second says.
_TIMER: Final = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
print("armed", flush=True)
time.sleep(float(sys.argv[2]))
try:
    fcntl.ioctl(fd, 0xC0045878, 0)
except OSError:
    pass
"""


@contextlib.contextmanager
def frozen(disk: Disk, *, at_most_s: float) -> Iterator[None]:
    """``disk`` hangs for the length of the ``with`` block, and never longer than ``at_most_s``.

    Only ext4 and xfs can be frozen; the caller is root.
    """
    assert disk.kind != "tmpfs", "a tmpfs cannot be frozen"
    timer = subprocess.Popen(  # noqa: S603 - our own words, no shell
        [sys.executable, "-c", _TIMER, disk.path, str(at_most_s)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    fd = -1
    try:
        assert timer.stdout is not None
        assert timer.stdout.readline() == b"armed\n", "the thaw timer did not start"
        fd = os.open(disk.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.ioctl(fd, _FIFREEZE, 0)
        yield
    finally:
        if fd >= 0:
            _thaw(fd)
            os.close(fd)
        timer.kill()
        timer.communicate()


def _thaw(fd: int) -> None:
    try:
        fcntl.ioctl(fd, _FITHAW, 0)
    except OSError as e:
        if e.errno != errno.EINVAL:  # The timer was first.
            raise
