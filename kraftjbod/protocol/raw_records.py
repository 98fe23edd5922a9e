"""PURE. Records of a batch without decoding: their positions, keys, and whether they have values.

For log compaction, which reads keys and copies records unchanged, and for searches by timestamp.
Compaction keeps the base offset and last offset delta of a batch, so no offset ever changes
(KIP-58). The remaining records are compressed with the same codec.
A batch with a *delete horizon* (KIP-534) has bit 6 of its attributes set, and stores the horizon in
place of its base timestamp: the wall-clock time from which tombstones may be removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kraftjbod.core.config_model import MAX_LONG
from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import (
    COMPRESSION_BITS,
    HORIZON_BIT,
    BatchHeader,
    sealed,
)
from kraftjbod.protocol.record_scans import find_records, find_timestamp, require_end
from kraftjbod.protocol.records import compress_body, encode_varint

NO_HORIZON: Final = -1
_NO_TIMESTAMP: Final = -1
_LARGEST_INT: Final = 2**31 - 1
#: Keeps timestamp deltas to the horizon within 64 bits.
_LATEST_HORIZON: Final = 2**62
#: Records held in memory at once, because a batch may contain millions of records.
SLICE_RECORDS: Final = 4096


class RawRecord(NamedTuple):
    """Position and key of one record in a decompressed body, not decoded further. Positions are
    bytes: the record is from ``begin`` to below ``end``.

    The fields have the order of the tuples from :func:`byte_scans.find_records`.
    """

    begin: int
    end: int
    #: Position of the timestamp delta, after length and attributes.
    delta_begin: int
    delta_end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def raw_records(
    body: Buffer, count: int, last_offset_delta: int = _LARGEST_INT
) -> Iterator[RawRecord]:
    """Yield the ``count`` records of a decompressed ``body``, a limited number in memory.

    Offset deltas must increase, and may not exceed ``last_offset_delta``.

    :raises CorruptRecordError: the records contradict their lengths, ``count`` or the offset
        deltas.
    """
    data, at, before = bytes(body), 0, -1
    while count > 0:
        found = find_records(data, at, min(count, SLICE_RECORDS))
        first, last = RawRecord._make(found[0]), RawRecord._make(found[-1])
        if first.offset_delta <= before or last.offset_delta > last_offset_delta:
            raise CorruptRecordError(
                f"offset deltas {first.offset_delta} to {last.offset_delta} follow {before}, "
                f"and {last_offset_delta} is the batch's last"
            )
        yield from map(RawRecord._make, found)
        at, before, count = last.end, last.offset_delta, count - len(found)
    require_end(data, at)


class TimeSearch:
    """Searches a decompressed body for the first record at or after a timestamp, in steps.

    ``found`` is the offset delta and the timestamp (wall-clock ms) of that record; None until
    :meth:`step` has found it.
    """

    def __init__(
        self, header: BatchHeader, body: Buffer, timestamp: int, first_delta: int = 0
    ) -> None:
        """
        :param header: header of the batch.
        :param timestamp: earliest timestamp, in wall-clock ms.
        :param first_delta: lowest offset delta of a result.
        """
        self.found: tuple[int, int] | None = None
        self._header = header
        self._data = bytes(body)
        self._at = 0
        self._left = header.record_count
        self._first_delta = first_delta
        #: Clamped to an int64: beyond it, either all records or no record are recent enough.
        earliest = timestamp - header.base_timestamp
        if header.has_append_time:
            earliest = -MAX_LONG if timestamp <= header.max_timestamp else MAX_LONG
        self._earliest = max(-MAX_LONG, min(earliest, MAX_LONG))

    def step(self, max_records: int = SLICE_RECORDS) -> bool:
        """Search the next ``max_records`` records; return True if the search has ended.

        :raises CorruptRecordError: the records contradict their lengths.
        """
        limit = min(self._left, max_records)
        self._at, offset_delta, delta = find_timestamp(
            self._data, self._at, limit, self._earliest, self._first_delta
        )
        self._left -= limit
        if offset_delta < 0:
            return self._left <= 0
        header = self._header
        timestamp = (
            header.max_timestamp if header.has_append_time else header.base_timestamp + delta
        )
        self.found = (offset_delta, timestamp)
        return True


def delete_horizon(header: BatchHeader) -> int:
    """Return the wall-clock ms from which tombstones may be removed; :data:`NO_HORIZON` if
    not set."""
    return header.base_timestamp if header.attributes & HORIZON_BIT else NO_HORIZON


def thinned_batch(
    header: BatchHeader, body: Buffer, kept: Sequence[RawRecord], horizon_ms: int = NO_HORIZON
) -> bytes:
    """Return the batch of ``header`` with only the records ``kept`` (at least one) of ``body``.

    :param body: the decompressed body of the batch.
    :param horizon_ms: delete horizon to set, in wall-clock ms; ignored if the batch has one.
    :raises CorruptRecordError: a timestamp is out of range.
    """
    assert kept, "a batch without records is an empty_batch"
    base, attributes, shift = header.base_timestamp, header.attributes, 0
    if horizon_ms != NO_HORIZON and not attributes & HORIZON_BIT:
        horizon_ms = min(horizon_ms, _LATEST_HORIZON)
        shift = base - horizon_ms
        base, attributes = horizon_ms, attributes | HORIZON_BIT
    out = bytearray()
    for record in kept:
        if shift == 0:
            out += body[record.begin : record.end]
            continue
        delta = encode_varint(record.timestamp_delta + shift)
        length = record.end - record.delta_end + len(delta) + 1
        out += encode_varint(length)
        out += body[record.delta_begin - 1 : record.delta_begin]
        out += delta
        out += body[record.delta_end : record.end]
    newest = header.max_timestamp
    if not header.has_append_time:
        newest = header.base_timestamp + max(record.timestamp_delta for record in kept)
        oldest = header.base_timestamp + min(record.timestamp_delta for record in kept)
        if not (oldest >= -_LATEST_HORIZON and newest <= MAX_LONG):
            raise CorruptRecordError(f"records with timestamps from {oldest} to {newest}")
    packed = compress_body(header.compression, bytes(out))
    return sealed(
        header._replace(
            attributes=attributes,
            base_timestamp=base,
            max_timestamp=newest,
            record_count=len(kept),
        ),
        packed,
    )


def empty_batch(header: BatchHeader) -> bytes:
    """Return the batch of ``header`` without records; producer, epoch and offsets are kept.

    Base timestamp, compression and delete horizon are cleared.
    """
    attributes = header.attributes & ~(HORIZON_BIT | COMPRESSION_BITS)
    emptied = header._replace(attributes=attributes, base_timestamp=_NO_TIMESTAMP, record_count=0)
    return sealed(emptied, b"")
