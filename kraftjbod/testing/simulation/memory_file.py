"""WIRE. ``MemFile``: one file of a :class:`~kraftjbod.testing.simulation.memory_vfs.MemVfs`, its
pages in memory and its bytes on the disk.

* Bytes are certain up to the file's last ``sync``. Of later bytes a crash keeps all; or a prefix,
  possibly with garbage after it; or some of the sectors, with zeros for the rest; or the new size
  alone, with zeros; or nothing, with the size of the last sync.
* Reads are served from the page cache. A clean page may leave memory (:meth:`MemFile.evict`), and
  a read brings it back with the pages after it (readahead).
* The disk may hold other bytes than a clean page in memory: a bit rotted, or writeback failed
  (:meth:`MemFile.fail_writeback`). Readers see that once the page was evicted.
* Each descriptor that was open when writeback failed reports the error once. A descriptor that is
  opened later reports an error that none has reported.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from errno import EAGAIN, ENOSPC
from os import strerror
from typing import Final

from kraftjbod.protocol.framing import Buffer
from kraftjbod.storage.vfs import VfsFile

#: The bit that is flipped.
ONE_BIT: Final = 0x10
#: A disk writes a sector whole or not at all. Pages have the same size, so that small files have
#: several.
SECTOR_BYTES: Final = 512
#: Readahead of the page cache.
_READ_AHEAD_PAGES: Final = 16
#: Share of the files with unsynced bytes that the kernel has written before a crash.
_WRITTEN_BACK: Final = 0.25
#: Share of the other ones that a crash leaves with their size and zeros.
_ZEROED: Final = 0.2
#: Share of the files that grew since their last sync that a crash leaves with their old size.
_SIZE_LOST: Final = 0.15
#: Share of the dirty pages that a failed writeback loses.
_LOST_PAGES: Final = 0.7


class MemFile:
    """The content of a file, and the part of it that is on the disk.

    One object represents the file for all its names and descriptors. ``data`` is the content that
    readers see, and ``synced`` the content at the last :meth:`sync`.
    """

    def __init__(self, free_bytes: Callable[[], int | None] = lambda: None) -> None:
        #: The content for readers. For a page that is not in memory, the content on the disk.
        self.data = bytearray()
        self.synced = b""
        self.syncs = 0
        #: Open descriptors of processes: the space is in use until the last one is closed.
        self.holders = 0
        #: By how many bytes the file may grow; None: no limit.
        self.free_bytes = free_bytes
        #: Content on the disk of clean pages that differ in memory, by page number.
        self._on_disk: dict[int, bytes] = {}
        #: Pages that are not in memory.
        self._absent: set[int] = set()
        #: Number of failed writebacks, and number of failures that a sync has reported.
        self.writeback_errors = self.reported_errors = 0
        #: Former content of pages that a failed writeback lost and that were not written since.
        self._lost: dict[int, bytes] = {}

    def size(self) -> int:
        return len(self.data)

    def read_at(self, position: int, size: int) -> bytes:
        self.read_ahead(position, size)
        return bytes(self.data[position : position + size])

    def read_ahead(self, position: int, size: int) -> None:
        """Bring ``size`` bytes from ``position`` on into memory, and 16 more pages, as the kernel's
        readahead does."""
        if self._absent:
            pages = _pages(position, size)
            self._absent.difference_update(range(pages.start, pages.stop + _READ_AHEAD_PAGES))

    def read_cached_at(self, position: int, size: int) -> memoryview:
        if self._absent:
            for page in _pages(position, min(size, len(self.data) - position)):
                if page in self._absent:
                    size = page * SECTOR_BYTES - position
                    break
            if size <= 0:
                raise _error(EAGAIN)
        return memoryview(bytes(self.data[position : position + size]))

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        whole = b"".join(buffers)
        free_bytes = self.free_bytes()
        more = position + len(whole) - len(self.data)
        if free_bytes is not None and more > free_bytes:
            self._put(position, whole[: max(0, len(whole) - (more - free_bytes))])
            raise _error(ENOSPC)
        self._put(position, whole)

    def _put(self, position: int, whole: bytes) -> None:
        if not whole:
            return
        begin = min(position, len(self.data))
        self._note_dirty(begin, position + len(whole) - begin)
        if len(self.data) < position:
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(whole)] = whole

    def _note_dirty(self, position: int, size: int) -> None:
        """Mark pages dirty. They are written whole, so their bytes on the disk do not matter."""
        if self._on_disk or self._absent or self._lost:
            for page in _pages(position, size):
                self._on_disk.pop(page, None)
                self._absent.discard(page)
                self._lost.pop(page, None)

    def copy_from(self, source: VfsFile, position: int, size: int) -> int:
        data = source.read_at(position, size)
        self.write_at(position, [data])
        return len(data)

    def forget_cached(self, position: int, size: int) -> None:
        self.evict(position, size)

    def evict(self, position: int, size: int) -> None:
        """Drop the clean pages of ``size`` bytes from ``position`` on from memory, so that the next
        read returns the content on the disk. Dirty pages stay."""
        end = min(position + size, len(self.data))
        begin = position // SECTOR_BYTES * SECTOR_BYTES
        pages = _pages(begin, end - begin)
        if not self._on_disk and self.data[begin:end] == self.synced[begin:end]:
            self._absent.update(pages)
            return
        for page in pages:
            on_disk = self._on_disk.pop(page, None)
            if on_disk is not None:
                self.data[_slice(page)] = on_disk
            elif self._is_dirty(page):
                continue
            self._absent.add(page)

    def truncate(self, size: int) -> None:
        self._note_dirty(min(size, len(self.data)), abs(size - len(self.data)))
        if size < len(self.data):
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))

    def sync(self) -> None:
        self.synced = bytes(self._disk_image())
        self.syncs += 1

    def close(self) -> None:
        return

    @property
    def is_dirty(self) -> bool:
        """Whether the file has changes that the next sync writes to the disk."""
        return len(self.data) != len(self.synced) or any(
            self._is_dirty(page) for page in _pages(0, len(self.data))
        )

    def _is_dirty(self, page: int) -> bool:
        part = _slice(page)
        return page not in self._on_disk and self.data[part] != self.synced[part]

    def fail_writeback(self, rng: random.Random) -> None:
        """Lose some dirty pages, at least one: they are clean now, and the disk has not got them.

        Readers see the new bytes until the pages are evicted. Each descriptor reports it once.
        """
        dirty = [page for page in _pages(0, len(self.data)) if self._is_dirty(page)]
        self.writeback_errors += 1
        certain = rng.choice(dirty) if dirty else None
        for page in dirty:
            if page == certain or rng.random() < _LOST_PAGES:
                part = _slice(page)
                size = len(self.data[part])
                self._lost[page] = bytes(self.data[part])
                self._on_disk[page] = self.synced[part][:size].ljust(size, b"\0")

    def undo_unreported_writeback(self) -> None:
        """Make the pages that a failed writeback lost dirty again, so that the next sync writes
        them. No effect if a sync has reported the failure."""
        if self.reported_errors == self.writeback_errors:
            return
        for page, content in self._lost.items():
            self._on_disk.pop(page, None)
            self._absent.discard(page)
            self.data[_slice(page)] = content
        self._lost.clear()
        self.writeback_errors = self.reported_errors

    def rot(self, position: int, *, is_cached: bool = False) -> None:
        """Flip one bit of the byte at ``position`` on the disk, unnoticed.

        With ``is_cached`` a page in memory keeps the right bit until it is evicted.
        """
        page = position // SECTOR_BYTES
        if not is_cached:
            self.evict(position, 1)
        if position < len(self.synced):
            self.synced = bytes(_flipped(self.synced, position))
        if page in self._on_disk or (is_cached and page not in self._absent):
            image = bytearray(self._on_disk.get(page) or self.data[_slice(page)])
            self._on_disk[page] = bytes(_flipped(image, position % SECTOR_BYTES))
        else:
            self.data[position] ^= ONE_BIT

    def on_disk(self) -> bytes:
        """Return the content that a reader sees once no page is in memory."""
        return bytes(self._disk_image())

    def _disk_image(self) -> bytearray:
        if not self._on_disk:
            return self.data
        image = bytearray(self.data)
        for page, content in self._on_disk.items():
            image[_slice(page)] = content
        return image

    def after_crash(self, rng: random.Random) -> MemFile:
        left, data = MemFile(), self._disk_image()
        common = _common_prefix(data, self.synced)
        if common < len(self.synced) and rng.random() < 0.5:
            # The file was truncated or overwritten since: the disk may still hold the old bytes.
            left.data = bytearray(self.synced)
        elif rng.random() < _WRITTEN_BACK:
            left.data = bytearray(data)
        elif len(data) > common and rng.random() < _ZEROED:
            # The size was in the journal, and the blocks were not allocated yet.
            left.data = data[:common] + bytes(len(data) - common)
        elif common == len(self.synced) < len(data) and rng.random() < _SIZE_LOST:
            left.data = bytearray(self.synced)
        elif len(data) > common + SECTOR_BYTES and rng.random() < 0.3:
            left.data = self._torn(data, common, rng)
        else:
            left.data = data[: rng.randint(common, len(data))]
            if len(left.data) < len(data) and rng.random() < 0.3:
                left.data += rng.randbytes(rng.randint(1, 200))
        left.synced = bytes(left.data)
        return left

    def allows(self, content: bytes) -> bool:
        """Return whether the file may have ``content`` after a crash now."""
        data, synced = self._disk_image(), self.synced
        if content == synced:
            return True
        common = _common_prefix(data, synced)
        if content[:common] != data[:common] or len(content) > len(data):
            return False
        if data.startswith(content):
            return True
        return len(content) == len(data) and all(
            content[part] in self._versions(data, part) for part in _sectors_from(common, len(data))
        )

    def _versions(self, data: bytearray, part: slice) -> tuple[bytes | bytearray, ...]:
        """Possible contents of a sector: the written bytes, the former bytes, or zeros."""
        size = len(data[part])
        return data[part], self.synced[part].ljust(size, b"\0"), bytes(size)

    def _torn(self, data: bytearray, certain: int, rng: random.Random) -> bytearray:
        """Return the content with the new size. Each sector after ``certain`` is written or not."""
        left = bytearray(data)
        for start in range(certain - certain % SECTOR_BYTES, len(left), SECTOR_BYTES):
            if rng.random() < 0.5:
                begin, end = max(start, certain), min(start + SECTOR_BYTES, len(left))
                left[begin:end] = self.synced[begin:end].ljust(end - begin, b"\0")
        return left

    def copied(self) -> MemFile:
        """Return a copy of which all bytes are durable."""
        copy = MemFile()
        copy.data = bytearray(self._disk_image())
        copy.synced = bytes(copy.data)
        return copy


class MemLock(MemFile):
    """The handle of a held lock file: ``close`` releases the lock, by a call of ``release``."""

    def __init__(self, release: Callable[[], None]) -> None:
        super().__init__()
        self.close = release  # type: ignore[method-assign]  # One use, one effect.


def _pages(position: int, size: int) -> range:
    if size <= 0:
        return range(position // SECTOR_BYTES, position // SECTOR_BYTES)
    return range(position // SECTOR_BYTES, (position + size - 1) // SECTOR_BYTES + 1)


def _sectors_from(begin: int, end: int) -> Iterator[slice]:
    """Parts of sectors between ``begin`` and ``end``."""
    while begin < end:
        sector_end = min(end, (begin // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield slice(begin, sector_end)
        begin = sector_end


def _slice(page: int) -> slice:
    return slice(page * SECTOR_BYTES, (page + 1) * SECTOR_BYTES)


def _flipped(data: bytes | bytearray, position: int) -> bytearray:
    flipped = bytearray(data)
    flipped[position] ^= ONE_BIT
    return flipped


def _common_prefix(a: bytearray, b: bytes) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


def _error(number: int) -> OSError:
    return OSError(number, strerror(number), "a file in memory")
