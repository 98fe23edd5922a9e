"""Sparse indexes: look-ups, truncation and Kafka's file format."""

from __future__ import annotations

import struct

from kraftjbod.storage.segments.offset_index import OffsetIndex, TimeEntry, TimeIndex


def make() -> OffsetIndex:
    index = OffsetIndex(100)
    for offset, position in [(110, 1000), (120, 2000), (130, 3000)]:
        index.append_entry(offset, position)
    return index


def test_offset_index_position_before_and_position_at_most_return_nearest_indexed_positions() -> (
    None
):
    index = make()
    assert [index.position_before(o) for o in (100, 109, 110, 119, 120, 999)] == [
        0,
        0,
        1000,
        1000,
        2000,
        3000,
    ]
    assert [index.position_at_most(p) for p in (0, 999, 1000, 9999)] == [0, 0, 1000, 3000]


def test_offset_index_positions_after_returns_later_positions_in_order() -> None:
    index = make()
    assert [list(index.positions_after(p)) for p in (0, 1000, 2999, 3000)] == [
        [1000, 2000, 3000],
        [2000, 3000],
        [3000],
        [],
    ]


def test_offset_index_bytes_equal_kafkas() -> None:
    data = make().to_bytes()
    assert data == struct.pack(">6i", 10, 1000, 20, 2000, 30, 3000)
    back = OffsetIndex.from_bytes(100, data, segment_bytes=3001)
    assert back is not None
    assert back.to_bytes() == data


def test_offset_index_from_bytes_of_another_segment_cut_or_unsorted_is_none() -> None:
    data = make().to_bytes()
    assert OffsetIndex.from_bytes(100, data, segment_bytes=3000) is None
    assert OffsetIndex.from_bytes(100, data[:-1], segment_bytes=9999) is None
    assert OffsetIndex.from_bytes(100, data[8:] + data[:8], segment_bytes=9999) is None


def test_time_index_from_bytes_cut_or_zeroed_is_none() -> None:
    assert TimeIndex.from_bytes(0, b"123") is None
    assert TimeIndex.from_bytes(0, bytes(24)) is None


def test_offset_index_below_removes_later_positions() -> None:
    index = make()
    index = index.below(2000)
    assert len(index) == 1
    index.append_entry(125, 2000)
    assert index.position_before(130) == 2000


def test_time_index_finds_offsets_and_round_trips() -> None:
    times = TimeIndex(100)
    assert times.last() is None
    for timestamp, offset in [(5, 110), (4, 115), (9, 120)]:
        times.append_entry(timestamp, offset)
    assert len(times) == 2
    assert times.last() == TimeEntry(9, 120)
    assert [times.offset_before(t) for t in (0, 5, 6, 9, 99)] == [100, 100, 110, 110, 120]
    data = times.to_bytes()
    assert data == struct.pack(">qiqi", 5, 10, 9, 20)
    back = TimeIndex.from_bytes(100, data)
    assert back is not None
    assert back.to_bytes() == data
    times = times.below(120)
    assert times.last() == TimeEntry(5, 110)


def test_offset_index_offset_below_returns_last_indexed_offset_before_a_position() -> None:
    index = OffsetIndex(100)
    assert index.offset_below(10**6) == 100
    index.append_entry(109, 50)
    index.append_entry(119, 200)
    index.append_entry(129, 400)
    assert [index.offset_below(p) for p in (0, 50, 199, 200, 399, 400, 900)] == [
        100,
        100,
        100,
        110,
        110,
        120,
        120,
    ]
