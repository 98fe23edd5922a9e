"""DISK. ``SegmentCache``: indexes in memory and open files of the segments of one log dir, limited.

* Indexes that are over the limit are dropped at once, the ones that were loaded first before
  others; one that was read since has a second chance. What their files do not say stays.
* Files are only named here, in :meth:`choose_idle`: closing one is the loop's part, because the
  loop reads through it and a flush may sync it (log_handle.py, ``close_idle``).
* Segments report what they open and close, in the dir's thread. Only :meth:`SegmentCache.joined`
  and the figures are for the loop, too: it drops nothing, because the thread may be using it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

#: Files that one step of the loop's has closed at most.
_FILES_PER_STEP: Final = 256


class CacheLimits(NamedTuple):
    """Of one log dir."""

    index_bytes: int = 256 * 1024 * 1024
    open_segments: int = 100_000


DEFAULT_CACHE_LIMITS: Final = CacheLimits()


class CachedSegment(Protocol):
    """What the cache asks of a segment."""

    was_read: bool

    def drop_indexes(self) -> bool:
        """Forget the indexes if their files say the same; False if not."""
        ...


S = TypeVar("S", bound=CachedSegment)


class SegmentCache(Generic[S]):
    """Of one log dir."""

    def __init__(self, limits: CacheLimits) -> None:
        self._limits = limits
        #: Size of the indexes in memory, least recently loaded first.
        self._indexed: OrderedDict[S, int] = OrderedDict()
        self._opened: OrderedDict[S, None] = OrderedDict()
        #: All indexes in memory.
        self.index_bytes = 0
        self._mutex = threading.RLock()

    @property
    def open_segments(self) -> int:
        """How many files are open."""
        return len(self._opened)

    @property
    def has_too_many_open(self) -> bool:
        return len(self._opened) > self._limits.open_segments

    def joined(self, segment: S, index_bytes: int | None, *, is_open: bool) -> None:
        """Count what ``segment`` has in memory, None if no indexes, and whether its file is open.

        From any thread.
        """
        with self._mutex:
            if index_bytes is not None:
                self._count(segment, index_bytes)
            if is_open:
                self._opened[segment] = None

    def left(self, segment: S) -> None:
        """Nothing of ``segment`` is to be limited any more. From any thread."""
        self.unloaded(segment)
        self.closed(segment)

    # -- indexes ----------------------------------------------------------------------------

    def loaded(self, segment: S, index_bytes: int) -> None:
        """``segment`` has indexes of that size in memory, other ones than before."""
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
        """``segment`` has no indexes in memory any more."""
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
        """Segments whose files should be closed, least recently opened first.

        One that was read since it was opened, or chosen last, has a second chance.
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
