"""``SegmentIndexes``: entries for appended batches, index files, and rebuilt indexes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kraftjbod.protocol.record_batch import BatchHeader, read_header
from kraftjbod.storage.dir_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kraftjbod.storage.segments.batch_walk import Damage, Located
from kraftjbod.storage.segments.offset_index import TimeEntry
from kraftjbod.storage.segments.segment_indexes import FreshIndexes, SegmentIndexes
from tests.faults.rig import batch

BASE = 10
SIZE_BYTES = len(batch())


def header(number: int, timestamp: int) -> BatchHeader:
    return read_header(batch(base_offset=BASE + number, timestamp=timestamp))


def noted(interval_bytes: int, *timestamps: int) -> SegmentIndexes:
    indexes = SegmentIndexes(BASE, interval_bytes)
    for number, timestamp in enumerate(timestamps):
        indexes.note(header(number, timestamp), number * SIZE_BYTES)
    return indexes


def from_files(files: dict[str, bytes], segment_bytes: int) -> SegmentIndexes | None:
    return SegmentIndexes.from_files(
        BASE,
        0,
        offsets=files[INDEX_SUFFIX],
        times=files[TIME_INDEX_SUFFIX],
        segment_bytes=segment_bytes,
    )


def test_segment_indexes_get_an_entry_after_each_interval() -> None:
    indexes = noted(2 * SIZE_BYTES, 7, 7, 7, 5, 7, 7, 9)
    positions = [position for _, position in indexes.offsets.entries()]
    assert all(after - before > 2 * SIZE_BYTES for before, after in pairwise([0, *positions]))
    assert list(indexes.offsets.entries()) == [
        (BASE + 3, 3 * SIZE_BYTES),
        (BASE + 6, 6 * SIZE_BYTES),
    ]
    # An entry has the largest timestamp so far, with the first batch that has it.
    assert list(indexes.times.entries()) == [TimeEntry(7, BASE), TimeEntry(9, BASE + 6)]
    assert indexes.largest == TimeEntry(9, BASE + 6)


def test_segment_indexes_files_contain_the_largest_timestamp() -> None:
    files = noted(10**6, 5, 8).to_files()
    again = from_files(files, 2 * SIZE_BYTES)
    assert again is not None
    assert again.largest == TimeEntry(8, BASE + 1)
    assert again.to_files() == files


def test_segment_indexes_loaded_from_files_get_an_entry_for_the_next_batch() -> None:
    again = from_files(noted(10**6, 5, 8).to_files(), 2 * SIZE_BYTES)
    assert again is not None
    again.note(header(2, 9), 2 * SIZE_BYTES)
    assert list(again.offsets.entries()) == [(BASE + 2, 2 * SIZE_BYTES)]


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, TIME_INDEX_SUFFIX])
def test_segment_indexes_from_files_returns_none_for_a_torn_file(suffix: str) -> None:
    files = noted(0, 5, 8, 9).to_files()
    assert from_files(files, 3 * SIZE_BYTES) is not None
    files[suffix] = files[suffix][:-1]
    assert from_files(files, 3 * SIZE_BYTES) is None


def test_segment_indexes_from_files_returns_none_for_smaller_segment_or_empty_time_index() -> None:
    files = noted(0, 5, 8, 9).to_files()
    assert from_files(files, SIZE_BYTES) is None
    assert from_files({**files, TIME_INDEX_SUFFIX: b""}, 3 * SIZE_BYTES) is None


def test_fresh_indexes_equal_those_of_appending() -> None:
    fresh = FreshIndexes(BASE, SIZE_BYTES)
    for number, timestamp in enumerate([7, 6, 8, 8]):
        fresh.take(Located(number * SIZE_BYTES, header(number, timestamp)))
    assert fresh.indexes.to_files() == noted(SIZE_BYTES, 7, 6, 8, 8).to_files()
    assert (fresh.first_timestamp, fresh.damages) == (7, [])


def test_fresh_indexes_have_an_entry_directly_after_damage() -> None:
    damage = Damage(BASE + 1, BASE + 3, SIZE_BYTES)
    fresh = FreshIndexes(BASE, 10**6)
    fresh.take(Located(0, header(0, 7)))
    fresh.take(damage)
    fresh.take(Located(3 * SIZE_BYTES, header(3, 8)))
    fresh.take(Located(4 * SIZE_BYTES, header(4, 9)))
    assert fresh.damages == [damage]
    assert list(fresh.indexes.offsets.entries()) == [(BASE + 2, 3 * SIZE_BYTES)]
    assert fresh.indexes.offsets.position_before(BASE + 3) == 3 * SIZE_BYTES
    assert fresh.indexes.largest == TimeEntry(9, BASE + 4)
