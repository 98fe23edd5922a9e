"""WIRE. ``SimulatedDisk``: one disk, and :class:`ProcessVfs`, the disks as one process sees them.

A file operation takes a random time and takes effect at its end. While the disk hangs
(:attr:`SimulatedDisk.gate`), no operation ends. When a process dies, its files are closed, its
locks are released, and its unfinished operations never take effect. The space of a removed
file is free once its last descriptor is closed, and freeing takes time by the file's size.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kraftjbod.protocol.framing import Buffer
from kraftjbod.storage.vfs import DirEntry, Extent, OpenMode, Space, VfsFile, sync_in_order
from kraftjbod.testing.simulation.disk_faults import DiskFaults
from kraftjbod.testing.simulation.memory_file import MemFile, MemLock
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from kraftjbod.testing.simulation.simulated_thread import Gate, pause
from kraftjbod.testing.simulation.world import World

#: Latencies in microseconds, minimum and maximum; other operations take as long as ``open``.
_LATENCY_US: Final[Mapping[str, tuple[int, int]]] = {
    "open": (5, 40),
    "write_at": (20, 200),
    "read_at": (20, 300),
    "copy_from": (50, 1_000),
    "sync": (300, 4_000),
    "sync_dir": (300, 4_000),
    "close": (1, 3),
}
_OTHER_LATENCY_US: Final = _LATENCY_US["open"]
#: Share of non-waiting reads before which their clean pages leave memory.
_EVICTED: Final = 0.05
#: Share of non-waiting reads that find a page locked.
_LOCKED: Final = 0.02
#: Share of non-waiting reads without a cached page that make the kernel read, and read ahead.
_READ_BY_MISS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCosts:
    """Costs of an operation in addition to its latency."""

    bytes_per_us: float = 200.0
    """Bytes that the disk reads or writes in a microsecond."""
    freed_bytes_per_us: float = 20.0
    """Bytes of removed files that the disk frees in a microsecond."""
    us_per_name: float = 0.5
    """Microseconds per name that is listed or removed."""


class SimulatedDisk:
    """A disk of a simulated host, with faults and the time that operations take.

    :param path: mount point; each disk of a world has a different path.
    :param number: its device number.
    """

    def __init__(self, world: World, host: str, path: str, number: int) -> None:
        self.world = world
        self.host = host
        self.path = path
        self.vfs = MemVfs()
        self.vfs.device_number = number
        #: Closed while the disk hangs.
        self.gate = Gate()
        #: Factor of all latencies.
        self.slowness = 1.0
        self.costs = DiskCosts()
        #: The faults of the disk.
        self.faults = DiskFaults(self)
        self.rng = world.rng_of(f"disk {path}")
        #: Number of file operations so far, without non-waiting ones.
        self.operations = 0
        #: Called before each of these operations takes effect.
        self.on_operation: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<SimulatedDisk {self.path}>"

    def before(
        self, kind: str, path: str, size: int = 0, *, freed_bytes: int = 0, names: int = 0
    ) -> None:
        """Prepare a file operation: let its duration pass, wait while the disk hangs, let a due
        fault fail it, and add it to the trace.

        :param kind: name of the operation, such as ``rename``.
        :param size: bytes to read or write.
        :param freed_bytes: bytes of the files that it removes.
        :param names: number of names that it lists or removes.
        :raises OSError: a fault lets the operation fail.
        """
        low, high = _LATENCY_US.get(kind, _OTHER_LATENCY_US)
        took_us = low + self.rng.random() * (high - low) + size / self.costs.bytes_per_us
        took_us += freed_bytes / self.costs.freed_bytes_per_us + names * self.costs.us_per_name
        pause(int(took_us * self.slowness))
        self.gate.pass_through()
        if kind != "let_go":  # No caller sees the result of that close.
            self.faults.strike(kind, path)
        self.operations += 1
        self.on_operation()
        self.world.trace.note(self.host, "disk", f"{kind} {path} {size}")

    def read_cached(self, file: MemFile, position: int, size: int) -> memoryview:
        """Read bytes from memory.

        :raises BlockingIOError: the first byte is not in memory, or its page is locked.
        """
        if self.rng.random() < _EVICTED:
            file.evict(position, size)
        try:
            if self.rng.random() < _LOCKED:
                raise error(errno.EAGAIN, self.path)
            return file.read_cached_at(position, size)
        except BlockingIOError:
            if self.rng.random() < _READ_BY_MISS:
                file.read_ahead(position, size)
            raise

    def swap_with(self, other: SimulatedDisk) -> None:
        """Exchange the two disks: each content, with its device number, is then at the other's
        path."""
        mine, theirs = self.vfs, other.vfs
        self.vfs = theirs.mounted(was=other.path, now=self.path)
        other.vfs = mine.mounted(was=self.path, now=other.path)

    def power_cut(self) -> None:
        """Apply a power cut to the content: unsynced data is kept, lost, or replaced by garbage, at
        random."""
        self.faults.power_cut()
        left = self.vfs.crash_clone(self.rng.getrandbits(32))
        left.device_number = self.vfs.device_number
        self.vfs = left


class ProcessVfs:
    """A :class:`~kraftjbod.storage.vfs.Vfs` over several disks, each below its path."""

    def __init__(
        self, disks: Mapping[str, SimulatedDisk], *, may_open: Callable[[], bool] = lambda: True
    ) -> None:
        """
        :param disks: by path; the mapping may change later.
        :param may_open: whether the process has a descriptor left; called before each open.
        """
        self._disks = disks
        self._may_open = may_open
        self._given_up: list[str] = []
        #: Files that the process has open, in the order in which they were opened.
        self._open: dict[ProcessFile, None] = {}
        #: Whether the process has ended.
        self.is_detached = False

    def detach(self) -> None:
        """Close all descriptors, because the process has ended. Later operations fail with EIO."""
        self.is_detached = True
        for file in list(self._open):
            self.forget(file)

    @property
    def open_files(self) -> list[tuple[str, MemFile]]:
        """Return the open files, each with the path by which it was opened, without locks."""
        return [
            (file.path, file.inner) for file in self._open if not isinstance(file.inner, MemLock)
        ]

    def note_open(self, file: ProcessFile) -> None:
        self._open[file] = None
        file.inner.holders += 1

    def forget(self, file: ProcessFile) -> None:
        """Close the descriptor of ``file``, unless it is closed already."""
        if file in self._open:
            del self._open[file]
            file.inner.holders -= 1

    def disk_of(self, path: str) -> SimulatedDisk:
        """Return the disk with the longest mount point that contains ``path``.

        :raises OSError: EIO after the process has ended; ENOENT if no disk contains ``path``.
        """
        if self.is_detached:
            raise error(errno.EIO, path)
        place = path
        while place and place != "/":
            if place in self._disks:
                return self._disks[place]
            place = place.rpartition("/")[0]
        raise error(errno.ENOENT, path)

    def check(self, path: str, late: int) -> None:
        """Require that the process runs and that :meth:`let_go` did not release ``path``.

        :raises OSError: the errno is ``late``.
        """
        if self.is_detached or (self._given_up and path.startswith(tuple(self._given_up))):
            raise error(late, path)

    def _begin(
        self, kind: str, path: str, size: int = 0, *, freed_bytes: int = 0, names: int = 0
    ) -> MemVfs:
        disk = self.disk_of(path)
        disk.before(kind, path, size, freed_bytes=freed_bytes, names=names)
        self.check(path, errno.ESTALE)
        return disk.vfs

    def _require_descriptor(self, path: str) -> None:
        if not self._may_open():
            raise error(errno.EMFILE, path)

    def open(self, path: str, mode: OpenMode) -> ProcessFile:
        self._require_descriptor(path)
        vfs = self._begin("open", path)
        return ProcessFile(self, path, vfs.open(path, mode))

    def open_if_exists(self, path: str) -> ProcessFile | None:
        self._require_descriptor(path)
        found = self._begin("open", path).open_if_exists(path)
        return None if found is None else ProcessFile(self, path, found)

    def open_stream(self, path: str) -> io.BufferedReader:
        self._require_descriptor(path)
        return self._begin("open_stream", path, self._size(path)).open_stream(path)

    def read_if_exists(self, path: str) -> bytes | None:
        self._require_descriptor(path)
        return self._begin("read_if_exists", path, self._size(path)).read_if_exists(path)

    def _size(self, path: str) -> int:
        extent = self.disk_of(path).vfs.extent_if_exists(path)
        return 0 if extent is None else extent.size_bytes

    def exists(self, path: str) -> bool:
        return self._begin("exists", path).exists(path)

    def is_dir(self, path: str) -> bool:
        return self._begin("is_dir", path).is_dir(path)

    def real_path(self, path: str) -> str:
        return MemVfs().real_path(path)

    def extent_if_exists(self, path: str) -> Extent | None:
        return self._begin("extent_if_exists", path).extent_if_exists(path)

    def list_dir(self, path: str, *, sized: str | None = None) -> list[DirEntry]:
        self._require_descriptor(path)
        vfs = self._begin("list_dir", path, names=self.disk_of(path).vfs.names_in(path))
        with self.disk_of(path).faults.cluttered(vfs, path):
            return vfs.list_dir(path, sized=sized)

    def make_dirs(self, path: str) -> None:
        self._begin("make_dirs", path).make_dirs(path)

    def rename(self, source: str, target: str) -> None:
        vfs = self._begin("rename", source)
        if self.disk_of(target).vfs is not vfs:
            raise error(errno.EXDEV, target)
        vfs.rename(source, target)

    def unlink_if_exists(self, path: str) -> None:
        freed_bytes = self.disk_of(path).vfs.unheld_bytes(path)
        self._begin("unlink_if_exists", path, freed_bytes=freed_bytes).unlink_if_exists(path)

    def remove_tree(self, path: str) -> None:
        vfs = self.disk_of(path).vfs
        weight = {"freed_bytes": vfs.unheld_bytes(path), "names": vfs.names_in(path)}
        self._begin("remove_tree", path, **weight).remove_tree(path)

    def sync_dir(self, path: str) -> None:
        self._require_descriptor(path)
        self._begin("sync_dir", path).sync_dir(path)

    def sync_side_by_side(
        self, syncs: Sequence[Callable[[], None]], beat: Callable[[], None]
    ) -> None:
        sync_in_order(syncs, beat)

    def device(self, path: str) -> int:
        return self._begin("device", path).device(path)

    def space(self, path: str) -> Space:
        return self._begin("space", path).space(path)

    def try_lock(self, path: str) -> ProcessFile | None:
        self._require_descriptor(path)
        held = self._begin("try_lock", path).try_lock(path)
        return None if held is None else ProcessFile(self, path, held)

    def let_go(self, root: str) -> None:
        self._given_up.append(root.rstrip("/") + "/")
        disk = self.disk_of(root)
        disk.before("let_go", root)
        disk.vfs.let_go(root)
        for file in [file for file in self._open if file.path.startswith(self._given_up[-1])]:
            self.forget(file)

    def close_let_go(self, root: str) -> None:
        """Do nothing: let_go closes the descriptors."""


class ProcessFile:
    """A file that a process has opened with its :class:`ProcessVfs`: operations take time and may
    fail."""

    def __init__(self, vfs: ProcessVfs, path: str, inner: MemFile) -> None:
        self._vfs = vfs
        self.path = path
        self.inner = inner
        #: Like the kernel's errseq_t: an unreported error is reported to a new descriptor.
        self._errors = inner.reported_errors
        vfs.note_open(self)

    def __repr__(self) -> str:
        return f"<ProcessFile {self.path}>"

    def _begin(self, kind: str, size: int = 0, freed_bytes: int = 0) -> MemFile:
        self._vfs.check(self.path, errno.EBADF)
        self._vfs.disk_of(self.path).before(kind, self.path, size, freed_bytes=freed_bytes)
        self._vfs.check(self.path, errno.EBADF)
        return self.inner

    def size(self) -> int:
        self._vfs.check(self.path, errno.EBADF)
        return self.inner.size()

    def read_at(self, position: int, size: int) -> bytes | bytearray:
        return self._begin("read_at", size).read_at(position, size)

    def read_cached_at(self, position: int, size: int) -> memoryview:
        self._vfs.check(self.path, errno.EBADF)
        return self._vfs.disk_of(self.path).read_cached(self.inner, position, size)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        inner = self._begin("write_at", sum(map(len, buffers)))
        inner.write_at(position, buffers)
        self._vfs.disk_of(self.path).faults.strike_dirty(inner, self.path)

    def copy_from(self, source: VfsFile, position: int, size: int) -> int:
        assert isinstance(source, ProcessFile), source
        inner = source._begin("read_at", size)
        return self._begin("copy_from", size).copy_from(inner, position, size)

    def forget_cached(self, position: int, size: int) -> None:
        self._begin("forget_cached").forget_cached(position, size)

    def truncate(self, size: int) -> None:
        self._begin("truncate").truncate(size)

    def sync(self) -> None:
        inner = self._begin("sync")
        self._vfs.disk_of(self.path).faults.strike_dirty(inner, self.path, is_sync=True)
        if self._errors != inner.writeback_errors:
            self._errors = inner.reported_errors = inner.writeback_errors
            raise error(errno.EIO, self.path)
        inner.sync()

    def close(self) -> None:
        if self._vfs.is_detached:
            return
        inner = self.inner
        is_last = inner.holders == 1 and self._vfs.disk_of(self.path).vfs.is_unnamed(inner)
        self._begin("close", freed_bytes=inner.size() if is_last else 0).close()
        self._vfs.forget(self)


def error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
