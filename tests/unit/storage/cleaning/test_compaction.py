"""Rules of compaction: groups of segments, dirty ratio, keys, tombstones and empty batches."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kraftjbod.protocol.raw_records import delete_horizon, empty_batch
from kraftjbod.protocol.record_batch import read_header
from kraftjbod.protocol.records import Record, build_batch, read_records
from kraftjbod.storage.cleaning.cleaner_map import ENTRY_BYTES, CleanerMap
from kraftjbod.storage.cleaning.compaction import BatchFilter, Dirt, group_segments, put_keys
from kraftjbod.storage.log.producer_state import KeptBatches

NOW_MS = 50_000


@dataclass
class Segment:
    base_offset: int
    size_bytes: int


def grouped(*sizes: int, span: int = 10**9, most: int = 100) -> list[list[int]]:
    """Group segments of 10 offsets each; the bytes of a group are limited to 100."""
    segments = [Segment(10 * i, size) for i, size in enumerate(sizes)]
    groups = group_segments(
        segments, 10 * len(sizes), max_bytes=100, max_span=span, max_segments=most
    )
    return [[segment.size_bytes for segment in group] for group in groups]


def test_group_segments_joins_neighbours_up_to_the_segment_size() -> None:
    assert grouped(60, 30, 20, 50, 100, 1) == [[60, 30], [20, 50], [100], [1]]
    assert grouped(300, 5, 5) == [[300], [5, 5]]


def test_group_segments_limits_the_offset_span_of_a_group() -> None:
    assert grouped(1, 1, 1, span=20) == [[1, 1], [1]]
    assert grouped(1, 1, 1, span=5) == [[1], [1], [1]]


def test_group_segments_limits_the_number_of_segments() -> None:
    assert grouped(1, 1, 1, 1, 1, most=2) == [[1, 1], [1, 1], [1]]


@pytest.mark.parametrize(
    ("dirt", "ratio", "is_due"),
    [
        (Dirt(50, 50), 0.5, False),
        (Dirt(49, 51), 0.5, True),
        (Dirt(0, 1), 0.99, True),
        (Dirt(1000, 1), 0.0, True),
        (Dirt(1000, 1, is_overdue=True), 0.9, True),
        (Dirt(1000, 0, is_overdue=True), 0.0, False),
        (Dirt(0, 0), 0.0, False),
    ],
)
def test_dirty_log_is_due_by_ratio_or_when_overdue(dirt: Dirt, ratio: float, is_due: bool) -> None:
    assert dirt.is_due(ratio) is is_due


# -- batches ---------------------------------------------------------------------------------------


def batch(
    base_offset: int, *pairs: tuple[bytes | None, bytes | None], control: bool = False
) -> bytes:
    records = [Record(key=key, value=value, timestamp_ms=1000) for key, value in pairs]
    return build_batch(
        records,
        base_offset=base_offset,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        is_control=control,
    )


def map_of(*batches: bytes, max_bytes: int = 10_000) -> CleanerMap:
    found = CleanerMap(max_bytes=max_bytes, expected_keys=1000)
    for data in batches:
        if not put_keys(found, data, 0, read_header(data), 0):
            break
    return found


def thin_batch(
    latest: CleanerMap,
    data: bytes,
    *,
    now_ms: int = NOW_MS,
    kept: frozenset[int] = frozenset(),
    is_last: bool = False,
) -> bytes | None:
    keeps = BatchFilter(
        latest, now_ms=now_ms, delete_retention_ms=100, kept_batches=KeptBatches(kept)
    )
    left = keeps.thin(data, 0, read_header(data), is_last=is_last)
    return None if left is None else bytes(left)


def offsets(data: bytes | None) -> list[int]:
    return [] if data is None else [record.offset for record in read_records(data)]


def test_batch_filter_keeps_the_latest_record_of_each_key() -> None:
    first = batch(0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    second = batch(3, (b"b", b"2"))
    latest = map_of(first, second)
    assert offsets(thin_batch(latest, first)) == [2]
    assert thin_batch(latest, second) == second


def test_batch_filter_drops_a_batch_without_remaining_records() -> None:
    first, second = batch(0, (b"a", b"1")), batch(1, (b"a", b"2"))
    assert thin_batch(map_of(first, second), first) is None


def test_batch_filter_keeps_the_last_batch_of_a_group_without_records() -> None:
    first, second = batch(0, (b"a", b"1"), (b"a", b"2")), batch(2, (b"a", b"3"))
    left = thin_batch(map_of(first, second), first, is_last=True)
    assert left is not None
    assert offsets(left) == []
    assert read_header(left).next_offset == 2
    # The next pass drops the empty batch if it is no longer the last one.
    assert thin_batch(map_of(first, second), left) is None
    assert thin_batch(map_of(first, second), left, is_last=True) == left


def test_batch_filter_keeps_the_last_batch_of_a_producer_without_records() -> None:
    first, second = batch(0, (b"a", b"1"), (b"a", b"2")), batch(2, (b"a", b"3"))
    left = thin_batch(map_of(first, second), first, kept=frozenset({1}))
    assert left is not None
    header = read_header(left)
    assert (header.record_count, header.last_sequence, header.producer_id) == (0, 1, 1)


def test_batch_filter_leaves_records_beyond_the_map_unchanged() -> None:
    first, second = batch(0, (b"a", b"1"), (b"b", b"1")), batch(2, (b"c", b"1"), (b"d", b"2"))
    full = map_of(first, second, max_bytes=4 * ENTRY_BYTES)
    assert full.latest_offset == 2
    assert thin_batch(full, first) == first
    assert thin_batch(full, second) == second


def test_batch_filter_drops_records_without_a_key() -> None:
    first = batch(0, (None, b"1"), (b"a", b"1"))
    assert offsets(thin_batch(map_of(first), first)) == [1]


def test_batch_filter_keeps_control_batches() -> None:
    marker = batch(0, (b"\0\0\0\1", b"x"), control=True)
    later = batch(1, (b"\0\0\0\1", b"y"))
    assert thin_batch(map_of(marker, later), marker) == marker


def test_batch_filter_keeps_a_tombstone_until_its_delete_horizon() -> None:
    first = batch(0, (b"a", b"1"), (b"b", b"1"))
    grave = batch(2, (b"a", None), (b"c", b"1"))
    latest = map_of(first, grave)
    assert offsets(thin_batch(latest, first)) == [1]
    seen = thin_batch(latest, grave)
    assert seen is not None
    assert offsets(seen) == [2, 3]
    assert delete_horizon(read_header(seen)) == NOW_MS + 100
    # The map of a later pass holds dirty keys only, so the tombstone's key may be missing there.
    others = map_of(batch(10, (b"z", b"1")))
    assert thin_batch(others, seen, now_ms=NOW_MS + 99) == seen
    gone = thin_batch(others, seen, now_ms=NOW_MS + 100)
    assert offsets(gone) == [3]


def test_batch_filter_drops_a_superseded_tombstone_at_once() -> None:
    grave, again = batch(0, (b"a", None)), batch(1, (b"a", b"2"))
    assert thin_batch(map_of(grave, again), grave) is None


def test_put_keys_of_an_empty_batch_adds_no_entry() -> None:
    empty = empty_batch(read_header(batch(0, (b"a", b"1"), (b"b", b"1"))))
    found = map_of(empty)
    assert (found.entries, found.latest_offset) == (0, 1)


def test_put_keys_skips_records_below_the_first_dirty_offset() -> None:
    """A pass that stopped in the middle of a batch continues after the records it has cleaned."""
    data = batch(0, (b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    found = CleanerMap(max_bytes=10_000, expected_keys=1)
    assert put_keys(found, data, 0, read_header(data), 2)
    assert (found.entries, found.latest_offset, found.latest(b"a")) == (1, 2, -1)
