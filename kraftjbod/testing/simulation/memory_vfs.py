"""WIRE. ``MemVfs``: a file system in memory that knows what a crash would leave of it.

* Bytes are certain up to the file's last ``sync``; of what was written since, a crash keeps some
  beginning, and may leave rubbish after it; or some of the sectors, and zeros for the others; or
  the new size alone, with zeros.
* Names are certain up to the directory's last ``sync_dir``; later changes survive in order, up to
  some point, as a journal would replay them.

``crash_clone(seed)`` gives one such outcome as a new ``MemVfs``. The files go on living.

``capacity_bytes`` and ``capacity_inodes`` can be set at any time: what would need more fails with
ENOSPC, and what there was room for is written, as on a real disk.
"""

from __future__ import annotations

import io
import posixpath
import random
import threading
from collections.abc import Callable, Sequence
from errno import EISDIR, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY
from functools import partial
from os import strerror
from typing import Any, Final

from kraftjbod.protocol.framing import Buffer
from kraftjbod.storage.vfs import DirEntry, Extent, OpenMode, Space, VfsFile

#: The bit that rots.
ONE_BIT: Final = 0x10
#: What a disk writes whole or not at all.
_SECTOR_BYTES: Final = 512
#: Share of the files with unsynced bytes that come back with their size and zeros.
_ZEROED: Final = 0.2


class MemFile:
    """One file's bytes, whatever its name is; every open file of that name is this object."""

    def __init__(self, free_bytes: Callable[[], int | None] = lambda: None) -> None:
        self.data = bytearray()
        self.synced = b""
        #: By how many bytes it may grow; None: without limit.
        self._free_bytes = free_bytes

    def size(self) -> int:
        return len(self.data)

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self.data[position : position + size])

    def read_cached_at(self, position: int, size: int) -> memoryview:
        return memoryview(self.read_at(position, size))

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        whole = b"".join(buffers)
        free_bytes = self._free_bytes()
        more = position + len(whole) - len(self.data)
        if free_bytes is not None and more > free_bytes:
            self._put(position, whole[: max(0, len(whole) - (more - free_bytes))])
            raise _error(ENOSPC, "a file in memory")
        self._put(position, whole)

    def _put(self, position: int, whole: bytes) -> None:
        if not whole:
            return
        if len(self.data) < position:
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(whole)] = whole

    def copy_from(self, source: VfsFile, position: int, size: int) -> int:
        data = source.read_at(position, size)
        self.write_at(position, [data])
        return len(data)

    def forget_cached(self, position: int, size: int) -> None:
        return

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))

    def sync(self) -> None:
        self.synced = bytes(self.data)

    def close(self) -> None:
        return

    def rot(self, position: int) -> None:
        """One bit of what is on the disk is another one from now on, and nobody is told."""
        self.data[position] ^= ONE_BIT
        if position < len(self.synced):
            synced = bytearray(self.synced)
            synced[position] ^= ONE_BIT
            self.synced = bytes(synced)

    def after_crash(self, rng: random.Random) -> MemFile:
        left = MemFile()
        common = _common_prefix(self.data, self.synced)
        if common < len(self.synced) and rng.random() < 0.5:
            # Cut or overwritten since: the old bytes may be what is on the disk.
            left.data = bytearray(self.synced)
        elif len(self.data) > common and rng.random() < _ZEROED:
            # The size was in the journal, and the blocks were not allocated yet.
            left.data = self.data[:common] + bytes(len(self.data) - common)
        elif len(self.data) > common + _SECTOR_BYTES and rng.random() < 0.3:
            left.data = self._torn(common, rng)
        else:
            left.data = self.data[: rng.randint(common, len(self.data))]
            if len(left.data) < len(self.data) and rng.random() < 0.3:
                left.data += rng.randbytes(rng.randint(1, 200))
        left.synced = bytes(left.data)
        return left

    def _torn(self, certain: int, rng: random.Random) -> bytearray:
        """The size is the new one, and each sector since ``certain`` was written or was not."""
        left = bytearray(self.data)
        for start in range(certain - certain % _SECTOR_BYTES, len(left), _SECTOR_BYTES):
            if rng.random() < 0.5:
                begin, end = max(start, certain), min(start + _SECTOR_BYTES, len(left))
                left[begin:end] = self.synced[begin:end].ljust(end - begin, b"\0")
        return left


class MemLock(MemFile):
    """A held lock."""

    def __init__(self, release: Callable[[], None]) -> None:
        super().__init__()
        self.close = release  # type: ignore[method-assign]  # One use, one effect.


_Tree = dict[str, "MemFile | None"]


class MemVfs:
    """A whole tree: path to file, or to None for a directory."""

    def __init__(self, *, usable_bytes: int = 1 << 30) -> None:
        self._tree: _Tree = {"/": None}
        #: Each change of names since the last sync_dir, as what it does to a tree.
        self._journal: list[Callable[[_Tree], None]] = []
        self._durable: _Tree = {"/": None}
        self._locks: set[str] = set()
        self._mutex = threading.RLock()
        self.usable_bytes = usable_bytes
        #: All files together; None: nothing is ever full.
        self.capacity_bytes: int | None = None
        #: How many files and directories there may be; None: any number.
        self.capacity_inodes: int | None = None
        self.device_number = 1

    def crash_clone(self, seed: int) -> MemVfs:
        """What is there after a power cut now, for this seed."""
        rng = random.Random(seed)
        with self._mutex:
            clone = MemVfs(usable_bytes=self.usable_bytes)
            tree = dict(self._durable)
            for change in self._journal[: rng.randint(0, len(self._journal))]:
                change(tree)
            done: dict[int, MemFile] = {}
            for path, file in tree.items():
                if file is not None:
                    done.setdefault(id(file), file.after_crash(rng))
                clone._tree[path] = None if file is None else done[id(file)]
                if file is not None:
                    done[id(file)]._free_bytes = clone._free_bytes
            clone._durable = dict(clone._tree)
            clone.capacity_bytes = self.capacity_bytes
            clone.capacity_inodes = self.capacity_inodes
            return clone

    def mounted(self, *, was: str, now: str) -> MemVfs:
        """The same disk, with what was below ``was`` below ``now``; all names are certain."""
        moved = MemVfs(usable_bytes=self.usable_bytes)
        moved.make_dirs(now)
        for path, file in self._tree.items():
            if path.startswith(f"{was}/"):
                moved._tree[now + path[len(was) :]] = file
        moved._journal.clear()
        moved._durable = dict(moved._tree)
        moved.device_number = self.device_number
        return moved

    def open(self, path: str, mode: OpenMode) -> MemFile:
        with self._mutex:
            if path in self._tree:
                file = self._tree[path]
                if file is None:
                    raise _error(EISDIR, path)
                return file
            if mode is not OpenMode.CREATE:
                raise _error(ENOENT, path)
            self._require_dir(_parent(path))
            self._require_inode(path)
            fresh = MemFile(self._free_bytes)
            self._change(lambda tree: tree.__setitem__(path, fresh))
            return fresh

    def open_if_exists(self, path: str) -> MemFile | None:
        with self._mutex:
            return self.open(path, OpenMode.READ) if path in self._tree else None

    def open_stream(self, path: str) -> io.BufferedReader:
        raw: Any = io.BytesIO(bytes(self.open(path, OpenMode.READ).data))
        return io.BufferedReader(raw)

    def read_if_exists(self, path: str) -> bytes | None:
        with self._mutex:
            file = self._tree.get(path)
            return None if file is None else bytes(file.data)

    def exists(self, path: str) -> bool:
        return path in self._tree

    def is_dir(self, path: str) -> bool:
        return path in self._tree and self._tree[path] is None

    def real_path(self, path: str) -> str:
        """There are no links here."""
        return posixpath.normpath(path)

    def extent_if_exists(self, path: str) -> Extent | None:
        with self._mutex:
            file = self._tree.get(path)
            if file is None:
                return None
            return Extent(size_bytes=len(file.data), allocated_bytes=len(file.data))

    def list_dir(self, path: str) -> list[DirEntry]:
        with self._mutex:
            self._require_dir(path)
            prefix = path.rstrip("/") + "/"
            return [
                DirEntry(
                    name=name[len(prefix) :],
                    is_dir=file is None,
                    size_bytes=0 if file is None else len(file.data),
                )
                for name, file in sorted(self._tree.items())
                if name.startswith(prefix) and name != prefix and "/" not in name[len(prefix) :]
            ]

    def make_dirs(self, path: str) -> None:
        with self._mutex:
            parts = path.strip("/").split("/")
            for i in range(len(parts)):
                step = "/" + "/".join(parts[: i + 1])
                if step not in self._tree:
                    self._require_inode(step)
                    self._change(partial(_make_dir, step))

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            if source not in self._tree:
                raise _error(ENOENT, source)
            self._require_dir(_parent(target))
            if any(path.startswith(target + "/") for path in self._tree):
                raise _error(ENOTEMPTY, target)

            def move(tree: _Tree) -> None:
                prefix = source + "/"
                for path in [p for p in tree if p == source or p.startswith(prefix)]:
                    tree[target + path[len(source) :]] = tree.pop(path)

            self._change(move)

    def unlink_if_exists(self, path: str) -> None:
        with self._mutex:
            if path in self._tree:
                self._change(lambda tree: tree.pop(path, None))

    def remove_tree(self, path: str) -> None:
        with self._mutex:
            self._require_dir(path)

            def remove(tree: _Tree) -> None:
                for doomed in [p for p in tree if p == path or p.startswith(path + "/")]:
                    del tree[doomed]

            self._change(remove)

    def sync_dir(self, path: str) -> None:
        with self._mutex:
            self._require_dir(path)
            # One journal for the whole tree, as ext4 and xfs have.
            self._durable = dict(self._tree)
            self._journal.clear()

    def device(self, path: str) -> int:
        self._require_dir(path)
        return self.device_number

    def space(self, path: str) -> Space:
        self._require_dir(path)
        free_bytes = self._free_bytes()
        inodes = self.capacity_inodes
        return Space(
            total_bytes=2 * self.usable_bytes if free_bytes is None else self.capacity_bytes or 0,
            usable_bytes=self.usable_bytes if free_bytes is None else free_bytes,
            free_inodes=1000 if inodes is None else max(0, inodes - len(self._tree)),
        )

    def used_bytes(self) -> int:
        """All files that have a name."""
        with self._mutex:
            return sum(len(file.data) for file in self._tree.values() if file is not None)

    def _free_bytes(self) -> int | None:
        capacity = self.capacity_bytes
        return None if capacity is None else max(0, capacity - self.used_bytes())

    def _require_inode(self, path: str) -> None:
        if self.capacity_inodes is not None and len(self._tree) >= self.capacity_inodes:
            raise _error(ENOSPC, path)

    def try_lock(self, path: str) -> MemFile | None:
        with self._mutex:
            if path in self._locks:
                return None
            self._locks.add(path)
            self.open(path, OpenMode.CREATE)
            return MemLock(lambda: self._locks.discard(path))

    def let_go(self, root: str) -> None:
        with self._mutex:
            self._locks = {path for path in self._locks if not path.startswith(f"{root}/")}

    def close_let_go(self, root: str) -> None:
        """There are no descriptors here."""

    def _change(self, change: Callable[[_Tree], object]) -> None:
        def apply(tree: _Tree) -> None:
            change(tree)

        apply(self._tree)
        self._journal.append(apply)

    def _require_dir(self, path: str) -> None:
        path = path.rstrip("/") or "/"
        if path not in self._tree:
            raise _error(ENOENT, path)
        if self._tree[path] is not None:
            raise _error(ENOTDIR, path)


def _make_dir(path: str, tree: _Tree) -> None:
    tree[path] = None


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _common_prefix(a: bytearray, b: bytes) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


def _error(number: int, path: str) -> OSError:
    return OSError(number, strerror(number), path)
