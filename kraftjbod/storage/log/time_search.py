"""DISK. ``LogTimeSearch`` and ``MaxTimestampSearch``: a search for a time, done in turns.

* The dir's thread searches a few segments and batches in one turn, so that other operations do not
  wait. A turn reads the indexes of at most one segment, and a few entries of some others; the next
  turn continues after them.
* Another thread unpacks the batch that was found. Any client may search, and a batch of some KiB
  may unpack to gigabytes of records with seven bytes each: both have limits. For a batch beyond the
  limits, or one that cannot be unpacked, the answer is the batch's first offset, which is not later
  than the exact answer.
* A segment's time index may be wrong, so the caller says how to search a segment again with a new
  index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from kraftjbod.core.errors import OperatingError
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.raw_records import TimeSearch
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.protocol.records import open_body
from kraftjbod.storage.log.log_values import FoundTimestamp
from kraftjbod.storage.segments.batch_walk import walk_to
from kraftjbod.storage.segments.segment import LogSegment

#: Headers that are read in one turn of the dir's thread; that takes some milliseconds.
_BATCHES_PER_TURN: Final = 2_000
#: Segments whose largest timestamp is read from their files in one turn: some seeks of a disk each.
_UNREAD_SEGMENTS_PER_TURN: Final = 4
#: Segments that are looked at in one turn, read or not.
_SEGMENTS_PER_TURN: Final = 4_096
#: A search opens that many batches without an answer. One is usual: the log may start within it.
_MAX_OPENED_BATCHES: Final = 16
#: What a batch may unpack to, and how many of its records are read.
_MAX_UNPACKED_BYTES: Final = 16 * 1024 * 1024
_MAX_RECORDS: Final = 1_000_000
#: The interpreter is nobody else's meanwhile.
_RECORDS_PER_STEP: Final = 4096


class _Seen(NamedTuple):
    """Where a turn ended: at a batch to be opened, or in the middle (no ``data``)."""

    header: BatchHeader
    data: Buffer | None


#: ``(number of the segment, search it)``: the answer, by an index that was made anew if
#: the first one led nowhere.
ByIndex = Callable[[int, Callable[[], _Seen | None]], _Seen | None]


class LogTimeSearch:
    """For the first record that is not older than ``timestamp`` (wall ms).

    :meth:`scan`, and :meth:`open` if there is something to open, until :attr:`is_over`.
    """

    def __init__(self, timestamp: int, from_offset: int = 0) -> None:
        """``from_offset``: all before is known to be older."""
        self._timestamp = timestamp
        #: Where the log started at the last turn.
        self._log_start = 0
        #: Everything before is known to hold no answer.
        self._next_offset = from_offset
        self._found: _Seen | None = None
        self._opened = 0
        self.is_over = False
        #: None as long as there is none, and if there is none at the end.
        self.answer: FoundTimestamp | None = None

    @property
    def unopened_bytes(self) -> int:
        """Of what there is to open; 0 if there is nothing."""
        return 0 if self._found is None else self._found.header.size_bytes

    def scan(
        self,
        segments: Sequence[LogSegment],
        start_offset: int,
        by_index: ByIndex,
    ) -> None:
        """In the dir's thread: a few segments and batches further on, if there are so many."""
        self._log_start = start_offset
        begin = max(start_offset, self._next_offset)
        for at in _turn(segments, begin):
            segment = segments[at]
            largest = segment.largest_timestamp()
            if largest is not None and largest.timestamp >= self._timestamp:
                seen = by_index(at, partial(_scan_segment, segment, self._timestamp, begin))
                if seen is not None:
                    self._next_offset = seen.header.next_offset
                    self._found = seen if seen.data is not None else None
                    return
            if at + 1 == len(segments):
                self.is_over = True
            else:
                self._next_offset = segments[at + 1].base_offset

    def open(self) -> None:
        """In any thread: whether the batch that was found holds the answer."""
        assert self._found is not None, "scan() found nothing"
        found, self._found = self._found, None
        assert found.data is not None, found
        self._opened += 1
        header, start = found.header, self._log_start
        if self._opened > _MAX_OPENED_BATCHES:
            self.answer = _beginning(header, start)
        else:
            self.answer = _first_in(found.data, header, self._timestamp, start)
        # The log may start within this batch, and its young records be before that.
        self.is_over = self.answer is not None


class MaxTimestampSearch:
    """For the largest timestamp of a log: :meth:`scan` until :attr:`is_over`."""

    def __init__(self) -> None:
        self._next_offset = 0
        self.is_over = False
        #: So far; None if no segment has batches.
        self.largest: int | None = None
        #: Of the first segment that has it.
        self.base_offset = 0

    def scan(
        self,
        segments: Sequence[LogSegment],
        start_offset: int,
        _by_index: ByIndex,
    ) -> None:
        """In the dir's thread: a few segments further on."""
        for at in _turn(segments, max(start_offset, self._next_offset)):
            found = segments[at].largest_timestamp()
            if found is not None and (self.largest is None or found.timestamp > self.largest):
                self.largest, self.base_offset = found.timestamp, segments[at].base_offset
            if at + 1 == len(segments):
                self.is_over = True
            else:
                self._next_offset = segments[at + 1].base_offset


def _turn(segments: Sequence[LogSegment], begin: int) -> Iterator[int]:
    """Numbers of the segments of one turn, from the one that holds ``begin`` on."""
    first = max(0, bisect_right(segments, begin, key=lambda s: s.base_offset) - 1)
    unread = 0
    for at in range(first, min(first + _SEGMENTS_PER_TURN, len(segments))):
        unread += not segments[at].is_largest_known
        if unread > _UNREAD_SEGMENTS_PER_TURN:
            return
        yield at


def _scan_segment(segment: LogSegment, timestamp: int, from_offset: int) -> _Seen | None:
    """The first batch from ``from_offset`` on that holds a record so young, or None.

    Compaction leaves batches without records, and those hold none.
    """
    begin = max(segment.indexes().times.offset_before(timestamp), from_offset)
    located = segment.position_of(begin)
    for _ in range(_BATCHES_PER_TURN):
        if located is None:
            return None
        position, header = located
        if header.max_timestamp >= timestamp and header.record_count:
            return _Seen(header, segment.read_at(position, header.size_bytes))
        position += header.size_bytes
        located = walk_to(segment.read_at, position, segment.size_bytes, begin)
    return None if located is None else _Seen(header, None)


def _first_in(
    data: Buffer, header: BatchHeader, timestamp: int, start_offset: int
) -> FoundTimestamp | None:
    """The first record of a batch that is asked for, or None.

    Anyone may have written it, so what does not decode is no reason to fail.
    """
    try:
        body = open_body(data, 0, header, max_bytes=_MAX_UNPACKED_BYTES)
        search = TimeSearch(header, body, timestamp, max(0, start_offset - header.base_offset))
        read = 0
        while not search.step(_RECORDS_PER_STEP):
            read += _RECORDS_PER_STEP
            if read >= _MAX_RECORDS:
                return _beginning(header, start_offset)
    except OperatingError:
        return _beginning(header, start_offset)
    if search.found is None:
        return None
    offset_delta, stamped = search.found
    if offset_delta > header.last_offset_delta or stamped > header.max_timestamp:
        return _beginning(header, start_offset)
    offset = header.base_offset + offset_delta
    return FoundTimestamp(stamped, offset, header.partition_leader_epoch)


def _beginning(header: BatchHeader, start_offset: int) -> FoundTimestamp:
    """All that is answered for a batch that nobody can, or wants to, read."""
    offset = max(header.base_offset, start_offset)
    return FoundTimestamp(header.max_timestamp, offset, header.partition_leader_epoch)
