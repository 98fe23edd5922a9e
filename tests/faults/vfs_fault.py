"""``FaultVfs``: any ``Vfs`` with injected faults.

A :class:`Fault` selects operations by kind, path and count, and defines its effect.
Kinds are the method names of ``Vfs`` and ``VfsFile``. A ``FaultVfs`` is thread-safe, and works in
daemons too.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from errno import EOPNOTSUPP
from fnmatch import fnmatch
from os import strerror
from typing import TypeVar

from kraftjbod.protocol.framing import Buffer
from kraftjbod.storage.vfs import (
    DirEntry,
    Extent,
    OpenMode,
    Space,
    Vfs,
    VfsFile,
    sync_in_order,
)
from kraftjbod.testing.faults import DiskFault

T = TypeVar("T")

#: Operations that change files, and so can fail in the middle of a workload.
WRITING_KINDS = frozenset(
    {
        "write_at",
        "copy_from",
        "truncate",
        "sync",
        "make_dirs",
        "rename",
        "unlink_if_exists",
        "remove_tree",
        "sync_dir",
        "open",
    }
)


#: The faults of an operation. ``HANG`` and ``HANG_EIO`` last until :meth:`FaultVfs.release`.
FAULTS = frozenset(
    {
        *(DiskFault.EIO, DiskFault.CHMOD, DiskFault.READONLY, DiskFault.FULL),
        *(DiskFault.SHORT_WRITE, DiskFault.ROT, DiskFault.SLOW),
        *(DiskFault.HANG, DiskFault.HANG_EIO),
    }
)


@dataclass(slots=True, kw_only=True)
class Fault:
    """Effect on the ``nth`` matching operation, and on all later ones if ``sticky``."""

    effect: DiskFault = DiskFault.EIO
    #: Error of the operations that fail, if it is not the one of the fault.
    errno: int | None = None
    kinds: frozenset[str] | None = None
    path: str = "*"
    nth: int = 1
    sticky: bool = True
    delay_s: float = 0.0
    #: Number of matching operations so far.
    seen: int = field(default=0, init=False)
    #: Number of affected operations so far.
    hits: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        assert self.effect in FAULTS, self.effect

    def strikes(self, kind: str, path: str) -> bool:
        if self.kinds is not None and kind not in self.kinds:
            return False
        if not fnmatch(path, self.path):
            return False
        self.seen += 1
        struck = self.seen >= self.nth if self.sticky else self.seen == self.nth
        self.hits += struck
        return struck


class FaultVfs:
    """``inner`` with the injected faults."""

    def __init__(self, inner: Vfs) -> None:
        self.inner = inner
        self.faults: list[Fault] = []
        #: Result of ``space`` if set.
        self.space_override: Space | None = None
        #: Called before each operation with its kind and path.
        self.on_operation: Callable[[str, str], None] | None = None
        self._mutex = threading.Lock()
        self._released = threading.Event()

    def inject(self, fault: Fault) -> Fault:
        with self._mutex:
            self.faults.append(fault)
        if fault.effect in (DiskFault.HANG_EIO, DiskFault.HANG):
            self._released.clear()
        return fault

    def clear(self) -> None:
        """Remove all faults, and release hung operations."""
        with self._mutex:
            self.faults.clear()
        self.release()

    def release(self) -> None:
        """Release hung operations."""
        self._released.set()

    def do(self, kind: str, path: str, op: Callable[[], T]) -> T:
        """Carry out ``op`` unless a fault prevents it."""
        fault = self.struck_by(kind, path)
        if fault is not None and fault.effect is not DiskFault.ROT:
            self.suffer(fault, path)
        done = op()
        self.did(kind, path, len(done) if isinstance(done, bytes | list) else 0)
        return done

    def did(self, kind: str, path: str, size_bytes: int = 0) -> None:
        """Called after a successful operation with the bytes read or written, or names listed."""

    def struck_by(self, kind: str, path: str) -> Fault | None:
        if self.on_operation is not None:
            self.on_operation(kind, path)
        with self._mutex:
            struck = [fault for fault in self.faults if fault.strikes(kind, path)]
        return struck[0] if struck else None

    def suffer(self, fault: Fault, path: str) -> None:
        if fault.effect is DiskFault.SLOW:
            time.sleep(fault.delay_s)
            return
        if fault.effect in (DiskFault.HANG_EIO, DiskFault.HANG):
            self._released.wait()
        if fault.effect is DiskFault.HANG:
            return
        number = fault.errno or fault.effect.error_number
        raise OSError(number, strerror(number), path)

    # -- the Vfs ----------------------------------------------------------------------------

    def open(self, path: str, mode: OpenMode) -> VfsFile:
        return FaultFile(self, path, self.do("open", path, lambda: self.inner.open(path, mode)))

    def open_if_exists(self, path: str) -> VfsFile | None:
        found = self.do("open_if_exists", path, lambda: self.inner.open_if_exists(path))
        return None if found is None else FaultFile(self, path, found)

    def open_stream(self, path: str) -> io.BufferedReader:
        return self.do("open_stream", path, lambda: self.inner.open_stream(path))

    def read_if_exists(self, path: str) -> bytes | None:
        return self.do("read_if_exists", path, lambda: self.inner.read_if_exists(path))

    def exists(self, path: str) -> bool:
        return self.do("exists", path, lambda: self.inner.exists(path))

    def is_dir(self, path: str) -> bool:
        return self.do("is_dir", path, lambda: self.inner.is_dir(path))

    def real_path(self, path: str) -> str:
        return self.do("real_path", path, lambda: self.inner.real_path(path))

    def extent_if_exists(self, path: str) -> Extent | None:
        return self.do("extent_if_exists", path, lambda: self.inner.extent_if_exists(path))

    def list_dir(self, path: str, *, sized: str | None = None) -> list[DirEntry]:
        return self.do("list_dir", path, lambda: self.inner.list_dir(path, sized=sized))

    def make_dirs(self, path: str) -> None:
        self.do("make_dirs", path, lambda: self.inner.make_dirs(path))

    def rename(self, source: str, target: str) -> None:
        self.do("rename", source, lambda: self.inner.rename(source, target))

    def unlink_if_exists(self, path: str) -> None:
        self.do("unlink_if_exists", path, lambda: self.inner.unlink_if_exists(path))

    def remove_tree(self, path: str) -> None:
        self.do("remove_tree", path, lambda: self.inner.remove_tree(path))

    def sync_dir(self, path: str) -> None:
        self.do("sync_dir", path, lambda: self.inner.sync_dir(path))

    def sync_side_by_side(
        self, syncs: Sequence[Callable[[], None]], beat: Callable[[], None]
    ) -> None:
        sync_in_order(syncs, beat)

    def device(self, path: str) -> int:
        return self.do("device", path, lambda: self.inner.device(path))

    def space(self, path: str) -> Space:
        found = self.do("space", path, lambda: self.inner.space(path))
        return self.space_override or found

    def try_lock(self, path: str) -> VfsFile | None:
        held = self.do("try_lock", path, lambda: self.inner.try_lock(path))
        return None if held is None else FaultFile(self, path, held)

    def let_go(self, root: str) -> None:
        self.inner.let_go(root)

    def close_let_go(self, root: str) -> None:
        self.inner.close_let_go(root)


class FaultFile:
    """An open file of a :class:`FaultVfs`."""

    def __init__(self, vfs: FaultVfs, path: str, inner: VfsFile) -> None:
        self._vfs = vfs
        self._path = path
        self._inner = inner

    def size(self) -> int:
        return self._inner.size()

    def read_at(self, position: int, size: int) -> bytes | bytearray:
        return self._read("read_at", lambda: self._inner.read_at(position, size))

    def read_cached_at(self, position: int, size: int) -> memoryview:
        cached = self._inner.read_cached_at
        return memoryview(self._read("read_cached_at", lambda: bytes(cached(position, size))))

    def _read(self, kind: str, op: Callable[[], bytes | bytearray]) -> bytes | bytearray:
        fault = self._vfs.struck_by(kind, self._path)
        if fault is None:
            read = op()
            self._vfs.did(kind, self._path, len(read))
            return read
        if fault.effect is not DiskFault.ROT:
            self._vfs.suffer(fault, self._path)
            return op()
        data = bytearray(op())
        if data:
            data[len(data) // 2] ^= 0x10
        return data

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        fault = self._vfs.struck_by("write_at", self._path)
        if fault is not None:
            if fault.effect is DiskFault.SHORT_WRITE:
                whole = b"".join(buffers)
                self._inner.write_at(position, [whole[: len(whole) // 2]])
            self._vfs.suffer(fault, self._path)
        self._inner.write_at(position, buffers)
        self._vfs.did("write_at", self._path, sum(map(len, buffers)))

    def copy_from(self, source: VfsFile, position: int, size: int) -> int:
        assert isinstance(source, FaultFile), source
        inner = source._inner
        if (fault := source._vfs.struck_by("read_at", source._path)) is not None:
            source._vfs.suffer(fault, source._path)
        if (fault := self._vfs.struck_by("copy_from", self._path)) is not None:
            if fault.effect is DiskFault.SHORT_WRITE:
                self._inner.copy_from(inner, position, size // 2)
            self._vfs.suffer(fault, self._path)
        return self._inner.copy_from(inner, position, size)

    def forget_cached(self, position: int, size: int) -> None:
        self._vfs.do("forget_cached", self._path, lambda: self._inner.forget_cached(position, size))

    def truncate(self, size: int) -> None:
        self._vfs.do("truncate", self._path, lambda: self._inner.truncate(size))

    def sync(self) -> None:
        self._vfs.do("sync", self._path, self._inner.sync)

    def close(self) -> None:
        self._vfs.do("close", self._path, self._inner.close)


def no_cached_reads() -> Fault:
    """Return the lack of a file system that cannot read from the page cache alone."""
    return Fault(errno=EOPNOTSUPP, kinds=frozenset({"read_cached_at"}))


def without_cached_reads(vfs: Vfs) -> FaultVfs:
    """Return ``vfs`` on such a file system: every read takes place in the directory's thread."""
    lacking = FaultVfs(vfs)
    lacking.inject(no_cached_reads())
    return lacking
