"""``validate`` and ``validate_records``: batches that a leader accepts, and errors for others."""

from __future__ import annotations

import struct
from typing import Any

import cramjam
import crc32c
import pytest

from kraftjbod.core.config_model import MAX_LONG
from kraftjbod.core.errors import ErrorCode, InvalidRecordsError, OperatingError
from kraftjbod.core.loop.wall_guard import PossibleNow
from kraftjbod.core.topic_config import CleanupPolicy, TopicConfig
from kraftjbod.protocol import record_scans
from kraftjbod.protocol.record_batch import (
    BatchHeader,
    Compression,
    check_crc,
    read_header,
    validate,
)
from kraftjbod.protocol.record_validation import (
    MAX_RECORD_ERRORS,
    RecordRules,
    record_rules,
    validate_quickly,
    validate_records,
)
from kraftjbod.protocol.records import Record, build_batch, read_records

ANY = RecordRules()
# Fields that the CRC covers, from attributes to record count.
_COVERED = struct.Struct(">hiqqqhii")


def sealed(body: bytes, **fields: int) -> bytes:
    """Return a batch of one record with changed header ``fields`` and a valid CRC."""
    header = BatchHeader(0, 49 + len(body), -1, 2, 0, 0, 0, 1000, 1000, -1, -1, -1, 1)
    header = header._replace(**fields)
    covered = _COVERED.pack(*header[5:]) + body
    crc = crc32c.crc32c(covered)
    return struct.pack(">qiibI", *header[:4], crc) + covered


def bomb(unpacked_bytes: int, compression: Compression) -> bytes:
    return build_batch([Record(value=bytes(unpacked_bytes))], compression=compression)


def refusal(batch: bytes, rules: RecordRules = ANY) -> OperatingError:
    """Return the error of a batch with a valid header and invalid records."""
    header = validate(batch, max_batch_bytes=1 << 30)
    with pytest.raises(OperatingError) as caught:
        validate_records(batch, header, rules)
    return caught.value


def accepted(batch: bytes, rules: RecordRules = ANY) -> bytes:
    header = validate(batch, max_batch_bytes=1 << 30)
    records, placed = validate_records(batch, header, rules)
    assert placed == read_header(records)._replace(crc=placed.crc)
    return bytes(records)


HEADERS: dict[str, tuple[dict[str, int], ErrorCode]] = {
    "a base offset": ({"base_offset": 5}, ErrorCode.INVALID_RECORD),
    "a last offset delta too large": ({"last_offset_delta": 1}, ErrorCode.INVALID_RECORD),
    "no record": ({"record_count": 0}, ErrorCode.INVALID_RECORD),
    "a count below zero": ({"record_count": -1}, ErrorCode.INVALID_RECORD),
    "a control batch": ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
    "a transaction": ({"attributes": 0x10}, ErrorCode.INVALID_RECORD),
    "a delete horizon": ({"attributes": 0x40}, ErrorCode.INVALID_RECORD),
    "append time": ({"attributes": 0x08}, ErrorCode.INVALID_TIMESTAMP),
    "compression 5": ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "a producer without sequence": (
        {"producer_id": 7, "producer_epoch": 0},
        ErrorCode.INVALID_RECORD,
    ),
    "a producer without epoch": ({"producer_id": 7, "base_sequence": 0}, ErrorCode.INVALID_RECORD),
    "a producer below zero": (
        {"producer_id": -2, "producer_epoch": 0, "base_sequence": 0},
        ErrorCode.INVALID_RECORD,
    ),
    "an old format": ({"magic": 1}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "a length beyond its end": ({"batch_length": 4000}, ErrorCode.CORRUPT_MESSAGE),
}


@pytest.mark.parametrize("case", HEADERS)
def test_validate_refuses_invalid_header_with_the_code_of_its_defect(case: str) -> None:
    fields, code = HEADERS[case]
    batch = sealed(build_batch([Record(value=b"v")])[61:], **fields)
    with pytest.raises(OperatingError) as caught:
        validate(batch, max_batch_bytes=1 << 20)
    assert caught.value.code is code


def test_validate_reports_wrong_header_with_wrong_crc_as_corruption() -> None:
    """Clients retry after corruption, but not after a wrong header."""
    batch = bytearray(sealed(b"", base_offset=0, attributes=0x20))
    batch[-1] ^= 1
    with pytest.raises(OperatingError) as caught:
        validate(bytes(batch), max_batch_bytes=1 << 20)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


BODIES = {
    "garbage": sealed(b"\xde\xad\xbe\xef" * 20),
    "an empty body that claims 2^31-1 records": sealed(
        b"", record_count=2**31 - 1, last_offset_delta=2**31 - 2
    ),
    "one record of two": sealed(
        build_batch([Record(value=b"v")])[61:], record_count=2, last_offset_delta=1
    ),
    "two records of one": sealed(build_batch([Record(value=b"v")] * 2)[61:]),
    "a timestamp beyond 64 bits": sealed(
        build_batch([Record(value=b"v", timestamp_ms=0), Record(timestamp_ms=MAX_LONG)])[61:],
        base_timestamp=1,
        record_count=2,
        last_offset_delta=1,
    ),
    **{
        f"garbage marked {kind.name.lower()}": sealed(b"\xde\xad\xbe\xef" * 20, attributes=kind)
        for kind in Compression
        if kind
    },
    "half of a zstd frame": sealed(
        bytes(cramjam.zstd.compress(b"x" * 10_000))[:-3], attributes=Compression.ZSTD
    ),
    "a zstd frame of garbage": sealed(
        bytes(cramjam.zstd.compress(b"\xff" * 10_000)), attributes=Compression.ZSTD
    ),
    "an empty body marked lz4": sealed(b"", attributes=Compression.LZ4),
    "snappy that claims 4 GB": sealed(b"\xff\xff\xff\xff\x0f", attributes=Compression.SNAPPY),
}


@pytest.mark.parametrize("case", BODIES)
def test_validate_records_refuses_bodies_that_contradict_their_header(case: str) -> None:
    expected = {ErrorCode.INVALID_RECORD}
    if case == "a timestamp beyond 64 bits":
        expected = {ErrorCode.INVALID_TIMESTAMP}
    if case == "snappy that claims 4 GB":
        expected = {ErrorCode.MESSAGE_TOO_LARGE}
    assert {refusal(BODIES[case]).code} == expected


@pytest.mark.parametrize("compression", list(Compression))
def test_validate_records_accepts_valid_batches_unchanged(compression: Compression) -> None:
    records = [
        Record(key=b"a", value=b"1", timestamp_ms=1000),
        Record(key=None, value=None, timestamp_ms=-1),
        Record(key=b"", value=b"", timestamp_ms=5, headers=(("", None), ("h", b"v"))),
    ]
    batch = build_batch(records, compression=compression)
    assert accepted(batch) == batch
    header = read_header(batch)
    assert validate_quickly(batch, header, ANY) == (batch, header)


def test_validate_records_corrects_max_timestamp() -> None:
    batch = sealed(build_batch([Record(value=b"v")])[61:], max_timestamp=77)
    corrected = accepted(batch)
    header = read_header(corrected)
    check_crc(corrected, 0, header)
    assert header.max_timestamp == 1000
    assert [r.timestamp_ms for r in read_records(corrected)] == [1000]
    # It does not matter if the broker's own time replaces it.
    assert accepted(batch, RecordRules(stamps=True)) == batch


def rules_of(now_ms: int = 10_000, doubt_ms: int = 0, **values: Any) -> RecordRules:
    now = PossibleNow(now_ms, now_ms + doubt_ms)
    config = TopicConfig(**values)
    return record_rules(config, now, max_unpacked_bytes=1 << 20, max_records=1000)


def test_validate_records_names_records_outside_timestamp_limits() -> None:
    rules = rules_of(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=2000)
    times = [9000, 8999, 12_000, 12_001, -1]
    batch = build_batch([Record(value=b"v", timestamp_ms=at) for at in times])
    error = refusal(batch, rules)
    assert isinstance(error, InvalidRecordsError)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [at for at, _ in error.records] == [1, 3]
    assert "record 1: its timestamp 8999 is not between 9000 and 12000" in error.message
    # A jump of the broker's clock makes no record invalid.
    assert accepted(batch, rules._replace(earliest_ms=8999, latest_ms=12_001)) == batch
    doubted = rules_of(5000, 10_000, message_timestamp_before_max_ms=0)
    assert (doubted.earliest_ms, doubted.latest_ms) == (5000, 15_000 + 3_600_000)
    stamped = rules_of(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms=0)
    assert accepted(batch, stamped) == batch


def test_timestamps_beyond_64_bits_are_refused_without_limits() -> None:
    rules = rules_of(message_timestamp_after_max_ms=MAX_LONG)
    assert rules.latest_ms == MAX_LONG
    assert refusal(BODIES["a timestamp beyond 64 bits"], rules).code is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("compression", list(Compression))
def test_compacted_topic_names_records_without_key(compression: Compression) -> None:
    rules = rules_of(cleanup_policy=CleanupPolicy(is_compact=True))
    records = [Record(key=b"k"), Record(value=b"v"), Record(key=b""), Record()]
    error = refusal(build_batch(records, compression=compression), rules)
    assert isinstance(error, InvalidRecordsError)
    assert error.code is ErrorCode.INVALID_RECORD
    assert [at for at, _ in error.records] == [1, 3]
    many = refusal(build_batch([Record(value=b"v")] * 1000), rules)
    assert isinstance(many, InvalidRecordsError)
    assert len(many.records) == MAX_RECORD_ERRORS
    keyed = build_batch([Record(key=b"k")] * 3, compression=compression)
    assert accepted(keyed, rules) == keyed


def test_too_many_records_or_unpacked_bytes_are_too_large() -> None:
    assert refusal(build_batch([Record()] * 1001), rules_of()).code is ErrorCode.MESSAGE_TOO_LARGE
    for compression in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        batch = bomb(2 << 20, compression)
        error = refusal(batch, rules_of())
        assert error.code is ErrorCode.MESSAGE_TOO_LARGE
        assert "more than 1048576 bytes" in error.message
        # A batch that is too large for a quick check is left to another thread.
        assert validate_quickly(batch, read_header(batch), ANY) is None
        assert accepted(batch) == batch


KINDS = {0: "uncompressed", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
# Values other than the limits of lz4 and zstd, and other than their defaults.
LEVELS = {"gzip": 9, "lz4": 17, "zstd": -7}


@pytest.mark.parametrize("wanted", list(Compression))
@pytest.mark.parametrize("sent", list(Compression))
def test_batch_is_recompressed_to_compression_type_of_topic(
    sent: Compression, wanted: Compression
) -> None:
    records = [
        Record(key=b"k", value=bytes(range(256)) * 500, timestamp_ms=1000, headers=(("h", b"v"),)),
        Record(value=None, timestamp_ms=3000),
    ]
    producer: dict[str, Any] = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 40}
    batch = build_batch(records, compression=sent, is_transactional=True, **producer)
    header, name = read_header(batch), KINDS[wanted]
    level = {f"compression_{name}_level": LEVELS[name]} if name in LEVELS else {}
    rules = rules_of(compression_type=name, **level)
    made = accepted(batch, rules)
    if sent is wanted:
        assert made == batch
        return
    # Recompression takes too long for the event loop, even for a small batch.
    assert validate_quickly(batch, header, rules) is None
    after = read_header(made)
    check_crc(made, 0, after)
    assert after.compression == wanted
    assert len(made) == after.size_bytes
    same = {"crc": 0, "batch_length": 0, "attributes": 0}
    assert header._replace(**same) == after._replace(**same)
    assert after.is_transactional and not after.is_control
    assert list(read_records(made)) == list(read_records(batch))


def test_batch_that_grows_beyond_max_message_bytes_is_refused() -> None:
    batch = bomb(100_000, Compression.ZSTD)
    rules = rules_of(compression_type="uncompressed", max_message_bytes=100_000)
    assert refusal(batch, rules).code is ErrorCode.MESSAGE_TOO_LARGE
    accepted(batch, rules_of(compression_type="uncompressed", max_message_bytes=101_000))
    # Defects of its records are reported first.
    compacted = rules._replace(needs_keys=True)
    assert refusal(batch, compacted).code is ErrorCode.INVALID_RECORD


def test_recompressed_batch_has_max_timestamp_of_its_records() -> None:
    batch = sealed(build_batch([Record(value=b"v")])[61:], max_timestamp=77)
    assert read_header(accepted(batch, rules_of(compression_type="gzip"))).max_timestamp == 1000


def test_validate_quickly_leaves_many_records_to_another_thread() -> None:
    count = 10_000 if record_scans.FORM == "compiled" else 1000
    batch = build_batch([Record()] * count)
    assert validate_quickly(batch, read_header(batch), ANY) is not None
    batch = build_batch([Record()] * (count + 1))
    assert validate_quickly(batch, read_header(batch), ANY) is None
