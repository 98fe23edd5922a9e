"""Records built here and decoded by foreign clients, and the reverse."""

from __future__ import annotations

import gzip
import random
import struct

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from kraftjbod.core.errors import CorruptRecordError, ErrorCode, OperatingError
from kraftjbod.protocol.record_batch import Compression, check_crc, read_header, stamp_header
from kraftjbod.protocol.records import (
    MAX_OPENED_BYTES,
    Record,
    build_batch,
    compress_body,
    open_body,
    read_records,
)

optional_bytes = st.none() | st.binary(max_size=200)
records = st.lists(
    st.builds(
        Record,
        key=optional_bytes,
        value=optional_bytes,
        timestamp_ms=st.integers(0, 2**40),
        headers=st.lists(st.tuples(st.text(max_size=8), optional_bytes), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=10,
)


def fields_of(record: Record) -> tuple[object, ...]:
    return (record.timestamp_ms, record.key, record.value, list(record.headers))


@given(records, st.integers(0, 2**40), st.sampled_from(Compression))
def test_batches_of_ours_are_decoded_by_foreign_clients(
    ours: list[Record], base_offset: int, compression: Compression
) -> None:
    batch = build_batch(ours, base_offset=base_offset, leader_epoch=3, compression=compression)
    check_crc(batch, 0, read_header(batch))
    for opened in (DefaultRecordBatch(batch), AiokafkaBatch(batch)):
        assert opened.validate_crc()
        theirs = list(opened)
        assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in theirs] == [
            fields_of(r) for r in ours
        ]
        assert [r.offset for r in theirs] == list(range(base_offset, base_offset + len(ours)))
    assert [fields_of(r) for r in read_records(batch)] == [fields_of(r) for r in ours]
    assert [r.offset for r in read_records(batch)] == [base_offset + i for i in range(len(ours))]


@pytest.mark.parametrize("builder_class", [DefaultRecordBatchBuilder, AiokafkaBuilder])
@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
@given(ours=records)
def test_batches_of_foreign_clients_are_decoded_here(
    builder_class: type, compression: int, ours: list[Record]
) -> None:
    builder = builder_class(2, compression, 0, 9, 1, 5, 1 << 20)
    for i, r in enumerate(ours):
        builder.append(i, r.timestamp_ms, r.key, r.value, list(r.headers))
    batch = bytes(builder.build())
    check_crc(batch, 0, read_header(batch))
    assert [fields_of(r) for r in read_records(memoryview(batch))] == [fields_of(r) for r in ours]


def recompressed(batch: bytes, compression: int, body: bytes) -> bytes:
    changed = bytearray(batch[:61] + body)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">h", changed, 21, compression)
    return bytes(changed)


def _xerial(block: bytes, times: int) -> bytes:
    packed = bytes(cramjam.snappy.compress_raw(block))
    return b"\x82SNAPPY\x00" + bytes(8) + (len(packed).to_bytes(4, "big") + packed) * times


@pytest.mark.parametrize(
    ("compression", "packed"),
    [
        (1, gzip.compress(bytes(MAX_OPENED_BYTES + 1))),
        (2, bytes(cramjam.snappy.compress_raw(bytes(MAX_OPENED_BYTES + 1)))),
        (2, _xerial(bytes(MAX_OPENED_BYTES // 4), 5)),
        (3, bytes(cramjam.lz4.compress(bytes(MAX_OPENED_BYTES + 1)))),
        (4, bytes(cramjam.zstd.compress(bytes(MAX_OPENED_BYTES + 1)))),
    ],
    ids=["gzip", "snappy", "snappy in blocks", "lz4", "zstd"],
)
def test_read_records_limits_unpacked_size(compression: int, packed: bytes) -> None:
    batch = recompressed(build_batch([Record()]), compression, packed)
    with pytest.raises(OperatingError, match="unpack to more than") as refused:
        list(read_records(batch))
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_read_records_detects_truncated_compressed_body() -> None:
    body = build_batch([Record(value=bytes(3_000_000))])[61:]
    for compression, packed in (
        (1, gzip.compress(body)),
        (3, bytes(cramjam.lz4.compress(body))),
        (4, bytes(cramjam.zstd.compress(body))),
    ):
        batch = build_batch([Record()])
        assert len(list(read_records(recompressed(batch, compression, packed)))) == 1
        with pytest.raises(CorruptRecordError):
            list(read_records(recompressed(batch, compression, packed[:-20])))


def test_read_records_accepts_all_compression_framings_of_clients() -> None:
    plain = build_batch([Record(value=b"v" * 500)])
    body = plain[61:]
    raw = bytes(cramjam.snappy.compress_raw(body))
    xerial = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">i", len(raw)) + raw
    for compression, packed in (
        (1, gzip.compress(body)),
        (2, raw),
        (2, xerial),
        (3, bytes(cramjam.lz4.compress(body))),
        (4, bytes(cramjam.zstd.compress(body))),
    ):
        opened = list(read_records(recompressed(plain, compression, packed)))
        assert [r.value for r in opened] == [b"v" * 500]
        with pytest.raises(CorruptRecordError):
            list(read_records(recompressed(plain, compression, b"\xff\xff\xff\xff garbage")))
    with pytest.raises(OperatingError, match="compression type 5"):
        list(read_records(recompressed(plain, 5, body)))


def test_append_time_is_the_timestamp_of_every_record() -> None:
    batch = build_batch([Record(timestamp_ms=1), Record(timestamp_ms=2)])
    head = stamp_header(batch, 0, base_offset=0, leader_epoch=0, append_time_ms=99)
    assert [r.timestamp_ms for r in read_records(head + batch[len(head) :])] == [99, 99]


def test_control_batch_has_control_attribute() -> None:
    assert read_header(build_batch([Record(key=b"k")], is_control=True)).is_control


@given(st.binary(max_size=120), st.integers(0, 4))
def test_read_records_of_random_bytes_raises_operating_error(data: bytes, compression: int) -> None:
    batch = recompressed(build_batch([Record()] * 3), compression, data)
    with pytest.raises(OperatingError):
        list(read_records(batch))
    with pytest.raises(CorruptRecordError):
        list(read_records(batch[:-1] if data else batch + b"x"))


@pytest.mark.parametrize("level", [None, 1, 9, 17])
@pytest.mark.parametrize("size_bytes", [0, 1, 65_536, 65_537, 1_000_000])
def test_lz4_body_has_the_frame_that_java_clients_read(level: int | None, size_bytes: int) -> None:
    body = random.Random(1).randbytes(size_bytes // 2) + bytes(size_bytes - size_bytes // 2)
    packed = compress_body(Compression.LZ4, body, level)
    header = bytes.fromhex("04224d18604082")
    assert packed.startswith(header), "independent blocks of 64 KiB, no checksums"
    assert packed.endswith(bytes(4)), "the end mark"
    batch = recompressed(build_batch([Record()]), Compression.LZ4, packed)
    assert open_body(batch, 0, read_header(batch)) == body
