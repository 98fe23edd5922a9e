"""PURE. Passes over the bytes of v2 records and batches: are they sound, which keys, which times.

* Typed for mypyc's native integers, so that it can be compiled; the same source runs as it is
  where it was not. Whoever wants the faster of the two asks record_scans.py.
* A body is what follows the header of a batch, unpacked. It may come from anywhere: whatever is
  wrong with it ends in :class:`CorruptRecordError`, in both forms with the same words.
* No value in here leaves 64 bits: sizes are int32 by their varints, and places add up few of them.
* Nothing is kept per record, but for what :func:`find_records` returns, and nothing per batch, but
  for what :class:`BatchScan` lists.

Where Kafka is lenient this is strict: lengths below -1 and varints with bits that do not count
are refused.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from kraftjbod.core.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_extensions import i64

#: Length, attributes, two deltas, key, value and headers: a byte each at least.
_LEAST_RECORD_BYTES: Final = 7
_INT_BYTES: Final = 5
_INT_LAST: Final = 0x0F
_LONG_BYTES: Final = 10
_LONG_LAST: Final = 0x01
_LEAST_LONG: Final = -(2**63)

#: The header of a batch up to its producer id, as record_batch.py describes it. One call of struct
#: is fast in both forms; single bytes take a third of the time compiled, six times as long
#: interpreted.
_BATCH: Final = struct.Struct(">qiibIhiqqq")
_BATCH_HEADER_BYTES: Final = 61
_BATCH_OVERHEAD_BYTES: Final = 12
_CRC_COVERS_FROM: Final = 21
#: The low byte of the attributes, its bits of transactional and control batches, and the producer
#: id with the producer epoch.
_ATTRIBUTES_AT: Final = 22
_IN_TRANSACTION_BITS: Final = 0x30
_PRODUCER_AT: Final = 43
_PRODUCER_END: Final = 53
_MAGIC: Final = 2
_NO_PRODUCER_ID: Final = -1
#: Below each leader epoch that a batch can have.
_BELOW_EPOCHS: Final = -(2**32)


def check_records(
    body: bytes, count: i64, earliest: i64, latest: i64, exempt: i64
) -> tuple[i64, i64, i64]:
    """Pass if ``body`` holds ``count`` records with offset deltas 0, 1, 2 ... and nothing else.

    Timestamps are deltas to the batch's: those outside of ``earliest`` to ``latest`` are counted,
    but ``exempt`` is none of them.

    :returns: the largest timestamp delta (the least int64 if there is no record), and how many
        records have no key, and how many such a timestamp.
    :raises CorruptRecordError: saying what is wrong with which record.
    """
    at: i64 = 0
    end: i64 = len(body)
    largest: i64 = _LEAST_LONG
    keyless: i64 = 0
    untimely: i64 = 0
    stop: i64 = 0
    delta: i64 = 0
    offset_delta: i64 = 0
    size: i64 = 0
    index: i64 = 0
    if count < 0 or count > end // _LEAST_RECORD_BYTES:
        raise CorruptRecordError(f"{end} bytes cannot hold {count} records")
    while index < count:
        stop, at = _record_end(body, at, end)
        delta, at = _varlong(body, at + 1, stop)
        if delta > largest:
            largest = delta
        if (delta < earliest or delta > latest) and delta != exempt:
            untimely += 1
        offset_delta, at = _varint(body, at, stop)
        if offset_delta != index:
            raise CorruptRecordError(f"record {index} has offset delta {offset_delta}")
        size, at = _varint(body, at, stop)
        if size < 0:
            keyless += 1
        at = _after_field(at, size, stop)
        size, at = _varint(body, at, stop)
        at = _after_field(at, size, stop)
        at = _after_headers(body, at, stop)
        index += 1
    require_end(body, at)
    return largest, keyless, untimely


def find_records(
    body: bytes, begin: i64, limit: i64
) -> list[tuple[int, int, int, int, int, int, bytes | None, bool]]:
    """Up to ``limit`` (one or more) records from ``begin`` on.

    Of each: where it begins and ends, where its timestamp delta begins and ends, timestamp and
    offset delta, its key, and whether it has a value. Headers are not read. Offset deltas
    may leave numbers out, as compaction does.

    :raises CorruptRecordError: as :func:`check_records` does.
    """
    found: list[tuple[int, int, int, int, int, int, bytes | None, bool]] = []
    at: i64 = begin
    end: i64 = len(body)
    stop: i64 = 0
    delta_begin: i64 = 0
    delta_end: i64 = 0
    delta: i64 = 0
    offset_delta: i64 = 0
    size: i64 = 0
    before: i64 = -1
    while limit > 0:
        stop, at = _record_end(body, begin, end)
        delta_begin = at + 1
        delta, delta_end = _varlong(body, delta_begin, stop)
        offset_delta, at = _varint(body, delta_end, stop)
        if offset_delta <= before:
            raise CorruptRecordError(f"offset delta {offset_delta} follows {before}")
        before = offset_delta
        size, at = _varint(body, at, stop)
        key: bytes | None = None
        if size >= 0 and at + size <= stop:
            key = body[at : at + size]
        at = _after_field(at, size, stop)
        size, at = _varint(body, at, stop)
        _after_field(at, size, stop)
        found.append((begin, stop, delta_begin, delta_end, delta, offset_delta, key, size >= 0))
        begin = stop
        limit -= 1
    return found


def find_timestamp(
    body: bytes, begin: i64, limit: i64, earliest: i64, first_delta: i64
) -> tuple[i64, i64, i64]:
    """Look for the first record that is young enough, through ``limit`` records from ``begin`` on.

    Its timestamp delta is ``earliest`` or more, and its offset delta ``first_delta`` or more.

    :returns: where to go on, and the record's offset delta (-1 if it is none of these) and
        timestamp delta.
    :raises CorruptRecordError: as :func:`check_records` does, of what it reads.
    """
    at: i64 = begin
    end: i64 = len(body)
    stop: i64 = 0
    delta: i64 = 0
    offset_delta: i64 = 0
    while limit > 0:
        stop, at = _record_end(body, at, end)
        delta, at = _varlong(body, at + 1, stop)
        offset_delta, at = _varint(body, at, stop)
        if offset_delta < 0:
            raise CorruptRecordError(f"a record has offset delta {offset_delta}")
        at = stop
        if delta >= earliest and offset_delta >= first_delta:
            return at, offset_delta, delta
        limit -= 1
    return at, -1, 0


def require_end(body: bytes, at: i64) -> None:
    """:raises CorruptRecordError: if the records end before ``body`` does."""
    if at != len(body):
        raise CorruptRecordError(f"{len(body) - at} bytes are left over after the records")


# --- parts of a record: each is given where it begins, and returns where the next one does ----


def _record_end(body: bytes, at: i64, end: i64) -> tuple[i64, i64]:
    """Where the record at ``at`` ends, and where it goes on after its length."""
    length, at = _varint(body, at, end)
    if length < 0 or length > end - at:
        raise CorruptRecordError(f"a record claims {length} bytes, {end - at} are left")
    return at + length, at


def _after_field(at: i64, size: i64, stop: i64) -> i64:
    """A size of -1 stands for null."""
    if size < 0:
        if size < -1:
            raise CorruptRecordError(f"a field of a record claims {size} bytes")
        return at
    if size > stop - at:
        raise CorruptRecordError(f"a field of a record claims {size} bytes, {stop - at} are left")
    return at + size


def _after_headers(body: bytes, at: i64, stop: i64) -> i64:
    """After the record's headers, which are its end."""
    size: i64 = 0
    count, at = _varint(body, at, stop)
    if count < 0 or count > stop - at:
        raise CorruptRecordError(f"a record claims {count} headers, {stop - at} bytes are left")
    while count > 0:
        size, at = _varint(body, at, stop)
        if size < 0:
            raise CorruptRecordError("a header of a record has no name")
        at = _after_field(at, size, stop)
        size, at = _varint(body, at, stop)
        at = _after_field(at, size, stop)
        count -= 1
    if at != stop:
        raise CorruptRecordError(f"a record has {stop - at} bytes too many")
    return at


def _varint(body: bytes, at: i64, stop: i64) -> tuple[i64, i64]:
    """An int32, zig-zag."""
    if at >= stop:
        raise CorruptRecordError("a record is cut off")
    low: i64 = body[at]
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), at + 1
    return _rest_of_varint(body, at, stop, _INT_BYTES, _INT_LAST)


def _varlong(body: bytes, at: i64, stop: i64) -> tuple[i64, i64]:
    """An int64, zig-zag."""
    if at >= stop:
        raise CorruptRecordError("a record is cut off")
    low: i64 = body[at]
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), at + 1
    return _rest_of_varint(body, at, stop, _LONG_BYTES, _LONG_LAST)


def _rest_of_varint(
    body: bytes, at: i64, stop: i64, most_bytes: i64, most_in_last: i64
) -> tuple[i64, i64]:
    """A varint of two bytes or more.

    The sign, which is its lowest bit, is kept apart, so that what is left fits 63 bits.
    """
    last: i64 = at + most_bytes - 1
    byte: i64 = body[at]
    sign: i64 = byte & 1
    value: i64 = (byte & 0x7F) >> 1
    shift: i64 = 6
    while byte >= 0x80:
        at += 1
        if at >= stop:
            raise CorruptRecordError("a record is cut off")
        byte = body[at]
        if at == last and byte > most_in_last:
            raise CorruptRecordError(f"a varint does not fit {most_bytes} bytes")
        value |= (byte & 0x7F) << shift
        shift += 7
    return (~value if sign else value), at + 1


def latest_of_producers(data: bytes, positions: list[int], count: i64) -> list[int]:
    """Leave out plain batches that ``count`` later plain ones of their producer and epoch follow.

    :param positions: where batches with a producer id begin in ``data``, rising.
    """
    kept: list[int] = []
    seen: dict[bytes, int] = {}
    for position in reversed(positions):
        at: i64 = position
        if data[at + _ATTRIBUTES_AT] & _IN_TRANSACTION_BITS:
            kept.append(position)
            continue
        producer = data[at + _PRODUCER_AT : at + _PRODUCER_END]
        before: i64 = seen.get(producer, 0)
        if before < count:
            seen[producer] = before + 1
            kept.append(position)
    kept.reverse()
    return kept


class BatchScan:
    """One pass over the batches of a segment, which come piece by piece.

    A sound batch has a possible header, begins with the next offset and, with ``crc``, fits its
    CRC. Where the log may have gaps, a batch may begin later. Each batch ends below
    ``limit_offset``. With ``orders_epochs`` leader epochs must not fall.

    :meth:`take` lists what recovery needs of a piece, and goes on where the piece before ended.
    """

    def __init__(
        self,
        crc: Callable[[memoryview], int] | None,
        *,
        next_offset: i64,
        limit_offset: i64,
        may_have_gaps: bool,
        interval_bytes: i64,
        orders_epochs: bool = False,
        least_epoch: i64 = _BELOW_EPOCHS,
    ) -> None:
        """
        :param crc: CRC-32C of some bytes; None: the CRC of batches is not checked.
        :param next_offset: of the first batch; with ``limit_offset`` it leaves room in an int64.
        :param interval_bytes: how much of a segment lies between two index entries, at least.
        :param least_epoch: the leader epoch before the first batch.
        """
        self._crc = crc
        self.next_offset: i64 = next_offset
        self._limit_offset: i64 = limit_offset
        self._may_have_gaps = may_have_gaps
        self._interval_bytes: i64 = interval_bytes
        self._orders_epochs = orders_epochs
        self._leader_epoch: i64 = least_epoch
        #: The largest timestamp and the last offset of the first batch that has it; offset -1
        #: before the first batch.
        self.largest_timestamp: i64 = 0
        self.largest_offset: i64 = -1
        #: Bytes of batches since the one of the last index entry, that one included.
        self.bytes_since_entry: i64 = 0
        #: Size of the batch that the last piece holds in part; 0 if it holds none, or no header.
        self.torn_bytes: i64 = 0
        #: The last piece holds a batch that is not sound.
        self.is_over = False
        #: Of the last piece: last offset and position of each batch with an index entry, and the
        #: largest timestamp up to that batch with its offset.
        self.entries: list[tuple[int, int, int, int]] = []
        #: Of the last piece: each new leader epoch, and where it begins.
        self.epochs: list[tuple[int, int]] = []
        #: Of the last piece: the positions of batches with a producer id.
        self.producers: list[int] = []

    def take(self, data: bytes) -> int:
        """Check the batches of ``data``; return the size of those before the first unsound one.

        A batch that ``data`` holds in part is not counted.
        """
        self.entries, self.epochs, self.producers = [], [], []
        self.torn_bytes = 0
        at: i64 = 0
        end: i64 = len(data)
        view = memoryview(data)
        while end - at >= _BATCH_HEADER_BYTES:
            base, length, epoch, magic, crc, _, delta, _, timestamp, producer_id = (
                _BATCH.unpack_from(data, at)
            )
            size: i64 = _BATCH_OVERHEAD_BYTES + length
            if magic != _MAGIC or size < _BATCH_HEADER_BYTES or delta < 0:
                self.is_over = True
                break
            if size > end - at:
                self.torn_bytes = size
                break
            if not self._continues(base, delta, epoch) or (
                self._crc is not None and self._crc(view[at + _CRC_COVERS_FROM : at + size]) != crc
            ):
                self.is_over = True
                break
            self._note(at, size, base, delta, epoch, timestamp)
            if producer_id != _NO_PRODUCER_ID:
                self.producers.append(at)
            at += size
        return at

    def _continues(self, base: i64, delta: i64, epoch: i64) -> bool:
        """Whether a batch of these offsets and this epoch may come next."""
        if base != self.next_offset and (base < self.next_offset or not self._may_have_gaps):
            return False
        # The difference fits 64 bits, a sum may not.
        if base >= self._limit_offset - delta:
            return False
        return not self._orders_epochs or epoch >= self._leader_epoch

    def _note(self, at: i64, size: i64, base: i64, delta: i64, epoch: i64, timestamp: i64) -> None:
        last: i64 = base + delta
        if self.largest_offset < 0 or timestamp > self.largest_timestamp:
            self.largest_timestamp, self.largest_offset = timestamp, last
        if self.bytes_since_entry > self._interval_bytes:
            self.entries.append((last, at, self.largest_timestamp, self.largest_offset))
            self.bytes_since_entry = 0
        self.bytes_since_entry += size
        if epoch != self._leader_epoch:
            self.epochs.append((epoch, base))
            self._leader_epoch = epoch
        self.next_offset = last + 1
