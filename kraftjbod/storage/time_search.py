"""Answers to questions for a time, from the segments of one log.

A segment's time index may lead nowhere, so whoever has the log says how to look at one again by a
new index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kraftjbod.core.errors import OperatingError
from kraftjbod.protocol.records import read_records
from kraftjbod.storage.batch_walk import Located, walk_to
from kraftjbod.storage.leader_epochs import EpochEntries, epoch_at
from kraftjbod.storage.log_values import FoundTimestamp
from kraftjbod.storage.segment import LogSegment

#: ``(number of the segment, look at it)``: the look's answer, by an index that was made anew if
#: the first one led nowhere.
ByIndex = Callable[[int, Callable[[], Located | None]], Located | None]


def first_from(
    segments: Sequence[LogSegment], timestamp: int, start_offset: int, by_index: ByIndex
) -> FoundTimestamp | None:
    """The first record from ``start_offset`` on that is not older than ``timestamp``.

    Of a batch that does not open its beginning is told.
    """
    for at, segment in enumerate(segments):
        largest = segment.largest_timestamp()
        if largest is None or largest.timestamp < timestamp:
            continue
        begin = start_offset
        while found := by_index(at, partial(_batch_from, segment, timestamp, begin)):
            answer = _first_in(segment, found, timestamp, start_offset)
            if answer is not None:
                return answer
            # The log starts within this batch, and its young records are before that.
            begin = found.header.last_offset + 1
    return None


def youngest(segments: Sequence[LogSegment], epochs: EpochEntries) -> FoundTimestamp | None:
    """The largest timestamp, and the last offset of its batch."""
    largest = [found for segment in segments if (found := segment.largest_timestamp())]
    if not largest:
        return None
    entry = max(largest, key=lambda found: found.timestamp)
    return FoundTimestamp(entry.timestamp, entry.offset, epoch_at(epochs, entry.offset))


def _batch_from(segment: LogSegment, timestamp: int, from_offset: int) -> Located | None:
    """The first batch from ``from_offset`` on that holds a record so young, or None.

    Compaction leaves batches without records, and those hold none.
    """
    begin = max(segment.indexes().times.offset_before(timestamp), from_offset)
    located = segment.position_of(begin)
    while located is not None and (
        located.header.max_timestamp < timestamp or not located.header.record_count
    ):
        position = located.position + located.header.size_bytes
        located = walk_to(segment.open().read_at, position, segment.size_bytes, begin)
    return located


def _first_in(
    segment: LogSegment, located: Located, timestamp: int, start_offset: int
) -> FoundTimestamp | None:
    """The first record of a batch that is asked for, or None.

    The only place where a broker opens records, and it may be asked to by anyone, so what does
    not decode is no reason to fail.
    """
    header = located.header
    epoch = header.partition_leader_epoch
    data = segment.open().read_at(located.position, header.size_bytes)
    try:
        for record in read_records(data):
            if record.timestamp_ms >= timestamp and record.offset >= start_offset:
                return FoundTimestamp(record.timestamp_ms, record.offset, epoch)
    except OperatingError:
        offset = max(header.base_offset, start_offset)
        return FoundTimestamp(header.max_timestamp, offset, epoch)
    return None
