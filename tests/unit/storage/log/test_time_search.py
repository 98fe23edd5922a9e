"""Searches by timestamp over the segments of a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from kraftjbod.protocol.raw_records import empty_batch
from kraftjbod.protocol.record_batch import HEADER_BYTES, Compression, read_header
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.log.log_values import FoundTimestamp
from kraftjbod.storage.log.time_search import ByIndex, LogTimeSearch, MaxTimestampSearch
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import headers_of
from tests.unit.storage.tiny_records import tiny

T = TypeVar("T")

#: Position of the attributes in a batch, and the code of GZIP.
_ATTRIBUTES, _GZIP = 21, 1


def at(base: int, *timestamps: int) -> bytes:
    records = [Record(key=b"k", timestamp_ms=timestamp) for timestamp in timestamps]
    return build_batch(records, base_offset=base, leader_epoch=base)


def segments(*contents: list[bytes]) -> list[LogSegment]:
    vfs = MemVfs()
    vfs.make_dirs("/d")
    made = []
    for content in contents:
        one = LogSegment(
            vfs=vfs,
            directory="/d",
            base_offset=read_header(content[0]).base_offset,
            size_bytes=0,
            index_interval_bytes=0,
            may_have_gaps=True,
        )
        one.create()
        for data in content:
            one.append_batches([data], headers_of(data))
        made.append(one)
    return made


def straight(_at: int, search_it: Callable[[], T]) -> T:
    return search_it()


def any_end(_at: int) -> None:
    """Accept each end of a segment."""


def first_from(
    made: list[LogSegment], timestamp: int, start: int, by_index: ByIndex
) -> FoundTimestamp | None:
    """Run the whole search as ``LogHandle`` does."""
    search = LogTimeSearch(timestamp)
    while not search.is_over:
        search.scan(made, start, by_index, any_end)
        if search.unopened_bytes:
            search.open()
    return search.answer


def test_time_search_finds_the_first_record_with_the_timestamp_or_a_later_one() -> None:
    made = segments([at(0, 100, 50), at(2, 300)], [at(3, 200, 400)])
    assert first_from(made, 60, 0, straight) == FoundTimestamp(100, 0, 0)
    assert first_from(made, 101, 0, straight) == FoundTimestamp(300, 2, 2)
    assert first_from(made, 301, 0, straight) == FoundTimestamp(400, 4, 3)
    assert first_from(made, 401, 0, straight) is None
    assert first_from(made, 0, 2, straight) == FoundTimestamp(300, 2, 2)


def test_time_search_finds_a_record_within_a_batch() -> None:
    made = segments([at(0, 100, 101, 102, 103, 104)])
    assert first_from(made, 103, 0, straight) == FoundTimestamp(103, 3, 0)
    assert first_from(made, 105, 0, straight) is None


def test_time_search_skips_records_before_the_log_start() -> None:
    """DeleteRecords may move the log start into a batch."""
    made = segments([at(0, 100, 900, 102, 103), at(4, 50, 950)])
    assert first_from(made, 0, 2, straight) == FoundTimestamp(102, 2, 0)
    assert first_from(made, 101, 3, straight) == FoundTimestamp(103, 3, 0)
    assert first_from(made, 500, 2, straight) == FoundTimestamp(950, 5, 4)
    assert first_from(made, 960, 2, straight) is None


def test_time_search_reports_the_base_offset_of_a_batch_that_cannot_be_decompressed() -> None:
    data = bytearray(at(1, 200, 300))
    data[_ATTRIBUTES + 1] |= _GZIP  # The records are not compressed.
    made = segments([at(0, 100), bytes(data)])
    assert first_from(made, 250, 0, straight) == FoundTimestamp(300, 1, 1)
    assert first_from(made, 250, 2, straight) == FoundTimestamp(300, 2, 1)


def test_time_search_skips_a_batch_emptied_by_compaction() -> None:
    made = segments([empty_batch(read_header(at(0, 500, 500))), at(2, 100), at(9, 450)])
    assert first_from(made, 400, 0, straight) == FoundTimestamp(450, 9, 9)


def test_time_search_reads_the_index_through_the_given_function() -> None:
    made, asked = segments([at(0, 100)], [at(1, 200)]), list[int]()

    def by_index(number: int, search_it: Callable[[], T]) -> T:
        asked.append(number)
        return search_it()

    assert first_from(made, 150, 0, by_index) == FoundTimestamp(200, 1, 1)
    assert asked == [1]


# -- hostile requests and content ------------------------------------------------------------------


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD, Compression.LZ4])
def test_time_search_reports_the_base_offset_of_a_batch_that_expands_too_much(
    compression: Compression,
) -> None:
    """Some KiB took a directory offline: 30 s of decompression counted as a hung disk."""
    small = tiny(3_000_000, compression=compression, base=1)
    assert len(small) < 150_000
    made = segments([at(0, 100), small])
    assert first_from(made, 300, 0, straight) == FoundTimestamp(500, 1, -1)
    assert first_from(made, 300, 7, straight) == FoundTimestamp(500, 7, -1)


def test_time_search_reports_the_base_offset_of_a_batch_with_too_many_records() -> None:
    made = segments([tiny(1_100_000, compression=Compression.ZSTD)])
    assert first_from(made, 300, 0, straight) == FoundTimestamp(500, 0, -1)
    within = segments([tiny(1_000, compression=Compression.ZSTD)])
    assert first_from(within, 300, 0, straight) is None


def test_time_search_decompresses_a_limited_number_of_batches() -> None:
    lies = [tiny(1, compression=Compression.NONE, base=base) for base in range(100)]
    made = segments(lies[:40], lies[40:])
    search, opened = LogTimeSearch(300), 0
    while not search.is_over:
        search.scan(made, 0, straight, any_end)
        if search.unopened_bytes:
            search.open()
            opened += 1
    assert search.answer == FoundTimestamp(500, opened - 1, -1)
    assert opened < 20


def test_time_search_scan_is_bounded_and_continues_in_the_next_step() -> None:
    """Other operations of the directory wait for the step."""
    old = [at(base, 100) for base in range(5_000)]
    young = at(5_000, 99)
    made = segments([at(0, 900, 900), *old[2:], young, at(5_001, 700)])
    search, turns = LogTimeSearch(500), 0
    while not search.is_over:
        # The time index does not help: the first batch was newer, but lies before the log start.
        search.scan(made, 2, straight, any_end)
        turns += 1
        if search.unopened_bytes:
            search.open()
    assert search.answer == FoundTimestamp(700, 5_001, 5_001)
    assert turns >= 3


def test_max_timestamp_search_walks_headers_in_bounded_steps_and_only_if_necessary() -> None:
    """The first record was the newest one of its segment, and was deleted."""
    old = [at(base, 900 if base == 0 else 100 + base % 7) for base in range(5_000)]
    made = segments(old, [at(5_000, 106)], [at(5_001, 105)])
    search = MaxTimestampSearch()
    turns = 0
    while not search.is_over:
        search.scan(made, 1, straight, any_end)
        turns += 1
    assert (search.largest, search.base_offset) == (106, 0), "the first segment that has it"
    assert turns == 4
    newer = [*made[:2], *segments([at(5_001, 901)])]
    search = MaxTimestampSearch()
    search.scan(newer, 1, straight, any_end)
    assert search.is_over and (search.largest, search.base_offset) == (901, 5_001)


def test_time_search_reports_the_base_offset_of_a_batch_with_an_impossible_record_offset() -> None:
    data = bytearray(at(3, 200, 300))
    delta_at = HEADER_BYTES + 3
    assert data[delta_at] == 0
    data[delta_at] = 2 * 60
    made = segments([bytes(data)])
    assert first_from(made, 150, 0, straight) == FoundTimestamp(300, 3, 3)
