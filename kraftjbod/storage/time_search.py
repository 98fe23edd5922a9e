"""Answers to questions for a time, from the segments of one log.

A segment's time index may lead nowhere, so whoever has the log says how to look at one again by a
new index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kraftjbod.storage.batch_walk import Located
from kraftjbod.storage.leader_epochs import EpochEntries, epoch_at
from kraftjbod.storage.log_values import FoundTimestamp
from kraftjbod.storage.segment import LogSegment

#: ``(number of the segment, look at it)``: the look's answer, by an index that was made anew if
#: the first one led nowhere.
ByIndex = Callable[[int, Callable[[], Located | None]], Located | None]


def first_from(
    segments: Sequence[LogSegment], timestamp: int, start_offset: int, by_index: ByIndex
) -> FoundTimestamp | None:
    """The first record that is not older than ``timestamp``; its batch, if that won't open."""
    for at, segment in enumerate(segments):
        largest = segment.largest_timestamp()
        if largest is None or largest.timestamp < timestamp:
            continue
        found = by_index(at, partial(segment.batch_for_timestamp, timestamp, start_offset))
        if found is not None:
            header = found.header
            epoch = header.partition_leader_epoch
            record = segment.record_for_timestamp(found, timestamp)
            if record is None:
                return FoundTimestamp(header.max_timestamp, header.base_offset, epoch)
            return FoundTimestamp(record.timestamp_ms, record.offset, epoch)
    return None


def youngest(segments: Sequence[LogSegment], epochs: EpochEntries) -> FoundTimestamp | None:
    """The largest timestamp, and the last offset of its batch."""
    largest = [found for segment in segments if (found := segment.largest_timestamp())]
    if not largest:
        return None
    entry = max(largest, key=lambda found: found.timestamp)
    return FoundTimestamp(entry.timestamp, entry.offset, epoch_at(epochs, entry.offset))
