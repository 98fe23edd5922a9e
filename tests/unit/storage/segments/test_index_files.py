"""Entries of index files read without loading the whole files."""

from __future__ import annotations

import pytest

from kraftjbod.storage.segments.index_files import read_largest_entry, read_last_position
from kraftjbod.storage.segments.offset_index import TimeEntry
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.rig import batch, headers_of


def segment_of(timestamps: list[int]) -> tuple[MemVfs, LogSegment]:
    """Create a segment with one batch per timestamp, and an index entry for nearly each batch."""
    vfs = MemVfs()
    vfs.make_dirs("/t")
    made = LogSegment(vfs=vfs, directory="/t", base_offset=0, size_bytes=0, index_interval_bytes=1)
    made.create()
    for offset, timestamp in enumerate(timestamps):
        data = batch(base_offset=offset, timestamp=timestamp)
        made.append_batches([data], headers_of(data))
    made.write_indexes()
    return vfs, made


def largest_in(vfs: MemVfs, made: LogSegment) -> TimeEntry | None:
    return read_largest_entry(
        vfs,
        *made.index_paths,
        base_offset=0,
        read_at=made.read_at,
        size_bytes=made.size_bytes,
    )


@each_case("count", [1, 2, 511, 512, 513, 1024, 3000])
@each_case("at", [0, 1, 300, 700, -2, -1])
def test_read_largest_entry_finds_the_largest_timestamp_in_any_batch(count: int, at: int) -> None:
    timestamps = [5] * count
    timestamps[at % count] = 9
    vfs, made = segment_of(timestamps)
    assert largest_in(vfs, made) == made.indexes().largest == TimeEntry(9, at % count)


@pytest.mark.parametrize("lost", [0, 1])
def test_read_largest_entry_without_one_of_its_files_is_none(lost: int) -> None:
    vfs, made = segment_of([1, 2, 3])
    vfs.unlink_if_exists(made.index_paths[lost])
    assert largest_in(vfs, made) is None


@pytest.mark.parametrize("cut", [0, 1])
def test_read_largest_entry_of_a_file_with_a_partial_entry_is_none(cut: int) -> None:
    vfs, made = segment_of([1, 2, 3])
    file = vfs.open(made.index_paths[cut], OpenMode.READ_WRITE)
    file.truncate(file.size() - 1)
    assert largest_in(vfs, made) is None


def test_read_largest_entry_that_matches_no_batch_is_none() -> None:
    vfs, made = segment_of([1, 2, 3])
    vfs.open(made.index_paths[1], OpenMode.READ_WRITE).write_at(0, [bytes(24)])
    vfs.open(made.index_paths[1], OpenMode.READ_WRITE).truncate(12)
    assert largest_in(vfs, made) is None


def test_read_last_position_returns_the_position_of_the_last_entry() -> None:
    vfs, made = segment_of([1, 2, 3])
    assert read_last_position(vfs, made.index_paths[0]) == 2 * len(batch())
    assert read_last_position(vfs, "/t/none.index") == 0
