"""Records of a batch as they lie there: where each begins, its key, and whether it has a value.

For log compaction, which looks at keys and copies records without understanding more of them, and
for the question whether a producer gave every record a key.
A batch that loses records keeps its base offset and its last offset delta, so no offset ever
changes (KIP-58); what is left of it is compressed as it was.
A batch with a *delete horizon* (KIP-534) has it in place of its base timestamp, and says so with
bit 6 of its attributes: the wall-clock time from which its tombstones may go.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kraftjbod.core.errors import CorruptRecordError, ErrorCode, OperatingError
from kraftjbod.protocol.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    Buffer,
    compute_crc,
)
from kraftjbod.protocol.records import compress_body, encode_varint, open_body, read_varint

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_COMPRESSION_BITS: Final = 0x07
_HORIZON_BIT: Final = 0x40
NO_HORIZON: Final = -1
_NO_TIMESTAMP: Final = -1


class RawRecord(NamedTuple):
    """One record of an opened body; the bytes from ``begin`` to ``end`` are all of it."""

    begin: int
    end: int
    #: Behind length and attributes: where the timestamp delta begins, and what follows it.
    delta_begin: int
    delta_end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def raw_records(body: Buffer, count: int) -> Iterator[RawRecord]:
    """The ``count`` records of an opened ``body``, one by one.

    :raises CorruptRecordError: if they contradict their lengths or their number.
    """
    data, end = bytes(body), 0
    try:
        for _ in range(count):
            begin = end
            length, start = _varint(data, begin)
            end = start + length
            if length < 0 or end > len(data):
                raise CorruptRecordError(f"a record claims {length} bytes")
            delta_begin = start + 1
            timestamp_delta, delta_end = _varint(data, delta_begin)
            offset_delta, position = _varint(data, delta_end)
            size, position = _varint(data, position)
            key = None
            if size >= 0:
                key, position = data[position : position + size], position + size
            size, position = _varint(data, position)
            if position + max(0, size) > end:
                raise CorruptRecordError(f"a record of {length} bytes ends inside a field")
            yield RawRecord(
                begin, end, delta_begin, delta_end, timestamp_delta, offset_delta, key, size >= 0
            )
    except IndexError as e:
        raise CorruptRecordError(f"a record is malformed: {e}") from e
    if end != len(data):
        raise CorruptRecordError(f"{len(data) - end} bytes are left over behind the records")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """As :func:`read_varint`; most are short, and that is most of the work here."""
    low = data[position]
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), position + 1
    high = data[position + 1]
    if high < 0x80:
        low = low & 0x7F | high << 7
        return (low >> 1) ^ -(low & 1), position + 2
    return read_varint(data, position)


def require_keys(buf: Buffer, position: int, header: BatchHeader) -> None:
    """Pass if every record of the batch has a key, as compacted topics demand.

    :raises OperatingError: INVALID_RECORD, if one has none.
    :raises CorruptRecordError: if the records cannot be opened.
    """
    for record in raw_records(open_body(buf, position, header), header.record_count):
        if record.key is None:
            raise OperatingError(
                f"record {record.offset_delta} of the batch has no key, "
                "which a compacted topic does not accept",
                code=ErrorCode.INVALID_RECORD,
            )


def delete_horizon(header: BatchHeader) -> int:
    """From when on its tombstones may go, in wall-clock ms; :data:`NO_HORIZON` if not known."""
    return header.base_timestamp if header.attributes & _HORIZON_BIT else NO_HORIZON


def thinned_batch(
    header: BatchHeader, body: Buffer, kept: Sequence[RawRecord], horizon_ms: int = NO_HORIZON
) -> bytes:
    """The batch with nothing but the records ``kept`` (one or more) of its opened ``body``.

    ``horizon_ms`` becomes its delete horizon unless it has one already.
    """
    assert kept, "a batch without records is an empty_batch"
    base, attributes, shift = header.base_timestamp, header.attributes, 0
    if horizon_ms != NO_HORIZON and not attributes & _HORIZON_BIT:
        shift = base - horizon_ms
        base, attributes = horizon_ms, attributes | _HORIZON_BIT
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
    packed = compress_body(header.compression, bytes(out))
    return _sealed(header, attributes, base, newest, len(kept), packed)


def empty_batch(header: BatchHeader) -> bytes:
    """The batch without its records: what it says of its producer, epoch and offsets."""
    attributes = header.attributes & ~(_HORIZON_BIT | _COMPRESSION_BITS)
    return _sealed(header, attributes, _NO_TIMESTAMP, header.max_timestamp, 0, b"")


def _sealed(
    header: BatchHeader,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    packed: bytes,
) -> bytes:
    batch = bytearray(
        _HEADER.pack(
            *header._replace(
                batch_length=HEADER_BYTES - LOG_OVERHEAD_BYTES + len(packed),
                crc=0,
                attributes=attributes,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
                record_count=count,
            )
        )
    )
    batch += packed
    _CRC.pack_into(batch, _CRC_AT, compute_crc(batch, 0, len(batch)))
    return bytes(batch)
