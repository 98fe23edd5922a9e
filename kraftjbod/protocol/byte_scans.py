"""PURE. Scans of the bytes of v2 records and batches: validity, keys and timestamps.

* Typed for mypyc's native integers, so that it can be compiled. The same source also runs
  interpreted. record_scans.py chooses the compiled form where it exists.
* A body is the decompressed rest of a batch after its header. It is not trusted: malformed bytes
  raise :class:`CorruptRecordError`, with the same messages in both forms.
* No value exceeds 64 bits: sizes are int32 varints, and positions are sums of few of them.
* Memory per record is used only by :func:`find_records`, and memory per batch only by the lists of
  :class:`BatchScan`.

Stricter than Kafka: lengths below -1 and varints with surplus bits are rejected.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from kraftjbod.core.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_extensions import i64

#: Length, attributes, two deltas, key, value and headers: at least one byte each.
_LEAST_RECORD_BYTES: Final = 7
_INT_BYTES: Final = 5
_INT_LAST: Final = 0x0F
_LONG_BYTES: Final = 10
_LONG_LAST: Final = 0x01
_LEAST_LONG: Final = -(2**63)

#: The batch header up to its producer id, see record_batch.py. One struct call is fast in both
#: forms. Reading single bytes takes a third of the time compiled, but six times as long
#: interpreted.
_BATCH: Final = struct.Struct(">qiibIhiqqq")
_BATCH_HEADER_BYTES: Final = 61
_BATCH_OVERHEAD_BYTES: Final = 12
_CRC_COVERS_FROM: Final = 21
#: Positions of the low byte of the attributes, its bits for transactional and control batches, and
#: positions of producer id and epoch.
_ATTRIBUTES_AT: Final = 22
_IN_TRANSACTION_BITS: Final = 0x30
_PRODUCER_AT: Final = 43
_PRODUCER_END: Final = 53
_MAGIC: Final = 2
_NO_PRODUCER_ID: Final = -1
#: Lower than any leader epoch of a batch.
_BELOW_EPOCHS: Final = -(2**32)


def check_records(
    body: bytes, count: i64, earliest: i64, latest: i64, exempt: i64
) -> tuple[i64, i64, i64]:
    """Check that ``body`` consists of ``count`` records with offset deltas 0, 1, 2 ...

    Timestamps are deltas to the batch's base timestamp. Deltas outside of ``earliest`` to
    ``latest`` are counted, except the value ``exempt``.

    :returns: the largest timestamp delta (the lowest int64 if there is no record), the number of
        records without a key, and the number of counted timestamps.
    :raises CorruptRecordError: naming the malformed record.
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
    """Return the next ``limit`` records from position ``begin`` on, without their headers.

    Per record: begin and end, begin and end of its timestamp delta, timestamp delta, offset delta,
    key, and whether it has a value. Offset deltas may have gaps, as after compaction.

    :raises CorruptRecordError: as :func:`check_records` does, and if fewer records are left.
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
    """Search ``limit`` records from position ``begin`` for the first match.

    A match has at least the timestamp delta ``earliest`` and the offset delta ``first_delta``.

    :returns: the position after the last parsed record, and the offset delta (-1 without a match)
        and the timestamp delta of the match.
    :raises CorruptRecordError: as :func:`check_records` does, for the parsed records.
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
    """Check that ``body`` ends at ``at``.

    :raises CorruptRecordError: more bytes follow.
    """
    if at != len(body):
        raise CorruptRecordError(f"{len(body) - at} bytes are left over after the records")


# --- parts of a record: each function takes the position of a part and returns the next one ------


def _record_end(body: bytes, at: i64, end: i64) -> tuple[i64, i64]:
    """Return the end of the record at ``at``, and the position after its length field."""
    length, at = _varint(body, at, end)
    if length < 0 or length > end - at:
        raise CorruptRecordError(f"a record claims {length} bytes, {end - at} are left")
    return at + length, at


def _after_field(at: i64, size: i64, stop: i64) -> i64:
    """Return the position after a field of ``size`` bytes; -1 means null."""
    if size < 0:
        if size < -1:
            raise CorruptRecordError(f"a field of a record claims {size} bytes")
        return at
    if size > stop - at:
        raise CorruptRecordError(f"a field of a record claims {size} bytes, {stop - at} are left")
    return at + size


def _after_headers(body: bytes, at: i64, stop: i64) -> i64:
    """Return the position after the headers of the record, which must be its end."""
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
    """Return the zig-zag int32 at ``at``, and the position after it."""
    if at >= stop:
        raise CorruptRecordError("a record is cut off")
    low: i64 = body[at]
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), at + 1
    return _rest_of_varint(body, at, stop, _INT_BYTES, _INT_LAST)


def _varlong(body: bytes, at: i64, stop: i64) -> tuple[i64, i64]:
    """Return the zig-zag int64 at ``at``, and the position after it."""
    if at >= stop:
        raise CorruptRecordError("a record is cut off")
    low: i64 = body[at]
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), at + 1
    return _rest_of_varint(body, at, stop, _LONG_BYTES, _LONG_LAST)


def _rest_of_varint(
    body: bytes, at: i64, stop: i64, most_bytes: i64, most_in_last: i64
) -> tuple[i64, i64]:
    """Return a zig-zag varint of at least two bytes, and the position after it.

    Its lowest bit, the sign, is handled separately, so that the other bits fit an int64.

    :param at: position of the first byte.
    :param most_bytes: maximum number of bytes.
    :param most_in_last: maximum value of the last of these bytes.
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
    """Return ``positions`` without the batches that ``count`` later ones of their producer follow.

    Only batches with the same producer id and epoch count. Transactional and control batches are
    always kept, and do not count.

    :param positions: positions in ``data`` of batches with a producer id, ascending.
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
    """One scan over the batches of a segment, which is read in pieces.

    A valid batch has a plausible header, starts at the next offset, ends below ``limit_offset``
    and, with ``crc``, matches its CRC. If ``may_have_gaps``, it may start at a later offset. With
    ``orders_epochs``, leader epochs must not decrease.

    :meth:`take` checks one piece, and lists the values of this piece that recovery needs.
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
        :param crc: function for the CRC-32C of bytes; None to skip the check of CRCs.
        :param next_offset: offset of the first batch. It and ``limit_offset`` must be far enough
            from the ends of an int64 that adding or subtracting an offset delta does not overflow.
        :param interval_bytes: minimum number of bytes between two index entries.
        :param least_epoch: the leader epoch before the first batch.
        """
        self._crc = crc
        self.next_offset: i64 = next_offset
        self._limit_offset: i64 = limit_offset
        self._may_have_gaps = may_have_gaps
        self._interval_bytes: i64 = interval_bytes
        self._orders_epochs = orders_epochs
        self._leader_epoch: i64 = least_epoch
        #: The largest timestamp, and the last offset of the first batch with it; offset -1 before
        #: the first batch.
        self.largest_timestamp: i64 = 0
        self.largest_offset: i64 = -1
        #: Bytes of batches since the last index entry, including the batch of that entry.
        self.bytes_since_entry: i64 = 0
        #: Size of the partial batch at the end of the last piece; 0 if there is none or no header.
        self.torn_bytes: i64 = 0
        #: Whether the last piece has an invalid batch.
        self.is_over = False
        #: Of the last piece: last offset and position of each batch with an index entry, and the
        #: largest timestamp up to that batch with its offset.
        self.entries: list[tuple[int, int, int, int]] = []
        #: Of the last piece: each new leader epoch and its first offset.
        self.epochs: list[tuple[int, int]] = []
        #: Of the last piece: positions of batches with a producer id.
        self.producers: list[int] = []

    def take(self, data: bytes) -> int:
        """Check the batches of ``data``, the next piece; return the size of the valid ones at its
        start.

        A partial batch at the end is not included.
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
        """Return whether a batch with these offsets and this epoch may follow the previous one."""
        if base != self.next_offset and (base < self.next_offset or not self._may_have_gaps):
            return False
        # Compare the difference, because the sum could overflow 64 bits.
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
