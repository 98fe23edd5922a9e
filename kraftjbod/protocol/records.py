"""PURE. Records inside a v2 batch: builds batches, and opens them.

For tools and for the metadata log. Brokers read only bounds and keys of records (byte_scans.py,
raw_records.py), and a Fetch does not decompress at all.

A record is a varint length, int8 attributes, a varint timestamp delta, a varint offset delta, the
key, the value, the number of headers and the headers. Key, value, and name and value of a header
have a varint length; -1 means null. Varints are zig-zag.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kraftjbod.core.errors import CorruptRecordError, ErrorCode, OperatingError
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Compression,
    TimestampType,
    read_header,
    sealed,
)

_MAX_VARINT_BITS: Final = 63
_GZIP_OR_ZLIB: Final = 47
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_GZIP_WINDOW: Final = 31
#: A batch of a megabyte can decompress to a thousand; larger bodies are rejected.
MAX_OPENED_BYTES: Final = 128 * 1024 * 1024
_FIRST_OPENED_BYTES: Final = 64 * 1024
#: Error text of the library for a buffer that is too small; all others mean malformed bytes.
_BUFFER_TOO_SMALL: Final = "failed to write whole buffer"
#: Header of Java's snappy streams: magic, version and oldest compatible version.
_XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One decoded record. ``timestamp_ms`` is as in the batch. ``offset`` is absolute: set by
    decoding, and ignored by encoding.
    """

    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = -1


#: Maximum size of length and delta varints and attributes of a record without headers.
_MOST_RECORD_OVERHEAD_BYTES: Final = 32


def most_bytes_of(record: Record) -> int:
    """Return an upper bound of the bytes that ``record`` takes in a batch, if it has no headers."""
    return len(record.key or b"") + len(record.value or b"") + _MOST_RECORD_OVERHEAD_BYTES


# --- encoding -----------------------------------------------------------------------------------


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_control: bool = False,
    is_transactional: bool = False,
    compression: Compression = Compression.NONE,
) -> bytes:
    """Return one batch of ``records`` (at least one), with consecutive offsets from
    ``base_offset``."""
    assert records, "a batch holds at least one record"
    base_timestamp = records[0].timestamp_ms
    body = bytearray()
    for delta, record in enumerate(records):
        encoded = _encode_record(record, record.timestamp_ms - base_timestamp, delta)
        body += encode_varint(len(encoded))
        body += encoded
    packed = body if compression is Compression.NONE else compress_body(compression, bytes(body))
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=compression
        | (CONTROL_BIT if is_control else 0)
        | (TRANSACTIONAL_BIT if is_transactional else 0),
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp_ms for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return sealed(header, packed)


def _encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    out = bytearray(b"\x00")
    out += encode_varint(timestamp_delta)
    out += encode_varint(offset_delta)
    _put_bytes(out, record.key)
    _put_bytes(out, record.value)
    out += encode_varint(len(record.headers))
    for name, value in record.headers:
        _put_bytes(out, name.encode())
        _put_bytes(out, value)
    return bytes(out)


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += b"\x01"  # the varint -1, for null
        return
    out += encode_varint(len(value))
    out += value


def encode_varint(value: int) -> bytes:
    """Encode ``value`` as a zig-zag varint."""
    rest = value << 1 if value >= 0 else ~(value << 1)
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


# --- decoding -----------------------------------------------------------------------------------


def read_records(buf: Buffer, position: int = 0) -> Iterator[Record]:
    """Decode the records of the complete batch at ``position``, one by one.

    The CRC is not checked (:func:`record_batch.check_crc` does).

    :raises CorruptRecordError: the records contradict their lengths, their number or the
        compression.
    :raises OperatingError: UNSUPPORTED_COMPRESSION_TYPE; MESSAGE_TOO_LARGE: the decompressed
        records exceed :data:`MAX_OPENED_BYTES`.
    """
    header = read_header(buf, position)
    body = open_body(buf, position, header)
    end = 0
    try:
        for _ in range(header.record_count):
            record, end = _read_record(body, end, header)
            yield record
    except IndexError as e:
        raise CorruptRecordError(f"records of the batch at {position} are malformed: {e}") from e
    if end != len(body):
        raise CorruptRecordError(f"the batch at {position} has {len(body) - end} bytes left over")


def open_body(
    buf: Buffer, position: int, header: BatchHeader, *, max_bytes: int = MAX_OPENED_BYTES
) -> bytes | memoryview:
    """Return the decompressed body of the complete batch at ``position``.

    :raises CorruptRecordError: the batch is truncated, or contradicts its compression.
    :raises OperatingError: UNSUPPORTED_COMPRESSION_TYPE; MESSAGE_TOO_LARGE: the decompressed body
        exceeds ``max_bytes``.
    """
    size_bytes, compression = header.size_bytes, header.compression
    packed = memoryview(buf)[position + HEADER_BYTES : position + size_bytes]
    if len(packed) != size_bytes - HEADER_BYTES:
        raise CorruptRecordError(f"the batch at {position} is cut off")
    return _decompress(compression, packed, max_bytes) if compression else packed


def _read_record(
    body: bytes | memoryview, position: int, header: BatchHeader
) -> tuple[Record, int]:
    length, position = read_varint(body, position)
    end = position + length
    if length < 0 or end > len(body):
        raise CorruptRecordError(f"a record claims {length} bytes")
    timestamp_delta, position = read_varint(body, position + 1)
    offset_delta, position = read_varint(body, position)
    key, position = _read_bytes(body, position, end)
    value, position = _read_bytes(body, position, end)
    count, position = read_varint(body, position)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_bytes(body, position, end)
        header_value, position = _read_bytes(body, position, end)
        # Brokers do not check names, and Java's clients decode them in this way.
        headers.append(((name or b"").decode(errors="replace"), header_value))
    if position != end:
        raise CorruptRecordError(f"a record of {length} bytes ends elsewhere")
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise CorruptRecordError(f"a record has offset delta {offset_delta}")
    by_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    record = Record(
        key=key,
        value=value,
        timestamp_ms=header.max_timestamp
        if by_append_time
        else header.base_timestamp + timestamp_delta,
        headers=tuple(headers),
        offset=header.base_offset + offset_delta,
    )
    return record, end


def _read_bytes(body: bytes | memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(body, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise CorruptRecordError(f"a field of a record claims {length} bytes")
    return bytes(body[position : position + length]), position + length


def read_varint(body: Buffer, position: int) -> tuple[int, int]:
    """Decode the zig-zag varint at ``position``; return the value and the position after the
    varint.

    :raises IndexError: the body ends within the varint.
    :raises CorruptRecordError: the varint does not fit 64 bits.
    """
    byte = body[position]
    position += 1
    value = byte & 0x7F
    shift = 7
    while byte > 0x7F:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > _MAX_VARINT_BITS + 7:
            raise CorruptRecordError("a varint is longer than 10 bytes")
    if value >> (_MAX_VARINT_BITS + 1):
        raise CorruptRecordError("a varint does not fit 64 bits")
    return (value >> 1) ^ -(value & 1), position


def _decompress(compression: int, packed: memoryview, max_bytes: int) -> bytes | memoryview:
    import cramjam

    try:
        match compression:
            case Compression.GZIP:
                return _gunzip(packed, max_bytes)
            case Compression.SNAPPY:
                return _unsnappy(bytes(packed), max_bytes)
            case Compression.LZ4:
                return _unlz4(packed, max_bytes)
            case Compression.ZSTD:
                return _unzstd(packed, max_bytes)
            case _:
                raise OperatingError(
                    f"compression type {compression} is unknown",
                    code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                )
    except (zlib.error, cramjam.DecompressionError) as e:
        raise CorruptRecordError(f"compressed records are malformed: {e}") from e


def _gunzip(packed: memoryview, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    out = stream.decompress(packed, max_bytes + 1)
    _require_bounded(len(out), max_bytes)
    if not stream.eof:
        raise CorruptRecordError("compressed records are cut off")
    return out


def _unlz4(packed: memoryview, max_bytes: int) -> bytes:
    import lz4.frame

    stream, parts, size_bytes = lz4.frame.LZ4FrameDecompressor(), list[bytes](), 0
    part_bytes = max(_FIRST_OPENED_BYTES, 4 * len(packed))
    try:
        while not stream.eof:
            # The stream keeps the rest of the input.
            part = stream.decompress(b"" if parts else packed, max_length=part_bytes)
            parts.append(part)
            size_bytes += len(part)
            _require_bounded(size_bytes, max_bytes)
            if not stream.eof and len(part) < part_bytes:
                raise CorruptRecordError("compressed records are cut off")
    except RuntimeError as e:
        raise CorruptRecordError(f"compressed records are malformed: {e}") from e
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unzstd(packed: memoryview, max_bytes: int) -> memoryview:
    """Decompress with growing buffers, because frames need not state their size.

    :raises OperatingError: MESSAGE_TOO_LARGE.
    """
    import cramjam

    size_bytes = max(_FIRST_OPENED_BYTES, 4 * len(packed))
    while True:
        out = bytearray(min(size_bytes, max_bytes + 1))
        try:
            size_bytes = cramjam.zstd.decompress_into(packed, out)
        except cramjam.DecompressionError as e:
            if str(e) != _BUFFER_TOO_SMALL:
                raise
            _require_bounded(len(out), max_bytes)
            size_bytes = 4 * len(out)
            continue
        _require_bounded(size_bytes, max_bytes)
        return memoryview(out)[:size_bytes]


def _unsnappy(packed: bytes, max_bytes: int) -> bytes:
    """Decompress raw snappy, or the blocks with lengths that Java clients write."""
    import cramjam

    def unpack(block: bytes, before_bytes: int) -> bytes:
        size_bytes = before_bytes + cramjam.snappy.decompress_raw_len(block)
        _require_bounded(size_bytes, max_bytes)
        return bytes(cramjam.snappy.decompress_raw(block))

    if not packed.startswith(_XERIAL_MAGIC):
        return unpack(packed, 0)
    out = bytearray()
    position = _XERIAL_HEADER_BYTES
    while position + 4 <= len(packed):
        size = int.from_bytes(packed[position : position + 4], "big")
        out += unpack(packed[position + 4 : position + 4 + size], len(out))
        position += 4 + size
    return bytes(out)


def _require_bounded(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise OperatingError(
            f"records unpack to more than {max_bytes} bytes; send smaller batches",
            code=ErrorCode.MESSAGE_TOO_LARGE,
        )


# --- compression --------------------------------------------------------------------------------


def compress_body(compression: int, body: bytes, level: int | None = None) -> bytes:
    """Return ``body`` compressed as the body of a batch, in a form that all clients read.

    :param compression: number of a codec, see :class:`Compression`.
    :param level: level for gzip, lz4 and zstd; None for the library's default.
    """
    if compression == Compression.NONE:
        return body
    if compression == Compression.GZIP:
        packer = zlib.compressobj(-1 if level is None else level, wbits=_GZIP_WINDOW)
        return packer.compress(body) + packer.flush()
    import cramjam

    match compression:
        case Compression.SNAPPY:
            out = bytearray(_XERIAL_HEADER)
            for at in range(0, len(body), _XERIAL_BLOCK_BYTES):
                packed = bytes(cramjam.snappy.compress_raw(body[at : at + _XERIAL_BLOCK_BYTES]))
                out += len(packed).to_bytes(4, "big") + packed
            return bytes(out)
        case Compression.LZ4:
            return _lz4_frame(body, level)
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(body, level=level))
        case _:
            raise AssertionError(f"a body with compression {compression} was opened")


def _lz4_frame(body: bytes, level: int | None) -> bytes:
    """Return a frame of independent blocks of at most 64 KiB; Java clients read no others."""
    import lz4.frame

    packed: bytes = lz4.frame.compress(
        body,
        compression_level=0 if level is None else level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return packed
