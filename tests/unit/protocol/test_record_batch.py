"""Batch headers: batches that foreign clients build, and malformed ones."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from kraftjbod.core.errors import CorruptRecordError, ErrorCode, OperatingError
from kraftjbod.protocol.raw_records import empty_batch
from kraftjbod.protocol.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    TimestampType,
    batches,
    check_crc,
    compute_crc,
    offset_after_empty,
    place_batches,
    read_header,
    stamp_header,
    validate,
    whole_bytes,
)
from kraftjbod.protocol.records import Record, build_batch

LIMIT = 1 << 20


def foreign_batch(values: list[bytes], *, producer_id: int = -1, sequence: int = -1) -> bytes:
    epoch = -1 if producer_id < 0 else 0
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer_id, epoch, sequence, 1 << 24)
    for i, value in enumerate(values):
        builder.append(i, 1_000 + i, b"key", value, [])
    return bytes(builder.build())


def with_field(batch: bytes, fmt: str, position: int, value: int) -> bytes:
    """Return ``batch`` with one field changed and a valid CRC."""
    changed = bytearray(batch)
    struct.pack_into(">" + fmt, changed, position, value)
    struct.pack_into(">I", changed, 17, compute_crc(changed, 0, len(changed)))
    return bytes(changed)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.integers(0, 2**31 - 1))
def test_read_header_reads_the_fields_of_a_batch_of_another_library(
    values: list[bytes], sequence: int
) -> None:
    batch = foreign_batch(values, producer_id=7, sequence=sequence)
    header = read_header(batch)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset) == (0, len(values) - 1)
    assert header.next_offset == header.record_count == len(values)
    assert (header.producer_id, header.producer_epoch) == (7, 0)
    assert header.last_sequence == (sequence + len(values) - 1) % 2**31
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 999 + len(values))
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not header.is_control
    assert not header.is_transactional
    assert header.compression == 0
    assert header.has_producer_id
    check_crc(batch, 0, header)
    assert validate(memoryview(batch), max_batch_bytes=LIMIT) == header


def test_batch_without_producer_id_has_no_last_sequence() -> None:
    header = read_header(foreign_batch([b"x", b"y"]))
    assert header.last_sequence == -1
    assert not header.has_producer_id


def test_batches_ends_at_a_torn_batch() -> None:
    whole = foreign_batch([b"a"]) + foreign_batch([b"b", b"c"])
    for cut in (1, HEADER_BYTES - 1, HEADER_BYTES + 3):
        torn = whole + foreign_batch([b"d"])[:cut]
        walked = list(batches(torn))
        assert [position for position, _ in walked] == [0, read_header(whole).size_bytes]
        assert whole_bytes(torn) == len(whole)
    assert whole_bytes(b"") == 0
    assert whole_bytes(bytes(8) + b"\xff\xff\xff\xff" + bytes(80)) == 0


def test_batches_refuses_impossible_header() -> None:
    good = foreign_batch([b"a"])
    for fmt, position, value in (("b", 16, 1), ("i", 8, 48), ("i", 23, -1)):
        bad = bytearray(good)
        struct.pack_into(">" + fmt, bad, position, value)
        with pytest.raises(CorruptRecordError):
            list(batches(bad))
    with pytest.raises(CorruptRecordError, match="too few"):
        read_header(good[:60])


@given(st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1))
def test_stamp_header_keeps_crc_valid(base_offset: int, leader_epoch: int) -> None:
    batch = foreign_batch([b"a", b"b"])
    head = stamp_header(batch, 0, base_offset=base_offset, leader_epoch=leader_epoch)
    assert len(head) == 16
    changed = head + batch[16:]
    header = read_header(changed)
    assert (header.base_offset, header.partition_leader_epoch) == (base_offset, leader_epoch)
    check_crc(changed, 0, header)


def test_stamp_header_with_append_time_updates_crc() -> None:
    batch = foreign_batch([b"a", b"b"])
    head = stamp_header(b"..." + batch, 3, base_offset=5, leader_epoch=1, append_time_ms=77)
    assert len(head) == HEADER_BYTES
    stamped = head + batch[HEADER_BYTES:]
    header = read_header(stamped)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (header.max_timestamp, header.base_offset) == (77, 5)
    check_crc(stamped, 0, header)


@given(st.integers(HEADER_BYTES - 44, 200), st.integers(0, 7))
def test_validate_detects_a_flipped_bit_in_the_crc_or_the_bytes_that_it_covers(
    position: int, bit: int
) -> None:
    batch = bytearray(foreign_batch([b"v" * 200]))
    batch[position] ^= 1 << bit
    with pytest.raises((CorruptRecordError, OperatingError)):
        validate(batch, max_batch_bytes=LIMIT)


BATCH = foreign_batch([b"a", b"b"])
WITH_PRODUCER = foreign_batch([b"a"], producer_id=5, sequence=0)


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        pytest.param(b"", ErrorCode.INVALID_RECORD, id="empty"),
        pytest.param(BATCH[:40], ErrorCode.CORRUPT_MESSAGE, id="cut header"),
        pytest.param(BATCH[:-1], ErrorCode.CORRUPT_MESSAGE, id="cut body"),
        pytest.param(BATCH + b"x", ErrorCode.CORRUPT_MESSAGE, id="trailing byte"),
        pytest.param(
            BATCH[:16] + b"\x01" + BATCH[17:],
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            id="old format",
        ),
        pytest.param(BATCH[:16] + b"\x03" + BATCH[17:], ErrorCode.CORRUPT_MESSAGE, id="magic 3"),
        pytest.param(with_field(BATCH, "i", 57, 3), ErrorCode.INVALID_RECORD, id="count"),
        pytest.param(with_field(BATCH, "i", 57, 0), ErrorCode.INVALID_RECORD, id="no records"),
        pytest.param(with_field(BATCH, "h", 21, 0x20), ErrorCode.INVALID_RECORD, id="control"),
        pytest.param(
            with_field(WITH_PRODUCER, "i", 53, -1), ErrorCode.INVALID_RECORD, id="no sequence"
        ),
        pytest.param(
            with_field(WITH_PRODUCER, "h", 51, -1), ErrorCode.INVALID_RECORD, id="no epoch"
        ),
        pytest.param(
            with_field(BATCH, "h", 21, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, id="codec"
        ),
        pytest.param(
            foreign_batch([bytes(LIMIT)]), ErrorCode.MESSAGE_TOO_LARGE, id="larger than the limit"
        ),
        pytest.param(BATCH + BATCH, ErrorCode.INVALID_RECORD, id="two batches"),
    ],
)
def test_validate_refuses_batches_that_producers_may_not_send(
    batch: bytes, code: ErrorCode
) -> None:
    with pytest.raises(OperatingError) as caught:
        validate(batch, max_batch_bytes=LIMIT)
    assert caught.value.code is code


@given(st.binary(max_size=200))
def test_validate_of_random_bytes_raises_operating_error(data: bytes) -> None:
    with pytest.raises(OperatingError):
        validate(data, max_batch_bytes=LIMIT)


def test_batch_header_is_a_tuple_in_wire_order() -> None:
    assert BatchHeader._make(struct.unpack_from(">qiibIhiqqqhii", BATCH)) == read_header(BATCH)


def test_offset_after_empty_is_the_next_offset_of_batches_without_records() -> None:
    """Compaction leaves such batches; behind a batch with records, the offset is known anyway."""
    full = build_batch([Record(key=b"a"), Record(key=b"b")], base_offset=4)
    empty = empty_batch(read_header(full))
    assert offset_after_empty(empty) == 6
    assert offset_after_empty(empty + empty_batch(read_header(full)._replace(base_offset=9))) == 11
    assert offset_after_empty(empty + full) is None
    assert offset_after_empty(full) is None
    assert offset_after_empty(b"") is None


def test_place_batches_assigns_consecutive_offsets() -> None:
    data = build_batch([Record(), Record()]) + build_batch([Record()])
    headers = [header for _, header in batches(data)]
    buffers, placed = place_batches(data, headers, base_offset=40, leader_epoch=3)
    assert [header.base_offset for header in placed] == [40, 42]
    written = [header for _, header in batches(b"".join(bytes(buffer) for buffer in buffers))]
    assert [(h.base_offset, h.partition_leader_epoch) for h in written] == [(40, 3), (42, 3)]
