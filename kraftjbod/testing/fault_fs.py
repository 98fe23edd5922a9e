"""WIRE. ``FaultFs``: a file system over a directory that fails on request.

It shows the files of ``backing``. ``backing`` may be the mount point itself, so that users of that
path find the same files through the fault file system. Five faults:

* ``eio``: EIO from every operation, also on open files;
* ``readonly``: EROFS for every change, reads work;
* ``full``: ENOSPC for operations that need space, and 0 bytes free; unlinking frees space again;
* ``hang``: every operation waits until :meth:`FaultFs.heal`;
* ``slow``: each write, sync, create and unlink is delayed, one at a time.

Root can always use it, other users only with fusermount3 installed (Debian's package fuse3), and
then only the same user has access. The server, ``fuse_server.py``, is a separate process that ends
with this one.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from kraftjbod.local.privileges import PACKAGE_ROOT
from kraftjbod.testing import mounts
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.fuse_server import FAULTS, FaultOrder
from kraftjbod.testing.mounts import DiskKitError

_START_TIMEOUT_S: Final = 20.0
_END_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02
_DEVICE: Final = "/dev/fuse"
_numbers: Final = itertools.count(1)


def why_not() -> str | None:
    """Return the reason why this user cannot mount a fault file system on this machine; None if
    the user can.
    """
    if not os.path.exists(_DEVICE):
        return f"there is no {_DEVICE}"
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return f"{_DEVICE} may not be opened by this user"
    if os.geteuid() == 0:
        return mounts.why_no_mounts()
    helper = shutil.which("fusermount3")
    if helper is None:
        return "mounting needs root, or fusermount3 (Debian: package fuse3)"
    if not os.stat(helper).st_mode & stat.S_ISUID:
        return f"{helper} is not setuid root, so it cannot mount"
    return None


class FaultFs:
    """A file system that shows a directory at another path and can inject faults.

    :meth:`mount` creates it. :meth:`unmount`, or the end of a ``with`` block, removes it.
    """

    def __init__(
        self, path: Path, source: str, server: subprocess.Popen[bytes], orders: Path
    ) -> None:
        self.path = path
        self._source = source
        self._server = server
        self._orders = orders
        self._number = 0

    def __repr__(self) -> str:
        return f"<FaultFs {self.path} server={self._server.pid}>"

    def __enter__(self) -> FaultFs:
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()

    @classmethod
    def mount(cls, path: Path, *, backing: Path, home: Path) -> FaultFs:
        """Mount ``backing`` at ``path``, without any fault at first.

        :param home: a directory for the two files of the server, outside of ``path``. Each fault
            file system needs its own one.
        :raises DiskKitError: mounting failed. :func:`why_not` returns foreseeable reasons.
        """
        path, backing, orders = path.resolve(), backing.resolve(), home.resolve() / "fault"
        source = mounts.source_name(f"fuse-{next(_numbers)}")
        FaultOrder(fault=None, delay_s=0.0, number=0).write(orders)
        server_log = orders.with_suffix(".log")
        words = ("-m", "kraftjbod.testing.fuse_server", str(backing), str(path), str(orders))
        with server_log.open("wb") as log:
            server = subprocess.Popen(  # noqa: S603 - our own words, no shell
                [sys.executable, *words, source],
                cwd=PACKAGE_ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        mounted = cls(path, source, server, orders)
        try:
            mounted._wait_mounted(server_log)
        except BaseException:
            mounted.unmount()
            raise
        return mounted

    def fail(self, fault: DiskFault | str, *, delay_s: float = 0.2) -> None:
        """Inject a fault, from the next operation on.

        :param delay_s: minimum duration of an operation on a ``slow`` disk, in seconds.
        :raises DiskKitError: no such fault, or the server has ended: the disk is dead already.
        """
        if fault not in FAULTS:
            raise DiskKitError(f"no such fault: {fault}; there are {', '.join(sorted(FAULTS))}")
        self._order(DiskFault(fault), delay_s)

    def heal(self) -> None:
        """Remove the fault; hanging operations continue.

        :raises DiskKitError: the server has ended, so the disk stays dead.
        """
        self._order(None, 0.0)

    def unmount(self) -> None:
        """Unmount, even if operations hang or files are open. Open files then return ENOTCONN."""
        if self._server.poll() is None:
            self.heal()
        assert self._server.stdin is not None
        self._server.stdin.close()
        try:
            # The server unmounts when its standard input ends.
            self._server.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        if self._is_mounted():
            mounts.detach(str(self.path))

    def _order(self, fault: DiskFault | None, delay_s: float) -> None:
        if self._server.poll() is not None:
            raise DiskKitError(f"the server of {self.path} ended with {self._server.returncode}")
        self._number += 1
        FaultOrder(fault=fault, delay_s=delay_s, number=self._number).write(self._orders)

    def _is_mounted(self) -> bool:
        return any(mount.source == self._source for mount in mounts.mount_table())

    def _wait_mounted(self, server_log: Path) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._is_mounted():
            if self._server.poll() is not None:
                lines = server_log.read_text(errors="replace").split("\n")
                reason = "; ".join(line for line in lines if line)[-500:]
                raise DiskKitError(f"cannot mount a fault file system on {self.path}: {reason}")
            if time.monotonic() > deadline:
                raise DiskKitError(f"{self.path} is not mounted after {_START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)
