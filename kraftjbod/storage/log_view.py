"""``LogView``: what may be known of a log outside its dir's thread, and how to read by it.

A view is immutable and true for one moment. Reading by one touches no more of a segment than what
was written then, so the loop may read while the thread appends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from kraftjbod.core.errors import OffsetOutOfRangeError
from kraftjbod.storage.leader_epochs import EpochEntries
from kraftjbod.storage.segment import NO_LIMIT, LogSegment, ReadAt

_NOTHING: Final = memoryview(b"")


class LogView(NamedTuple):
    """What the loop may know of a log: numbers and segments as of one moment."""

    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    size_bytes: int
    #: The last one is appended to while this view is held: of it, only the first
    #: ``active_size_bytes`` belong to the view.
    segments: tuple[LogSegment, ...]
    active_size_bytes: int
    epochs: EpochEntries

    def segment_index(self, offset: int) -> int:
        """Which segment holds ``offset``."""
        return max(0, bisect_right(self.segments, offset, key=lambda s: s.base_offset) - 1)


def read_view(
    view: LogView,
    read_at_of: Callable[[LogSegment], ReadAt | None],
    *,
    start_offset: int,
    max_bytes: int,
    max_offset: int,
    min_one: bool,
) -> memoryview | None:
    """Whole batches from the one that holds ``start_offset`` on, from one segment.

    Below ``max_offset``, at most ``max_bytes`` but for a first batch if ``min_one``; empty if
    there is none. None if some ``read_at`` would have to wait, or was None.

    :raises OffsetOutOfRangeError: if the log does not hold ``start_offset`` and does not end there.
    """
    if not view.log_start_offset <= start_offset <= view.log_end_offset:
        raise OffsetOutOfRangeError(
            f"offset {start_offset} is not in [{view.log_start_offset}, {view.log_end_offset}]"
        )
    max_offset = min(max_offset, view.log_end_offset)
    if start_offset >= max_offset:
        return _NOTHING
    for at in range(view.segment_index(start_offset), len(view.segments)):
        segment = view.segments[at]
        is_active = at == len(view.segments) - 1
        next_base = view.log_end_offset if is_active else view.segments[at + 1].base_offset
        read_at = read_at_of(segment)
        found = None
        if read_at is not None:
            found = segment.read(
                read_at,
                start_offset=start_offset,
                max_offset=NO_LIMIT if max_offset >= next_base else max_offset,
                limit=view.active_size_bytes if is_active else segment.size_bytes,
                max_bytes=max_bytes,
                min_one=min_one,
            )
        if found is None or found or not min_one:
            return found
    return _NOTHING
