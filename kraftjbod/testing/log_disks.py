"""WIRE. Disks for log directories, and the eight ways in which they fail.

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

* ``ext4`` and ``xfs`` are real file systems on loop devices, ``tmpfs`` lives in memory; root only.
* ``fuse`` is a file system of this project's, for root, and for others where fusermount3 is
  installed: see fault_fs.py.
* ``plain`` is a directory on whatever file system there is.

:func:`best_kind` is what this machine allows. A disk that failed is whole after
:meth:`LogDisk.heal`: what was on it is there again, but for what was never synced (``eio``) or went
with the old disk (``wipe``). Whether its broker takes it back is the broker's business.
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

from kraftjbod.testing import fault_fs, mounts
from kraftjbod.testing.fault_fs import FaultFs
from kraftjbod.testing.frozen import Freeze
from kraftjbod.testing.fuse_server import FsFault
from kraftjbod.testing.mounts import Disk, DiskKitError

Fault = Literal["eio", "chmod", "readonly", "full", "hang", "slow", "unmount", "wipe"]
DiskKind = Literal["plain", "ext4", "xfs", "tmpfs", "fuse"]
MountedKind = Literal["ext4", "xfs", "tmpfs"]

FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
DISK_KINDS: Final[tuple[DiskKind, ...]] = get_args(DiskKind)
DEFAULT_DISK_BYTES: Final = 64 * 1024 * 1024
#: No disk hangs or crawls for longer, whatever becomes of who wanted it to.
LONGEST_HANG_S: Final = 300.0
#: What a write to a slow disk takes, about.
SLOW_S: Final = 0.2
#: For a broker to let go of the files of a dead disk.
_LET_GO_S: Final = 20.0
_POLL_S: Final = 0.1


def why_not(kind: DiskKind) -> str | None:
    """The reason why this machine or this user cannot have such disks, or None."""
    if kind == "plain":
        return None
    return fault_fs.why_not() if kind == "fuse" else mounts.why_not(kind)


def best_kind() -> DiskKind:
    """The kind with the most and the most real faults that this machine allows."""
    kinds: tuple[DiskKind, ...] = ("ext4", "fuse")
    return next((kind for kind in kinds if why_not(kind) is None), "plain")


def make_disk(kind: DiskKind, *, home: Path, size_bytes: int = DEFAULT_DISK_BYTES) -> LogDisk:
    """A fresh disk; what is not a mount of its own lies under ``home``.

    :param size_bytes: of ext4, xfs (320 MiB at least) and tmpfs.
    :raises DiskKitError: if the machine cannot: see :func:`why_not`.
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
    """One disk with one log directory on it. Not to be used from two threads at once."""

    def __init__(self, kind: DiskKind, path: Path) -> None:
        self.kind = kind
        #: The log directory, as a broker is configured with it.
        self.path = path
        self.fault: Fault | None = None
        self._undo: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<{self.kind} disk {self.path}: {self.fault or 'good'}>"

    @property
    @abstractmethod
    def faults(self) -> frozenset[Fault]:
        """What this kind of disk can do."""

    def fail(self, fault: Fault) -> None:
        """Fail in this way from now on, until :meth:`heal`.

        :raises DiskKitError: if this kind of disk cannot, or if it has failed already.
        """
        if fault not in FAULTS:
            raise DiskKitError(f"no such fault: {fault}; there are {', '.join(FAULTS)}")
        if fault not in self.faults:
            able = [f"{kind} ({why_not(kind) or 'possible here'})" for kind in _able(fault)]
            raise DiskKitError(f"a {self.kind} disk cannot {fault}; others can: {', '.join(able)}")
        if self.fault is not None:
            raise DiskKitError(f"{self.path} has failed already ({self.fault}): heal it first")
        self._undo = self._begin(fault)
        self.fault = fault

    def heal(self) -> None:
        """Be a good disk again. Nothing happens to one that is.

        :raises DiskKitError: if a broker does not let go of the files of a disk that has to be
            repaired; it does as soon as its directory is offline.
        """
        if self._undo is not None:
            self._undo()
        self.fault = self._undo = None

    @abstractmethod
    def close(self) -> None:
        """The end of the disk, and of everything on it."""

    def _begin(self, fault: Fault) -> Callable[[], None]:
        """Let it fail; returns what undoes that."""
        mode = stat.S_IMODE(self.path.stat().st_mode)
        if fault == "chmod":
            self.path.chmod(0)
            return lambda: self.path.chmod(mode)
        raise AssertionError(f"{fault} of {self}")


def _able(fault: Fault) -> list[DiskKind]:
    kinds: dict[DiskKind, frozenset[Fault]] = {
        "ext4": MountedDisk.FAULTS["ext4"],
        "xfs": MountedDisk.FAULTS["xfs"],
        "tmpfs": MountedDisk.FAULTS["tmpfs"],
        "fuse": FuseDisk.FAULTS,
    }
    return [kind for kind, faults in kinds.items() if fault in faults]


class PlainDisk(LogDisk):
    """A directory, with another one beside it for what is not to be seen."""

    FAULTS: Final[frozenset[Fault]] = frozenset({"chmod", "unmount", "wipe"})

    def __init__(self, home: Path) -> None:
        super().__init__("plain", home / "logs")
        self._aside = home / "aside"
        self.path.mkdir()

    @property
    def faults(self) -> frozenset[Fault]:
        return self.FAULTS

    def close(self) -> None:
        self.heal()
        shutil.rmtree(self._aside, ignore_errors=True)

    def _begin(self, fault: Fault) -> Callable[[], None]:
        if fault == "chmod":
            return super()._begin(fault)
        shutil.rmtree(self._aside, ignore_errors=True)
        self.path.rename(self._aside)
        if fault == "wipe":
            _make_like(self.path, self._aside)
            return _nothing
        return lambda: _rename_over(self._aside, self.path)


class MountedDisk(LogDisk):
    """A file system of its own; the log directory is a folder on it."""

    _EVERYWHERE: Final[frozenset[Fault]] = frozenset({"chmod", "full", "unmount", "wipe"})
    FAULTS: Final[dict[MountedKind, frozenset[Fault]]] = {
        "ext4": _EVERYWHERE | {"eio", "readonly", "hang", "slow"},
        "xfs": _EVERYWHERE | {"eio", "hang", "slow"},
        "tmpfs": _EVERYWHERE,
    }

    def __init__(self, kind: MountedKind, size_bytes: int) -> None:
        self._stack = contextlib.ExitStack()
        self._disk: Disk = self._stack.enter_context(mounts.mounted(kind, size_bytes=size_bytes))
        self._can = self.FAULTS[kind]
        super().__init__(kind, Path(self._disk.path, "logs"))
        self.path.mkdir()

    @property
    def faults(self) -> frozenset[Fault]:
        return self._can

    def close(self) -> None:
        if self.fault in ("hang", "slow"):
            # Else whoever has a file open there could not even be killed.
            self.heal()
        self._stack.close()

    def _begin(self, fault: Fault) -> Callable[[], None]:
        disk = self._disk
        match fault:
            case "eio":
                disk.shut_down()
                return self._repair
            case "readonly":
                disk.abort()
                return self._repair
            case "full":
                disk.fill()
                return disk.free_space
            case "hang":
                return Freeze(disk, at_most_s=LONGEST_HANG_S).thaw
            case "slow":
                return Freeze(disk, at_most_s=LONGEST_HANG_S, at_a_time_s=SLOW_S).thaw
            case "unmount":
                disk.set_aside()
                return disk.put_back
            case "wipe":
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


class FuseDisk(LogDisk):
    """A file system of this project's over a folder."""

    _OF_FS: Final[tuple[FsFault, ...]] = get_args(FsFault)
    FAULTS: Final[frozenset[Fault]] = frozenset({"chmod", "unmount", "wipe", *_OF_FS})

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
    def faults(self) -> frozenset[Fault]:
        return self.FAULTS

    def close(self) -> None:
        self._fs.unmount()

    def _mount(self) -> FaultFs:
        return FaultFs.mount(self.path.parent, backing=self._backing, home=self._home)

    def _begin(self, fault: Fault) -> Callable[[], None]:
        match fault:
            case "eio" | "readonly" | "full" | "hang" | "slow":
                self._fs.fail(fault, delay_s=SLOW_S)
                return self._fs.heal
            case "unmount" | "wipe":
                self._fs.unmount()
                if fault == "unmount":
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
    """An empty directory with the owner and the mode of ``model``."""
    found = model.stat()
    path.mkdir()
    path.chmod(stat.S_IMODE(found.st_mode))
    os.chown(path, found.st_uid, found.st_gid)


def _rename_over(source: Path, target: Path) -> None:
    """Somebody may have made a ``target`` meanwhile; what is in it goes."""
    shutil.rmtree(target, ignore_errors=True)
    source.rename(target)


def _nothing() -> None:
    """A new disk is a good one."""
