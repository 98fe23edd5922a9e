"""DISK. ``SegmentCache``: limits the indexes in memory and the open files of one log directory.

* Indexes over the limit are dropped at once, the first loaded ones first. An index that was read
  since it was loaded or last considered gets a second chance. Indexes with entries that are not in
  their files stay.
* For open files, the cache only chooses what to close (:meth:`choose_idle`). The event loop closes
  them, because it reads through them and a flush may sync them (log_handle.py, ``close_idle``).
* Segments report opened and closed files in the directory's thread. The event loop may only call
  :meth:`SegmentCache.joined` and read the figures, because the thread may be using an index.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

#: Most files that one step of the event loop closes.
_FILES_PER_STEP: Final = 256


class CacheLimits(NamedTuple):
    """Limits of one log directory: bytes of indexes in memory, and open segment files."""

    index_bytes: int = 256 * 1024 * 1024
    open_segments: int = 100_000


DEFAULT_CACHE_LIMITS: Final = CacheLimits()


class CachedSegment(Protocol):
    """The part of a segment that the cache uses. ``was_read``: a reader used the segment since the
    cache last reset this flag.
    """

    was_read: bool

    def drop_indexes(self) -> bool:
        """Release the indexes if their files are up to date. Return whether that was done."""
        ...


S = TypeVar("S", bound=CachedSegment)


class SegmentCache(Generic[S]):
    """Limits the memory of indexes and the number of open segment files of one log directory.

    Drops indexes itself, and only chooses the files to close.
    """

    def __init__(self, limits: CacheLimits) -> None:
        self._limits = limits
        #: Size of the indexes in memory, in bytes; first loaded first.
        self._indexed: OrderedDict[S, int] = OrderedDict()
        self._opened: OrderedDict[S, None] = OrderedDict()
        #: Size of all indexes in memory.
        self.index_bytes = 0
        self._mutex = threading.RLock()

    @property
    def open_segments(self) -> int:
        """Number of open segment files."""
        return len(self._opened)

    @property
    def has_too_many_open(self) -> bool:
        return len(self._opened) > self._limits.open_segments

    def joined(self, segment: S, index_bytes: int | None, *, is_open: bool) -> None:
        """Add ``segment``, from any thread.

        :param index_bytes: size of its indexes in memory; None if they are not loaded.
        :param is_open: whether its file is open.
        """
        with self._mutex:
            if index_bytes is not None:
                self._count(segment, index_bytes)
            if is_open:
                self._opened[segment] = None

    def left(self, segment: S) -> None:
        """Forget the indexes and the open file of ``segment``, which is not closed here. Any thread
        may call it.
        """
        self.unloaded(segment)
        self.closed(segment)

    # -- indexes ----------------------------------------------------------------------------

    def loaded(self, segment: S, index_bytes: int) -> None:
        """Record that ``segment`` loaded or changed its indexes. Drop other indexes if over the
        limit.

        :param index_bytes: size of its indexes in memory.
        """
        with self._mutex:
            self._count(segment, index_bytes)
            for _ in range(len(self._indexed) - 1):
                if self.index_bytes <= self._limits.index_bytes:
                    return
                oldest = next(iter(self._indexed))
                if oldest.was_read or not oldest.drop_indexes():
                    oldest.was_read = False
                    self._indexed.move_to_end(oldest)
                    self._indexed.move_to_end(segment)

    def unloaded(self, segment: S) -> None:
        """Record that ``segment`` has no indexes in memory any more."""
        with self._mutex:
            self.index_bytes -= self._indexed.pop(segment, 0)

    def _count(self, segment: S, index_bytes: int) -> None:
        self.index_bytes += index_bytes - self._indexed.pop(segment, 0)
        self._indexed[segment] = index_bytes

    # -- files ------------------------------------------------------------------------------

    def opened(self, segment: S) -> None:
        with self._mutex:
            self._opened[segment] = None

    def closed(self, segment: S) -> None:
        with self._mutex:
            self._opened.pop(segment, None)

    def choose_idle(self) -> list[S]:
        """Return at most 256 segments whose files should be closed, least recently opened first.

        A segment that was read since it was opened or last considered gets a second chance. The
        list is empty while the limit is not exceeded.
        """
        idle: list[S] = []
        with self._mutex:
            excess = min(len(self._opened) - self._limits.open_segments, _FILES_PER_STEP)
            for _ in range(2 * len(self._opened)):
                if len(idle) >= excess:
                    break
                oldest = next(iter(self._opened))
                self._opened.move_to_end(oldest)
                if oldest.was_read:
                    oldest.was_read = False
                else:
                    idle.append(oldest)
        return idle
