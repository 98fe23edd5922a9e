"""DISK. ``SegmentIndexes``: the offset and time index of one segment, updated with its batches.

* Both indexes get an entry with the first batch after ``index.interval.bytes``.
* Both are loaded together or not at all, because one is useless without the other.
* :class:`FreshIndexes` rebuilds both by a walk over the whole segment, damage included. Readers use
  the present indexes meanwhile.

This module holds only values. segment.py reads, writes and verifies the files.
"""

from __future__ import annotations

from typing import Final, assert_never

from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import BatchHeader, crc_of_bytes, read_header
from kraftjbod.protocol.record_scans import BatchScan
from kraftjbod.storage.dir_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kraftjbod.storage.segments.batch_runs import SoundRun
from kraftjbod.storage.segments.batch_walk import (
    LARGEST_RELATIVE_OFFSET,
    Damage,
    Located,
    ReadAt,
    located_from,
)
from kraftjbod.storage.segments.offset_index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeEntry,
    TimeIndex,
)

LARGEST_OFFSET: Final = 2**63 - 1
#: Lower than every leader epoch of a batch.
BELOW_EPOCHS: Final = -(2**32)


class SegmentIndexes:
    """Offset and time index of one segment in memory, initially empty and updated with each
    appended batch.

    The event loop may search ``offsets``.
    """

    __slots__ = (
        "_base_offset",
        "_bytes_since_entry",
        "_interval_bytes",
        "largest",
        "offsets",
        "times",
    )

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self._base_offset = base_offset
        self.offsets = OffsetIndex(base_offset)
        self.times = TimeIndex(base_offset)
        #: The largest timestamp of all batches and an offset with it; may have no entry yet.
        self.largest: TimeEntry | None = None
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0

    @property
    def size_bytes(self) -> int:
        """Size of the entries in bytes, the same in memory and in the files."""
        return OFFSET_ENTRY_BYTES * len(self.offsets) + TIME_ENTRY_BYTES * len(self.times)

    @classmethod
    def from_files(
        cls,
        base_offset: int,
        interval_bytes: int,
        *,
        offsets: Buffer,
        times: Buffer,
        segment_bytes: int,
    ) -> SegmentIndexes | None:
        """Parse the contents of both files. Return None if they cannot belong to a segment of that
        size.

        A segment with batches has at least one time entry, so an empty time index is incomplete.
        """
        offset_index = OffsetIndex.from_bytes(base_offset, offsets, segment_bytes=segment_bytes)
        time_index = TimeIndex.from_bytes(base_offset, times)
        if offset_index is None or not time_index:
            return None
        indexes = cls(base_offset, interval_bytes)
        indexes.offsets, indexes.times = offset_index, time_index
        indexes.largest = time_index.last()
        # The distance to the last entry is not stored, so the next batch gets an entry.
        indexes._bytes_since_entry = interval_bytes + 1
        return indexes

    def note(self, header: BatchHeader, position: int) -> int:
        """Index the batch of ``header``, which follows the last one at ``position``.

        Return its size in bytes.
        """
        last_offset, size_bytes = header.last_offset, header.size_bytes
        if self.largest is None or header.max_timestamp > self.largest.timestamp:
            self.largest = TimeEntry(header.max_timestamp, last_offset)
        if self._bytes_since_entry > self._interval_bytes:
            self.offsets.append_entry(last_offset, position)
            self.times.append_entry(*self.largest)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes
        return size_bytes

    def batch_scan(
        self,
        *,
        next_offset: int,
        may_have_gaps: bool,
        check_crc_of_each: bool,
        end_offset: int = LARGEST_OFFSET,
        least_epoch: int | None = None,
    ) -> BatchScan:
        """Return a scan that checks the batches from ``next_offset`` on. Pass its runs to
        :meth:`take_run`.

        :param end_offset: if ``may_have_gaps``, batches have to end below this offset.
        :param least_epoch: if given, leader epochs have to start at or above it and must not
            decrease.
        """
        limit = self._base_offset + LARGEST_RELATIVE_OFFSET + 1
        if may_have_gaps:
            limit = min(limit, end_offset)
        scan = BatchScan(
            crc_of_bytes if check_crc_of_each else None,
            next_offset=min(next_offset, LARGEST_OFFSET),
            # A file name has 20 digits. Beyond an int64 no batch is sound.
            limit_offset=limit if limit <= LARGEST_OFFSET else 0,
            may_have_gaps=may_have_gaps,
            interval_bytes=self._interval_bytes,
            least_epoch=BELOW_EPOCHS if least_epoch is None else least_epoch,
            orders_epochs=least_epoch is not None,
        )
        if self.largest is not None:
            scan.largest_timestamp, scan.largest_offset = self.largest
        scan.bytes_since_entry = self._bytes_since_entry
        return scan

    def take_run(self, run: SoundRun) -> None:
        """Index the batches of ``run``, which a scan of :meth:`batch_scan` produced."""
        scan = run.scan
        for last_offset, at, timestamp, timestamp_offset in scan.entries:
            self.offsets.append_entry(last_offset, run.position + at)
            self.times.append_entry(timestamp, timestamp_offset)
        if scan.largest_offset >= 0:
            self.largest = TimeEntry(scan.largest_timestamp, scan.largest_offset)
        self._bytes_since_entry = scan.bytes_since_entry

    def lead_past(self, next_offset: int, position: int) -> None:
        """Add an entry at the first batch after damage, so that a walk to it does not start in the
        damage.

        :param next_offset: base offset of that batch, which starts at ``position``.
        """
        self.offsets.append_entry(next_offset - 1, position)
        if self.largest is not None:
            self.times.append_entry(*self.largest)
        self._bytes_since_entry = 0

    def below(self, read_at: ReadAt, size_bytes: int, end_offset: int) -> SegmentIndexes:
        """Return the indexes of the segment's first ``size_bytes``, which end at ``end_offset``.

        Reads the headers after the last remaining entry, at most one index interval. They are
        needed for the largest timestamp.

        :raises CorruptRecordError: the entry does not point to a batch.
        :raises WouldWait: the file is shorter than ``size_bytes``.
        """
        kept = SegmentIndexes(self._base_offset, self._interval_bytes)
        kept.offsets = self.offsets.below(size_bytes)
        kept.times = self.times.below(end_offset)
        kept.largest = kept.times.last()
        begin = kept.offsets.last_position()
        for _, header in located_from(read_at, begin, size_bytes):
            if kept.largest is None or header.max_timestamp > kept.largest.timestamp:
                kept.largest = TimeEntry(header.max_timestamp, header.last_offset)
        kept._bytes_since_entry = size_bytes - begin
        return kept

    def to_files(self) -> dict[str, bytes]:
        """Return the contents of both files by suffix, after adding a time entry for the largest
        timestamp.
        """
        if self.largest is not None:
            self.times.append_entry(*self.largest)
        return {INDEX_SUFFIX: self.offsets.to_bytes(), TIME_INDEX_SUFFIX: self.times.to_bytes()}


class FreshIndexes:
    """Result of a walk over a whole segment: new indexes, the damage that it met, and the timestamp
    of the first sound batch (None without one).
    """

    __slots__ = ("damages", "first_timestamp", "indexes")

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.indexes = SegmentIndexes(base_offset, interval_bytes)
        #: Timestamp of the first sound batch.
        self.first_timestamp: int | None = None
        self.damages: list[Damage] = []

    def lead_past_damage(self, next_offset: int, position: int) -> None:
        """Add index entries if a batch without damage is the first after a damaged range.

        :param next_offset: base offset of that batch, which starts at ``position``.
        """
        if self.damages and self.damages[-1].next_offset == next_offset:
            self.indexes.lead_past(next_offset, position)

    def take(self, found: Located | SoundRun | Damage | None) -> None:
        """Process the next result of the walk; None is ignored."""
        match found:
            case Located(position, header):
                self.lead_past_damage(header.base_offset, position)
                self.indexes.note(header, position)
                if self.first_timestamp is None:
                    self.first_timestamp = header.max_timestamp
            case SoundRun():
                self.indexes.take_run(found)
                if self.first_timestamp is None:
                    self.first_timestamp = read_header(found.data).max_timestamp
            case Damage():
                self.damages.append(found)
            case None:
                pass
            case _:
                assert_never(found)
