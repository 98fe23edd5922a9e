"""DISK. ``batches_from``: yields the batch headers of a segment in order, and continues after
damage.

Only headers are read, in blocks, and yielded one at a time: a segment of 1 GiB may have millions.
"""

from __future__ import annotations

from collections.abc import Iterator

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.storage.segments.batch_walk import Located, WouldWait, located_from
from kraftjbod.storage.segments.segment import NO_LIMIT, LogSegment


def batches_from(segment: LogSegment, offset: int) -> Iterator[Located | None]:
    """Yield all batches that end at or after ``offset``, except damaged ones.

    The generator yields None for each earlier batch or damage that it skips, so that a caller can
    work in steps. The indexes have to be loaded.
    """
    begin = offset
    try:
        first = segment.position_of(offset)
        if first is not None:
            for located in located_from(segment.read_at, first.position, segment.size_bytes):
                yield located
                begin = located.header.next_offset
    except (CorruptRecordError, WouldWait):
        yield from _sound_from(segment, begin)


def _sound_from(segment: LogSegment, offset: int) -> Iterator[Located | None]:
    """Yield the sound batches that end at or after ``offset``, by a walk over the whole segment."""
    for found in segment.walk(
        segment.read_at,
        known=segment.known_positions,
        check_crc_of_each=False,
        end_offset=NO_LIMIT,
    ):
        if isinstance(found, Located) and found.header.last_offset >= offset:
            yield found
        else:
            yield None
