"""PURE. The header of a v2 record batch, read in place without copying.

The first 61 bytes (big-endian) contain everything that a broker needs. The records after them are
checked once, when a client sends them (record_validation.py).

====== ==== ======================= ============================================================
offset size field                   meaning
====== ==== ======================= ============================================================
0      8    base_offset             offset of the first record; the leader assigns it
8      4    batch_length            bytes that follow this field: the batch has 12 more
12     4    partition_leader_epoch  the leader assigns it
16     1    magic                   2
17     4    crc                     CRC-32C of everything from byte 21 to the end
21     2    attributes              bits 0-2 compression, 3 append time, 4 transactional, 5 control,
                                    6 delete horizon in base_timestamp (KIP-534)
23     4    last_offset_delta       last_offset - base_offset
27     8    base_timestamp          milliseconds; record timestamps are deltas to it
35     8    max_timestamp
43     8    producer_id             -1 without idempotence
51     2    producer_epoch
53     4    base_sequence
57     4    record_count
61     ...  records                 compressed as one block if the attributes say so
====== ==== ======================= ============================================================

The CRC does not cover the first 21 bytes, so offset and leader epoch are written in place.
It covers the attributes and max_timestamp, so append time requires a new CRC over the batch.

records.py encodes and decodes records, for tools and for the metadata log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import crc32c

from kraftjbod.core.errors import CorruptRecordError, ErrorCode, OperatingError
from kraftjbod.protocol.framing import Buffer

HEADER_BYTES: Final = 61
MAGIC: Final = 2
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
#: Size of the fields up to and including batch_length, which batch_length does not count.
LOG_OVERHEAD_BYTES: Final = 12
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_STAMP: Final = struct.Struct(">qii")
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_CRC_COVERS_FROM: Final = 21
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_AT: Final = 35

#: CRC-32C of all bytes of a view, for scans that know the bounds of a batch.
crc_of_bytes: Final[Callable[[memoryview], int]] = crc32c.crc32c

COMPRESSION_BITS: Final = 0x07
_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
HORIZON_BIT: Final = 0x40
MAX_SEQUENCE: Final = 0x7FFFFFFF


class Compression(IntEnum):
    """Codec with which the records of a batch are compressed, with the numbers of the batch
    attributes.
    """

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_KNOWN_COMPRESSIONS: Final = frozenset(int(c) for c in Compression)


class TimestampType(IntEnum):
    """Source of the record timestamps: the producer (CREATE_TIME) or the broker that appended them
    (LOG_APPEND_TIME).
    """

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The parsed header of a batch, its first 61 bytes. Timestamps are wall-clock ms.

    A tuple is faster than a dataclass: Produce and Fetch parse a header per batch.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch in bytes."""
        return LOG_OVERHEAD_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap from 2^31 - 1 to 0 (KIP-98)."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def compression(self) -> int:
        """Number of the codec: a :class:`Compression`, or 5 to 7 in an invalid batch."""
        return self.attributes & COMPRESSION_BITS

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(bool(self.attributes & _APPEND_TIME_BIT))

    @property
    def has_append_time(self) -> bool:
        """Whether all records have the broker's time ``max_timestamp`` (LogAppendTime)."""
        return bool(self.attributes & _APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


def read_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """Parse the header at ``position``.

    Neither the presence of the rest of the batch nor the CRC is checked.

    :raises CorruptRecordError: fewer than 61 bytes are left, or magic, length or
        last_offset_delta are invalid.
    """
    if len(buf) - position < HEADER_BYTES:
        raise CorruptRecordError(
            f"{len(buf) - position} bytes at {position} are too few for a batch header"
        )
    header = BatchHeader._make(_HEADER.unpack_from(buf, position))
    if header.magic != MAGIC:
        raise CorruptRecordError(f"batch at {position} has magic {header.magic}, expected {MAGIC}")
    if header.batch_length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        raise CorruptRecordError(f"batch at {position} claims a length of {header.batch_length}")
    if header.last_offset_delta < 0:
        raise CorruptRecordError(
            f"batch at {position} has last_offset_delta {header.last_offset_delta}"
        )
    return header


def batches(buf: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and the header of each complete batch from ``position`` on.

    An incomplete last batch ends the iteration. The caller detects it by comparing the end of the
    last yielded batch with ``len(buf)``.

    :raises CorruptRecordError: a header is invalid (see :func:`read_header`).
    """
    end = len(buf)
    while end - position >= HEADER_BYTES:
        header = read_header(buf, position)
        size_bytes = header.size_bytes
        if size_bytes > end - position:
            return
        yield position, header
        position += size_bytes


def whole_bytes(buf: Buffer) -> int:
    """Return the number of bytes at the start of ``buf`` that are complete batches.

    Only the length field of each batch is read.
    """
    position, end = 0, len(buf)
    while end - position >= LOG_OVERHEAD_BYTES:
        (batch_length,) = _LENGTH.unpack_from(buf, position + _LENGTH_AT)
        if batch_length < 0 or LOG_OVERHEAD_BYTES + batch_length > end - position:
            break
        position += LOG_OVERHEAD_BYTES + batch_length
    return position


def end_of_batches(buf: Buffer) -> int | None:
    """Return the offset after the last complete batch of ``buf``; None without a complete batch.

    :raises CorruptRecordError: the header of that batch is malformed.
    """
    position, last, end = 0, None, len(buf)
    while end - position >= LOG_OVERHEAD_BYTES:
        (batch_length,) = _LENGTH.unpack_from(buf, position + _LENGTH_AT)
        if batch_length < 0 or LOG_OVERHEAD_BYTES + batch_length > end - position:
            break
        last = position
        position += LOG_OVERHEAD_BYTES + batch_length
    return None if last is None else read_header(buf, last).next_offset


def offset_after_empty(buf: Buffer) -> int | None:
    """Return the offset after the batches of ``buf`` if they contain no records.

    None means that a batch has records, or that ``buf`` has no batch. Compaction leaves batches
    without records.

    :raises CorruptRecordError: a header is malformed.
    """
    after = None
    for _, header in batches(buf):
        if header.record_count:
            return None
        after = header.next_offset
    return after


def sealed(header: BatchHeader, body: Buffer) -> bytes:
    """Return the batch of ``header`` and ``body`` with computed length and CRC."""
    length = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(body)
    batch = bytearray(_HEADER.pack(*header._replace(batch_length=length, crc=0)))
    batch += body
    _CRC.pack_into(batch, _CRC_AT, compute_crc(batch, 0, len(batch)))
    return bytes(batch)


def compute_crc(buf: Buffer, position: int, size_bytes: int) -> int:
    """Return the CRC-32C of the batch of ``size_bytes`` at ``position``, without copying bytes."""
    return crc32c.crc32c(memoryview(buf)[position + _CRC_COVERS_FROM : position + size_bytes])


def check_crc(buf: Buffer, position: int, header: BatchHeader) -> None:
    """Check the CRC of the complete batch at ``position``.

    :raises CorruptRecordError: the CRC does not match.
    """
    computed = compute_crc(buf, position, LOG_OVERHEAD_BYTES + header.batch_length)
    if computed != header.crc:
        raise CorruptRecordError(
            f"batch at {position} (base offset {header.base_offset}, {header.size_bytes} bytes)"
            f" has CRC {header.crc:08x}, computed {computed:08x}"
        )


def validate(buf: Buffer, *, max_batch_bytes: int) -> BatchHeader:
    """Check the bytes that a producer sent for one partition, and return the batch header.

    As in Kafka, a request has exactly one batch per partition, so that the sequence numbers of a
    producer are checked per batch.

    :raises CorruptRecordError: the bytes are not one complete v2 batch, or the CRC is wrong.
    :raises OperatingError: MESSAGE_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP,
        UNSUPPORTED_FOR_MESSAGE_FORMAT or UNSUPPORTED_COMPRESSION_TYPE.
    """
    if len(buf) > _CRC_AT and buf[_CRC_AT - 1] in (0, 1):
        raise OperatingError(
            f"message format {buf[_CRC_AT - 1]} is not accepted, only record batches of format 2",
            code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )
    if not len(buf):
        raise _invalid_record("the request holds no record batch for the partition")
    header = read_header(buf)
    size_bytes = header.size_bytes
    if size_bytes > len(buf):
        raise CorruptRecordError(f"{len(buf)} bytes at 0 are no whole batch")
    if size_bytes > max_batch_bytes:
        raise OperatingError(
            f"a batch of {size_bytes} bytes is larger than {max_batch_bytes}, the limit",
            code=ErrorCode.MESSAGE_TOO_LARGE,
        )
    # The CRC comes first, because the client retries after this error.
    check_crc(buf, 0, header)
    _require_acceptable(header)
    if size_bytes < len(buf):
        if (end := whole_bytes(buf)) < len(buf):
            raise CorruptRecordError(f"{len(buf) - end} bytes at {end} are no whole batch")
        raise _invalid_record("more than one record batch for the partition, only one may be")
    return header


def _require_acceptable(header: BatchHeader) -> None:
    """Check that a producer's header is consistent and has no values that only brokers may set.

    :raises OperatingError: INVALID_RECORD, INVALID_TIMESTAMP or UNSUPPORTED_COMPRESSION_TYPE.
    """
    if header.base_offset != 0:
        raise _invalid_record(f"the batch has base offset {header.base_offset}, it must be 0")
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        raise _invalid_record(
            f"{header.record_count} records contradict last_offset_delta {header.last_offset_delta}"
        )
    if header.is_control:
        raise _invalid_record("clients may not write control batches")
    if header.is_transactional and not header.has_producer_id:
        raise _invalid_record("a transactional batch without a producer id")
    if header.attributes & HORIZON_BIT:
        raise _invalid_record("clients may not set a delete horizon")
    if header.has_append_time:
        raise OperatingError(
            "clients may not set the timestamp type to LogAppendTime",
            code=ErrorCode.INVALID_TIMESTAMP,
        )
    if (
        header.has_producer_id
        and min(header.producer_id, header.producer_epoch, header.base_sequence) < 0
    ):
        raise _invalid_record(
            f"producer {header.producer_id} sent epoch {header.producer_epoch}"
            f" and sequence {header.base_sequence}"
        )
    if header.compression not in _KNOWN_COMPRESSIONS:
        raise OperatingError(
            f"compression type {header.compression} is unknown",
            code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )


def _invalid_record(message: str) -> OperatingError:
    return OperatingError(message, code=ErrorCode.INVALID_RECORD)


def stamp_header(
    buf: Buffer,
    position: int,
    *,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int | None = None,
) -> bytes:
    """Return the first bytes of the batch at ``position`` as the log stores them, with offset and
    epoch.

    A writer writes ``[head, buf[position + len(head) : end]]``, and does not copy the body.

    :param append_time_ms: timestamp of all records for ``LogAppendTime``; None for ``CreateTime``.
    :returns: 16 bytes, or with ``append_time_ms`` the whole header of 61 bytes with a new CRC.
    """
    (batch_length,) = _LENGTH.unpack_from(buf, position + _LENGTH_AT)
    head = _STAMP.pack(base_offset, batch_length, leader_epoch)
    if append_time_ms is None:
        return head
    view = memoryview(buf)
    header = bytearray(view[position : position + HEADER_BYTES])
    header[: len(head)] = head
    (attributes,) = _ATTRIBUTES.unpack_from(header, _CRC_COVERS_FROM)
    _ATTRIBUTES.pack_into(header, _CRC_COVERS_FROM, attributes | _APPEND_TIME_BIT)
    _MAX_TIMESTAMP.pack_into(header, _MAX_TIMESTAMP_AT, append_time_ms)
    body = view[position + HEADER_BYTES : position + LOG_OVERHEAD_BYTES + batch_length]
    crc = crc32c.crc32c(body, crc32c.crc32c(memoryview(header)[_CRC_COVERS_FROM:]))
    _CRC.pack_into(header, _CRC_AT, crc)
    return bytes(header)


def with_max_timestamp(buf: Buffer, header: BatchHeader, max_timestamp: int) -> bytes:
    """Return a copy of the single batch in ``buf`` with ``max_timestamp`` and a new CRC."""
    batch = bytearray(buf)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, max_timestamp)
    _CRC.pack_into(batch, _CRC_AT, compute_crc(batch, 0, header.size_bytes))
    return bytes(batch)


def place_batches(
    buf: Buffer,
    headers: Sequence[BatchHeader],
    *,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int | None = None,
) -> tuple[list[Buffer], list[BatchHeader]]:
    """Assign consecutive offsets from ``base_offset`` to the batches of ``buf``.

    :param headers: the headers of all batches in ``buf``.
    :param append_time_ms: timestamp of all records for ``LogAppendTime``; None for ``CreateTime``.
    :returns: the buffers to write, in which bodies are not copied; and ``headers`` with the new
        base offsets. Their other fields have the values in ``buf``, also those that differ in the
        buffers to write: leader epoch, CRC, attributes and maximum timestamp.
    """
    view, position = memoryview(buf), 0
    buffers: list[Buffer] = []
    placed: list[BatchHeader] = []
    for header in headers:
        head = stamp_header(
            view,
            position,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            append_time_ms=append_time_ms,
        )
        end = position + header.size_bytes
        buffers += (head, view[position + len(head) : end])
        placed.append(BatchHeader(base_offset, *header[1:]))
        position, base_offset = end, base_offset + header.last_offset_delta + 1
    assert position == len(view), (position, len(view))
    return buffers, placed
