"""DISK. ``LogTimeSearch`` and ``MaxTimestampSearch``: searches by timestamp, done in turns.

* The directory's thread searches a few segments and batches per turn, so that other operations do
  not wait. A turn reads the indexes of at most one segment, and a few entries of some others. The
  next turn continues after them.
* Another thread decompresses the batch that was found. Any client may search, and a batch of some
  KiB may decompress to gigabytes of records with seven bytes each, so both are limited. For a
  batch beyond the limits, or one that cannot be decompressed, the answer is the batch's first
  offset. That is not later than the exact answer.
* A segment's time index may be wrong, so the caller supplies a function that repeats a search
  with a rebuilt index.
* The search passes the end of a segment only if the next segment continues there, or the damage is
  known. Otherwise it would miss the records of a lost segment, and its answer would be too late.
* Between two turns segments may be deleted, truncated, compacted or rolled, and the log start may
  advance. A turn therefore finds its place by offset. A maximum whose record was deleted meanwhile
  is searched for again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from kraftjbod.core.errors import OperatingError
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.raw_records import TimeSearch
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.protocol.records import open_body
from kraftjbod.storage.log.log_values import FoundTimestamp
from kraftjbod.storage.segments.batch_walk import walk_to
from kraftjbod.storage.segments.segment import LogSegment

T = TypeVar("T")

#: Headers that are read per turn of the directory's thread, which takes some milliseconds.
_BATCHES_PER_TURN: Final = 2_000
#: Segments per turn whose largest timestamp or end is read from files, with some disk seeks each.
_UNREAD_SEGMENTS_PER_TURN: Final = 4
#: Segments that are examined per turn, read or not.
_SEGMENTS_PER_TURN: Final = 4_096
#: Batches that a search opens without an answer. One is usual: the log may start inside it.
_MAX_OPENED_BATCHES: Final = 16
#: Limits for the decompressed size of a batch, and for the records that are read of it.
_MAX_UNPACKED_BYTES: Final = 16 * 1024 * 1024
_MAX_RECORDS: Final = 1_000_000
#: Records between releases of the interpreter lock.
_RECORDS_PER_STEP: Final = 4096


class _Seen(NamedTuple):
    """End of a turn: a batch to decompress, or with ``data`` None the last batch that was
    examined.
    """

    header: BatchHeader
    data: Buffer | None


class ByIndex(Protocol):
    """Runs a search in segment number ``at``, and repeats it with a rebuilt index if the first one
    led to no batch.
    """

    def __call__(self, at: int, search: Callable[[], T], /) -> T: ...


#: Raises SegmentUnreadError unless the segment with this number ends where the next one begins, or
#: its damage is known.
RequireEnd = Callable[[int], None]


class LogTimeSearch:
    """Search for the first record that is not older than ``timestamp`` (wall ms).

    Call :meth:`scan` until :attr:`is_over`. After each call, call :meth:`open` if
    :attr:`unopened_bytes` is not 0.
    """

    def __init__(self, timestamp: int, from_offset: int = 0) -> None:
        """Start a search for ``timestamp``.

        :param from_offset: all records before it are known to be older.
        """
        self._timestamp = timestamp
        #: The log start offset at the last turn.
        self._log_start = 0
        #: The answer is not before this offset.
        self._next_offset = from_offset
        self._found: _Seen | None = None
        self._opened = 0
        #: Base offsets of batches that were opened and have no record that matches.
        self.unmatched: set[int] = set()
        self.is_over = False
        #: None until an answer is found, and if there is none.
        self.answer: FoundTimestamp | None = None

    @property
    def unopened_bytes(self) -> int:
        """Size of the batch to decompress, in bytes; 0 if there is none."""
        return 0 if self._found is None else self._found.header.size_bytes

    def scan(
        self,
        segments: Sequence[LogSegment],
        start_offset: int,
        by_index: ByIndex,
        require_end: RequireEnd,
    ) -> None:
        """Search the next segments and batches, in the directory's thread.

        :param start_offset: the log start offset.
        :param require_end: called before the search continues in the next segment.
        """
        self._log_start = start_offset
        begin = max(start_offset, self._next_offset)
        for at in _segments_of_turn(segments, begin):
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
                require_end(at)
                self._next_offset = segments[at + 1].base_offset

    def open(self) -> None:
        """Decompress the batch that was found and search it for the answer, in any thread.

        An undecodable batch raises no error: its first offset is the answer.
        """
        assert self._found is not None, "scan() found nothing"
        found, self._found = self._found, None
        assert found.data is not None, found
        self._opened += 1
        header, start = found.header, self._log_start
        if self._opened > _MAX_OPENED_BATCHES:
            self.answer = _beginning(header, start)
        else:
            self.answer = _first_in(found.data, header, self._timestamp, start)
        # The log may start inside this batch, and its matching records may be before that.
        self.is_over = self.answer is not None
        if not self.is_over:
            self.unmatched.add(header.base_offset)


class _Doubtful(NamedTuple):
    """A segment whose largest timestamp may belong to no record of the log."""

    base_offset: int
    #: No batch of the segment has a larger timestamp.
    bound: int
    #: Batches that end before this offset were examined.
    next_offset: int


class _Walked(NamedTuple):
    #: The largest timestamp of the batches; None if there are none.
    largest: int | None
    #: Where the next turn continues; None at the end of the segment.
    next_offset: int | None


class MaxTimestampSearch:
    """Search for the largest timestamp of a log. Call :meth:`scan` until :attr:`is_over`.

    Cost: the last index entry of each segment. If the record of such an entry was deleted by
    DeleteRecords, and no other segment has a larger timestamp, the headers of that segment.
    """

    def __init__(
        self,
        doubtful_segments: AbstractSet[int] = frozenset(),
        unmatched_batches: AbstractSet[int] = frozenset(),
    ) -> None:
        """Create the search, or a second one after no record had the result of the first one.

        :param doubtful_segments: base offsets of segments whose headers are to be read.
        :param unmatched_batches: base offsets of batches that are omitted from those.
        """
        self._doubtful_segments = doubtful_segments
        self._unmatched_batches = unmatched_batches
        self._next_offset = 0
        self._are_entries_read = False
        self._doubtful: list[_Doubtful] = []
        self.is_over = False
        #: Result so far; None if no segment has batches.
        self.largest: int | None = None
        #: Base offset of the first segment that has it.
        self.base_offset = 0

    def scan(
        self,
        segments: Sequence[LogSegment],
        start_offset: int,
        by_index: ByIndex,
        require_end: RequireEnd,
    ) -> None:
        """Read the largest timestamps of the next segments, in the directory's thread.

        :param require_end: called before the search continues in the next segment.
        """
        if not self._are_entries_read:
            self._read_entries(segments, start_offset, require_end)
        elif self._doubtful:
            self._walk_doubtful(segments, start_offset, by_index)
        while self._doubtful and self.largest is not None:
            if self._doubtful[-1].bound >= self.largest:
                break
            self._doubtful.pop()
        self.is_over = self._are_entries_read and not self._doubtful

    def _read_entries(
        self, segments: Sequence[LogSegment], start_offset: int, require_end: RequireEnd
    ) -> None:
        for at in _segments_of_turn(segments, max(start_offset, self._next_offset)):
            require_end(at)
            base_offset, found = segments[at].base_offset, segments[at].largest_timestamp()
            if found is None:
                pass
            elif found.offset < start_offset or base_offset in self._doubtful_segments:
                self._doubtful.append(_Doubtful(base_offset, found.timestamp, base_offset))
            else:
                self._note(found.timestamp, base_offset)
            if at + 1 == len(segments):
                self._are_entries_read = True
            else:
                self._next_offset = segments[at + 1].base_offset

    def _walk_doubtful(
        self, segments: Sequence[LogSegment], start_offset: int, by_index: ByIndex
    ) -> None:
        """Read the next headers of the last doubtful segment."""
        one = self._doubtful.pop()
        at = bisect_left(segments, one.base_offset, key=lambda s: s.base_offset)
        if at == len(segments) or segments[at].base_offset != one.base_offset:
            return  # It was deleted.
        begin = max(start_offset, one.next_offset)
        walked = by_index(at, partial(_largest_in, segments[at], begin, self._unmatched_batches))
        if walked.largest is not None:
            self._note(walked.largest, one.base_offset)
        if walked.next_offset is not None:
            self._doubtful.append(one._replace(next_offset=walked.next_offset))

    def _note(self, timestamp: int, base_offset: int) -> None:
        found = timestamp, -base_offset
        if self.largest is None or found > (self.largest, -self.base_offset):
            self.largest, self.base_offset = timestamp, base_offset


def _segments_of_turn(segments: Sequence[LogSegment], begin: int) -> Iterator[int]:
    """Yield the segment numbers of one turn, starting with the segment that holds ``begin``."""
    first = max(0, bisect_right(segments, begin, key=lambda s: s.base_offset) - 1)
    unread = 0
    for at in range(first, min(first + _SEGMENTS_PER_TURN, len(segments))):
        segment = segments[at]
        unread += not (segment.is_largest_known and segment.is_end_known)
        if unread > _UNREAD_SEGMENTS_PER_TURN:
            return
        yield at


def _scan_segment(segment: LogSegment, timestamp: int, from_offset: int) -> _Seen | None:
    """Search the segment for the first batch from ``from_offset`` on with a record that matches.

    Batches that compaction left without records do not match. Returns None if the segment has no
    such batch. After too many batches it returns the last one without data.
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


def _largest_in(
    segment: LogSegment, from_offset: int, unmatched_batches: AbstractSet[int]
) -> _Walked:
    """Return the largest timestamp of the next batches with records from ``from_offset`` on.

    Not all of these records are examined: the largest one of the first batch may be before
    ``from_offset``.
    """
    largest: int | None = None
    located = segment.position_of(from_offset)
    for _ in range(_BATCHES_PER_TURN):
        if located is None:
            return _Walked(largest, None)
        position, header = located
        if header.record_count and header.base_offset not in unmatched_batches:
            newest = header.max_timestamp
            largest = newest if largest is None else max(largest, newest)
        position += header.size_bytes
        located = walk_to(segment.read_at, position, segment.size_bytes, from_offset)
    return _Walked(largest, None if located is None else located.header.base_offset)


def _first_in(
    data: Buffer, header: BatchHeader, timestamp: int, start_offset: int
) -> FoundTimestamp | None:
    """Return the first matching record of a batch; None if no record from the log start on matches.

    Any client may have written the batch, so a decoding error is no failure of the search: the
    answer is the first offset.
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
    """Return the answer for a batch that cannot be decompressed within limits: its first offset."""
    offset = max(header.base_offset, start_offset)
    return FoundTimestamp(header.max_timestamp, offset, header.partition_leader_epoch)
