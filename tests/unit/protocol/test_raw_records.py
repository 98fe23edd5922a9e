"""``raw_records``, ``thinned_batch`` and ``TimeSearch`` on batches of every compression."""

from __future__ import annotations

import gzip

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.protocol.raw_records import (
    NO_HORIZON,
    TimeSearch,
    delete_horizon,
    empty_batch,
    raw_records,
    thinned_batch,
)
from kraftjbod.protocol.record_batch import Compression, check_crc, read_header
from kraftjbod.protocol.records import Record, build_batch, open_body, read_records
from tests.each_case import each_case

RECORDS = [
    Record(key=b"a", value=b"1", timestamp_ms=1000),
    Record(key=b"b", value=None, timestamp_ms=1_000_000, headers=(("h", b"v"), ("n", None))),
    Record(key=None, value=b"3" * 300, timestamp_ms=900),
    Record(key=b"", value=b"", timestamp_ms=5000),
]
ALL = list(Compression)


def packed(compression: Compression, records: list[Record] | None = None) -> bytes:
    """Return the records as one batch at offset 40, compressed like a client does."""
    plain = build_batch(
        records or RECORDS, base_offset=40, leader_epoch=3, producer_id=9, base_sequence=5
    )
    header = read_header(plain)
    body = open_body(plain, 0, header)
    header = header._replace(attributes=header.attributes | compression)
    return thinned_batch(header, body, list(raw_records(body, header.record_count)))


@pytest.mark.parametrize("compression", ALL)
def test_thinned_batch_round_trips_in_every_compression(compression: Compression) -> None:
    batch = packed(compression)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert header.compression == compression
    found = list(read_records(batch))
    assert [(r.key, r.value, r.timestamp_ms, r.headers) for r in found] == [
        (r.key, r.value, r.timestamp_ms, r.headers) for r in RECORDS
    ]
    assert [r.offset for r in found] == [40, 41, 42, 43]


def test_lz4_and_gzip_bodies_are_readable_by_other_libraries() -> None:
    """The data fills several blocks of lz4, some of which are incompressible."""
    noise = bytes((i * i * 2654435761 >> 7) & 0xFF for i in range(70_000))
    records = [Record(key=b"k", value=noise), Record(key=b"l", value=bytes(200_000))]
    body = packed(Compression.NONE, records)[61:]
    assert bytes(cramjam.lz4.decompress(packed(Compression.LZ4, records)[61:])) == body
    assert gzip.decompress(packed(Compression.GZIP, records)[61:]) == body


@pytest.mark.parametrize("compression", ALL)
def test_thinned_batch_keeps_offsets_and_producer_state(
    compression: Compression,
) -> None:
    batch = packed(compression)
    header = read_header(batch)
    body = open_body(batch, 0, header)
    kept = [r for r in raw_records(body, 4) if r.offset_delta in (1, 3)]
    thin = thinned_batch(header, body, kept)
    after = read_header(thin)
    check_crc(thin, 0, after)
    assert [(r.offset, r.key, r.timestamp_ms) for r in read_records(thin)] == [
        (41, b"b", 1_000_000),
        (43, b"", 5000),
    ]
    same = ("base_offset", "last_offset_delta", "producer_id", "base_sequence", "base_timestamp")
    assert [getattr(after, name) for name in same] == [getattr(header, name) for name in same]
    assert (after.record_count, after.max_timestamp) == (2, 1_000_000)
    assert after.partition_leader_epoch == 3


@pytest.mark.parametrize("compression", ALL)
def test_delete_horizon_changes_no_timestamp(compression: Compression) -> None:
    batch = packed(compression)
    header = read_header(batch)
    assert delete_horizon(header) == NO_HORIZON
    body = open_body(batch, 0, header)
    thin = thinned_batch(header, body, list(raw_records(body, 4)), 123_456_789)
    after = read_header(thin)
    check_crc(thin, 0, after)
    assert delete_horizon(after) == 123_456_789
    expected = [(r.key, r.value, r.timestamp_ms, r.headers) for r in RECORDS]
    assert [(r.key, r.value, r.timestamp_ms, r.headers) for r in read_records(thin)] == expected
    # The horizon is set once; a later pass does not postpone it.
    body = open_body(thin, 0, after)
    again = thinned_batch(after, body, list(raw_records(body, 4)), 999_999_999)
    assert delete_horizon(read_header(again)) == 123_456_789
    assert [r.timestamp_ms for r in read_records(again)] == [r.timestamp_ms for r in RECORDS]


def test_thinned_batch_with_append_time_keeps_it() -> None:
    batch = packed(Compression.NONE)
    header = read_header(batch)
    header = header._replace(attributes=header.attributes | 8, max_timestamp=77)
    body = open_body(batch, 0, header)
    thin = thinned_batch(header, body, list(raw_records(body, 4))[:1])
    assert read_header(thin).max_timestamp == 77
    assert [r.timestamp_ms for r in read_records(thin)] == [77]


@pytest.mark.parametrize("compression", ALL)
def test_empty_batch_keeps_offsets_and_producer_state(compression: Compression) -> None:
    header = read_header(packed(compression))
    empty = empty_batch(header)
    after = read_header(empty)
    check_crc(empty, 0, after)
    assert len(empty) == 61
    assert list(read_records(empty)) == []
    assert (after.base_offset, after.last_offset) == (40, 43)
    assert (after.producer_id, after.base_sequence, after.last_sequence) == (9, 5, 8)
    assert (after.record_count, after.compression) == (0, 0)
    assert delete_horizon(after) == NO_HORIZON


@pytest.mark.parametrize("count", [3, 5])
def test_raw_records_refuses_wrong_record_count(count: int) -> None:
    body = open_body(packed(Compression.NONE), 0, read_header(packed(Compression.NONE)))
    with pytest.raises(CorruptRecordError):
        list(raw_records(body, count))


@given(st.binary(max_size=60), st.integers(1, 4))
def test_raw_records_of_random_bytes_raises_corrupt_record_error_or_reads_all(
    body: bytes, count: int
) -> None:
    try:
        found = list(raw_records(body, count))
    except CorruptRecordError:
        return
    assert len(found) == count
    assert found[-1].end == len(body)


def search(records: list[Record], timestamp: int, **limits: int) -> tuple[int, int] | None:
    batch = build_batch(records)
    header = read_header(batch)
    looking = TimeSearch(
        header, open_body(batch, 0, header), timestamp, limits.get("first_delta", 0)
    )
    steps = 0
    while not looking.step(limits.get("max_records", 4096)):
        steps += 1
    assert steps <= len(records)
    return looking.found


@pytest.mark.parametrize("max_records", [1, 2, 4096])
@each_case("timestamp", [-(2**63), 900, 1000, 1001, 1_000_000, 1_000_001, 2**63 - 1])
@each_case("first_delta", [0, 1, 2, 4])
def test_time_search_equals_linear_search(
    max_records: int, timestamp: int, first_delta: int
) -> None:
    expected = next(
        (
            (at, record.timestamp_ms)
            for at, record in enumerate(RECORDS)
            if record.timestamp_ms >= timestamp and at >= first_delta
        ),
        None,
    )
    found = search(RECORDS, timestamp, max_records=max_records, first_delta=first_delta)
    assert found == expected


def test_time_search_with_append_time_matches_every_record() -> None:
    batch = build_batch(RECORDS)
    header = read_header(batch)
    header = header._replace(attributes=header.attributes | 8, max_timestamp=77)
    for timestamp, expected in ((77, (2, 77)), (78, None)):
        looking = TimeSearch(header, open_body(batch, 0, header), timestamp, 2)
        assert looking.step()
        assert looking.found == expected


def test_raw_records_refuses_offset_deltas_that_do_not_increase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compaction relies on them: a delta that is too large would delete newer records."""
    monkeypatch.setattr("kraftjbod.protocol.raw_records.SLICE_RECORDS", 1)
    body = open_body(packed(Compression.NONE), 0, read_header(packed(Compression.NONE)))
    assert len(list(raw_records(body, 4, 3))) == 4
    with pytest.raises(CorruptRecordError, match="follow 2, and 2 is the"):
        list(raw_records(body, 4, 2))
    with pytest.raises(CorruptRecordError, match="deltas 0 to 0 follow 3"):
        list(raw_records(bytes(body) * 2, 8, 7))


def test_thinned_batch_with_extreme_horizon_keeps_timestamps_and_refuses_overflow() -> None:
    batch = packed(Compression.NONE)
    header = read_header(batch)
    body = open_body(batch, 0, header)
    kept = list(raw_records(body, 4))
    thin = thinned_batch(header, body, kept, 2**63 + 5)
    assert [r.timestamp_ms for r in read_records(thin)] == [r.timestamp_ms for r in RECORDS]
    for base in (2**63 - 1, -(2**63)):
        with pytest.raises(CorruptRecordError, match="timestamps from"):
            thinned_batch(header._replace(base_timestamp=base), body, kept)
