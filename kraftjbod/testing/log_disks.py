"""WIRE. Disks for log directories, and the eight faults that they can have.

| fault | what a broker gets from then on | plain | ext4 | xfs | tmpfs | fuse |
|---|---|---|---|---|---|---|
| ``eio`` | EIO from every operation | | yes | yes | | yes |
| ``chmod`` | EACCES when it opens anything | yes | yes | yes | yes | yes |
| ``readonly`` | EROFS from every write | | yes | | | yes |
| ``full`` | ENOSPC from every write that needs space | | yes | yes | yes | yes |
| ``hang`` | no answer | | yes | yes | | yes |
| ``slow`` | an answer after a while | | yes | yes | | yes |
| ``unmount`` | no such directory, as the disk is not there | yes | yes | yes | yes | yes |
| ``wipe`` | another, empty disk | yes | yes | yes | yes | yes |

* ``ext4`` and ``xfs`` are real file systems on loop devices, ``tmpfs`` is in memory; root only.
* ``fuse`` is the fault file system of fault_fs.py, for root, and for others if fusermount3 is
  installed.
* ``plain`` is a directory on the existing file system.

:func:`best_kind` returns the best kind that this machine supports. :meth:`LogDisk.heal` makes a
failed disk work again, with its data, except for unsynced data (``eio``) and data of the old disk
(``wipe``). Whether a broker then takes the directory online again without an operator depends on
its ``log.dir.reattach.interval.ms``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, get_args

from kraftjbod.testing import fault_fs, fuse_server, mounts
from kraftjbod.testing.fault_fs import FaultFs
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.frozen import Freeze
from kraftjbod.testing.mounts import Disk, DiskKitError

DiskKind = Literal["plain", "ext4", "xfs", "tmpfs", "fuse"]
MountedKind = Literal["ext4", "xfs", "tmpfs"]

#: All faults that at least one kind of disk supports.
FAULTS: Final = (
    *(DiskFault.EIO, DiskFault.CHMOD, DiskFault.READONLY, DiskFault.FULL),
    *(DiskFault.HANG, DiskFault.SLOW, DiskFault.UNMOUNT, DiskFault.WIPE),
)
DISK_KINDS: Final[tuple[DiskKind, ...]] = get_args(DiskKind)
DEFAULT_DISK_BYTES: Final = 64 * 1024 * 1024
#: Limit after which a hanging or crawling disk recovers even if the test is killed.
LONGEST_HANG_S: Final = 300.0
#: Approximate duration of a write to a slow disk.
SLOW_S: Final = 0.2
#: Time limit for a broker to close the files of a dead disk.
_LET_GO_S: Final = 20.0
_POLL_S: Final = 0.1


def why_not(kind: DiskKind) -> str | None:
    """Return the reason why this machine or user cannot have such disks, or None."""
    if kind == "plain":
        return None
    return fault_fs.why_not() if kind == "fuse" else mounts.why_not(kind)


def best_kind() -> DiskKind:
    """Return the kind with the most and most realistic faults that this machine supports."""
    kinds: tuple[DiskKind, ...] = ("ext4", "fuse")
    return next((kind for kind in kinds if why_not(kind) is None), "plain")


def make_disk(kind: DiskKind, *, home: Path, size_bytes: int = DEFAULT_DISK_BYTES) -> LogDisk:
    """Create a disk; directories that are not mounted file systems are below ``home``.

    :param size_bytes: size of ext4, xfs (at least 320 MiB) and tmpfs.
    :raises DiskKitError: this machine does not support it: see :func:`why_not`.
    """
    reason = why_not(kind)
    if reason is not None:
        raise DiskKitError(f"no {kind} disks here: {reason}")
    home.mkdir(parents=True, exist_ok=True)
    if kind == "plain":
        return PlainDisk(home)
    if kind == "fuse":
        return FuseDisk(home)
    return MountedDisk(kind, size_bytes)


class LogDisk(ABC):
    """One disk with one log directory. Not thread-safe."""

    def __init__(self, kind: DiskKind, path: Path) -> None:
        self.kind = kind
        #: The log directory in a broker's configuration.
        self.path = path
        self.fault: DiskFault | None = None
        self._undo: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<{self.kind} disk {self.path}: {self.fault or 'good'}>"

    @property
    @abstractmethod
    def faults(self) -> frozenset[DiskFault]:
        """The faults that this kind of disk supports."""

    def fail(self, fault: DiskFault | str) -> None:
        """Inject a fault that lasts until :meth:`heal`.

        :raises DiskKitError: this kind of disk does not support it, or the disk has a fault.
        """
        if fault not in FAULTS:
            raise DiskKitError(f"no such fault: {fault}; there are {', '.join(FAULTS)}")
        fault = DiskFault(fault)
        if fault not in self.faults:
            able = [f"{kind} ({why_not(kind) or 'possible here'})" for kind in _able(fault)]
            raise DiskKitError(f"a {self.kind} disk cannot {fault}; others can: {', '.join(able)}")
        if self.fault is not None:
            raise DiskKitError(f"{self.path} has failed already ({self.fault}): heal it first")
        self._undo = self._begin(fault)
        self.fault = fault

    def heal(self) -> None:
        """Remove the fault. Does nothing on a healthy disk. A wiped disk stays empty.

        :raises DiskKitError: a broker still has files of the disk open after 20 s, which prevents
            the repair. It closes them when the directory is offline.
        """
        if self._undo is not None:
            self._undo()
        self.fault = self._undo = None

    @abstractmethod
    def close(self) -> None:
        """Unmount the disk. The content of ext4, xfs and tmpfs is lost; directories below ``home``
        stay.
        """

    def _begin(self, fault: DiskFault) -> Callable[[], None]:
        """Inject the fault; return the function that removes it."""
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if fault is DiskFault.CHMOD:
            self.path.chmod(0)
            return lambda: self.path.chmod(mode)
        raise AssertionError(f"{fault} of {self}")


def _able(fault: DiskFault) -> list[DiskKind]:
    kinds: dict[DiskKind, frozenset[DiskFault]] = {
        "ext4": MountedDisk.FAULTS["ext4"],
        "xfs": MountedDisk.FAULTS["xfs"],
        "tmpfs": MountedDisk.FAULTS["tmpfs"],
        "fuse": FuseDisk.FAULTS,
    }
    return [kind for kind, faults in kinds.items() if fault in faults]


class PlainDisk(LogDisk):
    """A directory, and a second one beside it that holds the files while they are hidden."""

    FAULTS: Final[frozenset[DiskFault]] = frozenset(
        {DiskFault.CHMOD, DiskFault.UNMOUNT, DiskFault.WIPE}
    )

    def __init__(self, home: Path) -> None:
        super().__init__("plain", home / "logs")
        self._aside = home / "aside"
        self.path.mkdir()

    @property
    def faults(self) -> frozenset[DiskFault]:
        return self.FAULTS

    def close(self) -> None:
        self.heal()
        shutil.rmtree(self._aside, ignore_errors=True)

    def _begin(self, fault: DiskFault) -> Callable[[], None]:
        if fault is DiskFault.CHMOD:
            return super()._begin(fault)
        shutil.rmtree(self._aside, ignore_errors=True)
        self.path.rename(self._aside)
        if fault is DiskFault.WIPE:
            _make_like(self.path, self._aside)
            return _nothing
        return lambda: _rename_over(self._aside, self.path)


class MountedDisk(LogDisk):
    """A mounted file system; the log directory is a folder on it."""

    _EVERYWHERE: Final[frozenset[DiskFault]] = frozenset(
        {DiskFault.CHMOD, DiskFault.FULL, DiskFault.UNMOUNT, DiskFault.WIPE}
    )
    FAULTS: Final[dict[MountedKind, frozenset[DiskFault]]] = {
        "ext4": _EVERYWHERE | {DiskFault.EIO, DiskFault.READONLY, DiskFault.HANG, DiskFault.SLOW},
        "xfs": _EVERYWHERE | {DiskFault.EIO, DiskFault.HANG, DiskFault.SLOW},
        "tmpfs": _EVERYWHERE,
    }

    def __init__(self, kind: MountedKind, size_bytes: int) -> None:
        self._stack = contextlib.ExitStack()
        self._disk: Disk = self._stack.enter_context(mounts.mounted(kind, size_bytes=size_bytes))
        self._can = self.FAULTS[kind]
        super().__init__(kind, Path(self._disk.path, "logs"))
        self.path.mkdir()

    @property
    def faults(self) -> frozenset[DiskFault]:
        return self._can

    def close(self) -> None:
        if self.fault in (DiskFault.HANG, DiskFault.SLOW):
            # A process with an open file on a frozen disk cannot even be killed.
            self.heal()
        self._stack.close()

    def _begin(self, fault: DiskFault) -> Callable[[], None]:
        disk = self._disk
        match fault:
            case DiskFault.EIO:
                disk.shut_down()
                return self._repair
            case DiskFault.READONLY:
                disk.abort()
                return self._repair
            case DiskFault.FULL:
                disk.fill()
                return disk.free_space
            case DiskFault.HANG:
                return Freeze(disk, at_most_s=LONGEST_HANG_S).thaw
            case DiskFault.SLOW:
                return Freeze(disk, at_most_s=LONGEST_HANG_S, at_a_time_s=SLOW_S).thaw
            case DiskFault.UNMOUNT:
                disk.set_aside()
                return disk.put_back
            case DiskFault.WIPE:
                before = self.path.stat()
                disk.replace()
                self.path.mkdir()
                os.chown(self.path, before.st_uid, before.st_gid)
                return _nothing
            case _:
                return super()._begin(fault)

    def _repair(self) -> None:
        deadline = time.monotonic() + _LET_GO_S
        while True:
            try:
                self._disk.unmount()
                break
            except DiskKitError as e:
                if time.monotonic() > deadline:
                    raise DiskKitError(
                        f"{e}; a broker lets go of a disk when its directory is offline"
                    ) from e
                time.sleep(_POLL_S)
        self._disk.repair()
        self._disk.mount()
        if self._disk.is_shut_down:
            raise DiskKitError(
                f"{self._disk.path} is mounted in another mount namespace, which keeps its fault"
            )


class FuseDisk(LogDisk):
    """The fault file system over a folder."""

    FAULTS: Final[frozenset[DiskFault]] = fuse_server.FAULTS | {
        DiskFault.CHMOD,
        DiskFault.UNMOUNT,
        DiskFault.WIPE,
    }

    def __init__(self, home: Path) -> None:
        mount_point = home / "disk"
        self._backing = home / "backing"
        self._home = home
        self._logs = self._backing / "logs"
        for path in (mount_point, self._backing, self._logs):
            path.mkdir()
            path.chmod(0o777)
        super().__init__("fuse", mount_point / "logs")
        self._fs = self._mount()

    @property
    def faults(self) -> frozenset[DiskFault]:
        return self.FAULTS

    def close(self) -> None:
        self._fs.unmount()

    def _mount(self) -> FaultFs:
        return FaultFs.mount(self.path.parent, backing=self._backing, home=self._home)

    def _begin(self, fault: DiskFault) -> Callable[[], None]:
        match fault:
            case _ if fault in fuse_server.FAULTS:
                self._fs.fail(fault, delay_s=SLOW_S)
                return self._fs.heal
            case DiskFault.UNMOUNT | DiskFault.WIPE:
                self._fs.unmount()
                if fault is DiskFault.UNMOUNT:
                    return self._mount_again
                aside = self._home / "aside"
                shutil.rmtree(aside, ignore_errors=True)
                self._logs.rename(aside)
                _make_like(self._logs, aside)
                self._mount_again()
                return _nothing
            case _:
                return super()._begin(fault)

    def _mount_again(self) -> None:
        self._fs = self._mount()


def _make_like(path: Path, model: Path) -> None:
    """Create an empty directory with the owner and the mode of ``model``."""
    found = model.stat()
    path.mkdir()
    path.chmod(stat.S_IMODE(found.st_mode))
    os.chown(path, found.st_uid, found.st_gid)


def _rename_over(source: Path, target: Path) -> None:
    """Rename, and remove a ``target`` that was created meanwhile."""
    shutil.rmtree(target, ignore_errors=True)
    source.rename(target)


def _nothing() -> None:
    """Do nothing: a new disk has no fault."""
