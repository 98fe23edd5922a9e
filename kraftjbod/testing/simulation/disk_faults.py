"""WIRE. ``DiskFaults``: the faults of one simulated disk, each of which lasts until it is healed.

Random choices use the disk's own generator. Losses that last are ``DiskFault.WIPE``,
:meth:`SimulatedDisk.power_cut`, and bits that rot (:meth:`MemFile.rot`).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from kraftjbod.storage.dir_names import LOG_SUFFIX
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_file import MemFile
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from kraftjbod.testing.simulation.simulated_thread import Gate

#: The failing operation is at most the one with this number.
_LATEST: Final = 12
#: Writeback fails at most after this number of syncs or writes.
_LATEST_SYNC: Final = 4
#: Share of the failed writebacks that the kernel started in the background before a sync.
_IN_BACKGROUND: Final = 0.5
#: Share of the failed writebacks that affect log files, and not other files.
_OF_LOGS: Final = 0.7
_SLOWNESS: Final = 40.0
#: Errors of a single operation: a bad medium, a file system that detects its own damage, and a
#: read-only file system.
_ERRNOS: Final = (errno.EIO, errno.EIO, errno.EUCLEAN, errno.EROFS)
#: Names that backups, editors and network file systems create.
_CLUTTER: Final = (
    ".nfs0000000000a1b2c3",
    "core",
    "lost+found.tmp",
    "00000000000000000007.log~",
    "recovery-point-offset-checkpoint.bak",
    "link-to-an-old-disk",
    "t-0.orig",
)
#: Kinds of operations that can fail once.
_KINDS: Final = (
    "open",
    "write_at",
    "read_at",
    "copy_from",
    "truncate",
    "sync",
    "sync_dir",
    "rename",
    "make_dirs",
    "unlink_if_exists",
    "remove_tree",
    "list_dir",
)
#: The faults that :meth:`DiskFaults.begin_fault` injects.
FAULTS: Final = (
    *(DiskFault.EIO, DiskFault.EIO_ONCE, DiskFault.WRITEBACK, DiskFault.CLUTTER, DiskFault.HANG),
    *(DiskFault.SLOW, DiskFault.FULL, DiskFault.UNMOUNT, DiskFault.WIPE),
)


@dataclass(slots=True, kw_only=True)
class _OneError:
    kind: str
    countdown: int
    number: int


class Breakable(Protocol):
    """The attributes of a simulated disk that :class:`DiskFaults` changes.

    ``vfs`` is the content, which an unmount or a wipe replaces. ``gate`` is closed while the disk
    hangs. ``slowness`` is the factor of all latencies; 1 without a fault.
    """

    path: str
    vfs: MemVfs
    gate: Gate
    slowness: float
    rng: random.Random


class DiskFaults:
    """Injects faults into one disk, several at a time if necessary.

    :meth:`begin_fault` begins one of :data:`FAULTS`, and :meth:`heal` ends all or the named ones.
    The disk calls :meth:`strike` and :meth:`strike_dirty` at its operations, which lets them fail.
    """

    def __init__(self, disk: Breakable) -> None:
        self._disk = disk
        self._fails_all = False
        self._one_error: _OneError | None = None
        #: Syncs or writes of dirty files until writeback fails; 0: it does not fail.
        self._syncs_left = 0
        #: Whether writeback fails in a sync, and not before it.
        self.fails_in_sync = True
        #: Suffix of the file names to which the count applies.
        self._syncs_of = ""
        #: The file whose writeback failed last.
        self._not_written: MemFile | None = None
        self._is_cluttered = False
        #: Paths that the clutter created last. Names in a renamed directory are not removed.
        self._clutter: list[str] = []
        self._hangs_at_swap = False
        #: The content of the disk while it is unmounted.
        self._away: MemVfs | None = None

    def begin_fault(self, fault: DiskFault) -> None:
        disk = self._disk
        match fault:
            case DiskFault.EIO:
                self._fails_all = True
            case DiskFault.EIO_ONCE:
                kind, countdown = disk.rng.choice(_KINDS), disk.rng.randint(1, _LATEST)
                number = disk.rng.choice(_ERRNOS)
                self._one_error = _OneError(kind=kind, countdown=countdown, number=number)
            case DiskFault.WRITEBACK:
                self._syncs_left = disk.rng.randint(1, _LATEST_SYNC)
                self._syncs_of = LOG_SUFFIX if disk.rng.random() < _OF_LOGS else ""
                self.fails_in_sync = disk.rng.random() >= _IN_BACKGROUND
            case DiskFault.CLUTTER:
                self._is_cluttered = True
            case DiskFault.HANG:
                disk.gate.close()
            case DiskFault.SLOW:
                disk.slowness = _SLOWNESS
            case DiskFault.FULL:
                disk.vfs.capacity_bytes = disk.vfs.used_bytes()
            case DiskFault.UNMOUNT:
                self._away = self._away or disk.vfs
                disk.vfs = self._empty()
            case DiskFault.WIPE:
                self._away = None
                disk.vfs = self._empty()
            case _:
                raise AssertionError(f"a simulated disk cannot {fault}")

    def hang_at_swap(self) -> None:
        """Let the disk hang from the next rename of a replica's directory on, including that
        rename, until the fault HANG is healed."""
        self._hangs_at_swap = True

    def heal(self, *only: DiskFault) -> None:
        """End the faults in ``only``, by default all. A wiped disk stays empty.

        Hanging operations continue, and an unmounted disk is mounted again.
        """
        for fault in only or FAULTS:
            self._heal(fault)

    def _heal(self, fault: DiskFault) -> None:
        disk = self._disk
        match fault:
            case DiskFault.EIO:
                self._fails_all = False
            case DiskFault.EIO_ONCE:
                self._one_error = None
            case DiskFault.WRITEBACK:
                self._end_writeback()
            case DiskFault.CLUTTER:
                self._is_cluttered = False
                self._remove_clutter()
            case DiskFault.HANG:
                self._hangs_at_swap = False
                disk.gate.open()
            case DiskFault.SLOW:
                disk.slowness = 1.0
            case DiskFault.FULL:
                for files in (disk.vfs, self._away or disk.vfs):
                    files.capacity_bytes = None
            case DiskFault.UNMOUNT:
                if self._away is not None:
                    disk.vfs, self._away = self._away, None

    def _end_writeback(self) -> None:
        self._syncs_left = 0
        if self._not_written is not None:
            self._not_written.undo_unreported_writeback()

    def _remove_clutter(self) -> None:
        for path in self._clutter:
            self._disk.vfs.unlink_if_exists(path)
        self._clutter.clear()

    def power_cut(self) -> None:
        """Apply a power cut to the content that is hidden while the disk is unmounted.

        Unsynced data may be lost. :meth:`SimulatedDisk.power_cut` does the same to mounted content.
        """
        if self._away is not None:
            self._away = self._away.crash_clone(self._disk.rng.getrandbits(32))

    def strike(self, kind: str, path: str) -> None:
        """Apply a due fault to an operation of ``kind`` on ``path``.

        :raises OSError: a fault lets this operation fail.
        """
        if self._hangs_at_swap and kind == "rename" and self._is_replica(path):
            self._hangs_at_swap = False
            self._disk.gate.close()
            self._disk.gate.pass_through()
        if self._fails_all:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if number := self._one_error_of(kind):
            raise OSError(number, os.strerror(number), path)

    @contextmanager
    def cluttered(self, vfs: MemVfs, directory: str) -> Iterator[None]:
        """Context in which ``directory`` is listed: before, names of another program are added, and
        afterwards some of them are removed. No effect unless the fault CLUTTER is active."""
        if not self._is_cluttered:
            yield
            return
        rng = self._disk.rng
        names = [f"{directory}/{name}" for name in rng.sample(_CLUTTER, rng.randint(1, 3))]
        made = [name for name in names if not vfs.exists(name)]
        for name in made:
            vfs.unlink_if_exists(name)
            if rng.random() < 0.5:
                vfs.make_link(name)
            elif vfs.capacity_bytes is None and vfs.capacity_inodes is None:
                vfs.open(name, OpenMode.CREATE).write_at(0, [b"not ours"])
        yield
        for name in made:
            if rng.random() < 0.5:
                vfs.unlink_if_exists(name)
            else:
                self._clutter.append(name)

    def strike_dirty(self, file: MemFile, path: str, *, is_sync: bool = False) -> None:
        """Let a writeback of dirty pages of ``file`` fail, if the injected fault is due at this
        operation.

        :param is_sync: whether the operation is a sync, or else a write.
        """
        if not self._syncs_left or is_sync is not self.fails_in_sync:
            return
        if not path.endswith(self._syncs_of) or not file.is_dirty:
            return
        self._syncs_left -= 1
        if not self._syncs_left:
            file.fail_writeback(self._disk.rng)
            self._not_written = file

    def _is_replica(self, path: str) -> bool:
        """Return whether ``path`` is a replica's directory, and not a file of the log directory.

        The log directory replaces its own files by a rename of a new ``.tmp`` file.
        """
        above, _, name = path.rpartition("/")
        return above == self._disk.path and not name.endswith(".tmp")

    def _one_error_of(self, kind: str) -> int:
        """Return the errno of this operation if it is the one that fails, else 0."""
        error = self._one_error
        if error is None or error.kind != kind:
            return 0
        error.countdown -= 1
        if error.countdown > 0:
            return 0
        self._one_error = None
        return error.number

    def _empty(self) -> MemVfs:
        disk = self._disk
        files = MemVfs()
        files.device_number = disk.vfs.device_number + _NEXT_DEVICE
        files.make_dirs(disk.path)
        files.sync_dir(disk.path)
        return files


#: Device numbers of replaced disks, which must differ from those of all others.
_NEXT_DEVICE: Final = 1_000
