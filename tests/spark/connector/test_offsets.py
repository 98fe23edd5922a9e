"""Calculations with offsets: limits, tasks, data loss, and the form in checkpoints."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.connector.offsets import (
    OffsetRange,
    StreamOffset,
    check_range,
    limit_offsets,
    plan_batch,
    split_ranges,
    unknown_first_offsets,
)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
ID_A, ID_B = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBB"

partitions = st.builds(TopicPartition, st.sampled_from(["t", "u", "v"]), st.integers(0, 9))
numbers = st.integers(0, 2**62)
ranges_ = st.builds(
    lambda p, start, size: OffsetRange(partition=p, start=start, end=start + size),
    partitions,
    numbers,
    st.integers(0, 2**40),
)
range_lists = st.lists(ranges_, unique_by=lambda found: found.partition, max_size=12)


# --- the form in checkpoints ---------------------------------------------------------------------


def test_stream_offset_to_json_has_the_connectors_form_with_topic_ids() -> None:
    offset = StreamOffset(offsets={U0: 3, T1: 2, T0: 1}, topic_ids={"t": ID_A, "gone": ID_B})
    expected = '{"t": {"0": 1, "1": 2}, "u": {"0": 3}, "t#topicId=ID": {}}'
    assert json.dumps(offset.to_json()).replace(ID_A, "ID") == expected


def test_stream_offset_from_json_reads_older_checkpoints() -> None:
    reported: dict[str, dict[str, int | str]] = {
        "t": {"0": 1, "1": 2, "topicId": ID_A},
        "u": {"0": 3},
    }
    expected = StreamOffset(offsets={T0: 1, T1: 2, U0: 3}, topic_ids={"t": ID_A})
    assert StreamOffset.from_json(reported) == expected


@given(
    offsets=st.dictionaries(partitions, numbers),
    ids=st.dictionaries(st.sampled_from(["t", "u", "v"]), st.sampled_from([ID_A, ID_B])),
)
@settings(deadline=None)
def test_stream_offset_round_trips_through_json(
    offsets: dict[TopicPartition, int], ids: dict[str, str]
) -> None:
    ids = {topic: id_ for topic, id_ in ids.items() if topic in {p.topic for p in offsets}}
    whole = StreamOffset(offsets=offsets, topic_ids=ids)
    printed = json.loads(json.dumps(whole.to_json()))
    assert StreamOffset.from_json(printed) == whole
    backwards = StreamOffset(offsets=dict(reversed(offsets.items())), topic_ids=ids)
    assert json.dumps(backwards.to_json()) == json.dumps(whole.to_json())


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "limit", "shares"),
    [
        ([100, 100, 100], 100, [33, 33, 33]),
        ([10, 90], 50, [5, 45]),
        ([1, 1_000_000], 10, [1, 9]),
        ([0, 7], 5, [0, 5]),
        ([3, 4], 100, [3, 4]),
        ([333_334, 333_333, 333_333], 300_000, [100_000, 99_999, 99_999]),
    ],
)
def test_limit_offsets_shares_the_limit_in_proportion(
    sizes: list[int], limit: int, shares: list[int]
) -> None:
    start = {TopicPartition("t", i): 1000 for i in range(len(sizes))}
    latest = {TopicPartition("t", i): 1000 + size for i, size in enumerate(sizes)}
    ends = limit_offsets(start, latest, limit)
    assert [ends[p] - 1000 for p in start] == shares


@given(
    spans=st.dictionaries(partitions, st.tuples(numbers, st.integers(-100, 2**40)), max_size=12),
    limit=st.integers(1, 2**41),
)
@settings(deadline=None)
def test_limit_offsets_advances_every_partition_within_its_log(
    spans: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start = {p: begin for p, (begin, _) in spans.items()}
    latest = {p: begin + size for p, (begin, size) in spans.items()}
    ends = limit_offsets(start, latest, limit)
    assert ends.keys() == latest.keys()
    busy = {p for p, (_, size) in spans.items() if size > 0}
    assert all(start[p] < ends[p] <= latest[p] for p in busy)
    assert all(ends[p] == latest[p] for p in ends.keys() - busy)
    # The shares are rounded down, but each partition gets at least one record.
    assert sum(ends[p] - start[p] for p in busy) <= limit + len(busy)


# --- tasks ---------------------------------------------------------------------------------------


@given(
    ranges=range_lists,
    min_partitions=st.none() | st.integers(1, 40),
    max_records=st.none() | st.integers(2**36, 2**40),
)
@settings(deadline=None)
def test_split_ranges_covers_each_range_once(
    ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    pieces = split_ranges(
        ranges, min_partitions=min_partitions, max_records_per_partition=max_records
    )
    assert all(piece.size > 0 for piece in pieces)
    for found in ranges:
        own = [piece for piece in pieces if piece.partition == found.partition]
        ends = [found.start, *(piece.end for piece in own)]
        assert [piece.start for piece in own] == ends[:-1]
        assert ends[-1] == found.end
    if max_records is not None:
        assert all(piece.size <= max_records for piece in pieces)
    if min_partitions is None and max_records is None:
        assert pieces == [found for found in ranges if found.size]


def test_split_ranges_splits_long_ranges_only() -> None:
    long = OffsetRange(partition=T0, start=10, end=910)
    short = OffsetRange(partition=T1, start=0, end=10)
    pieces = split_ranges([long, short], min_partitions=4)
    assert [(p.partition, p.size) for p in pieces] == [(T0, 300), (T0, 300), (T0, 300), (T1, 10)]
    assert split_ranges([long, short], min_partitions=2) == [long, short]
    by_size = split_ranges([long, short], max_records_per_partition=400)
    assert [p.size for p in by_size] == [300, 300, 300, 10]


def test_split_ranges_makes_no_empty_pieces() -> None:
    pieces = split_ranges([OffsetRange(partition=T0, start=5, end=7)], min_partitions=10)
    assert [(piece.start, piece.end) for piece in pieces] == [(5, 6), (6, 7)]


# --- batches of a stream -------------------------------------------------------------------------


def at(ids: dict[str, str] | None = None, **offsets: int) -> StreamOffset:
    """``t0=5`` for offset 5 of t-0."""
    named = {TopicPartition(name[0], int(name[1:])): n for name, n in offsets.items()}
    return StreamOffset(offsets=named, topic_ids=ids or {})


def spans(ranges: list[OffsetRange]) -> dict[str, tuple[int, int]]:
    return {str(found.partition): (found.start, found.end) for found in ranges}


def test_plan_batch_begins_at_the_end_of_the_last_batch() -> None:
    ids = {"t": ID_A}
    plan = plan_batch(at(ids, t0=5, t1=7), at(ids, t0=9, t1=7), {}, ids)
    assert spans(list(plan.ranges)) == {"t-0": (5, 9), "t-1": (7, 7)}
    assert list(plan.losses) == []


def test_plan_batch_reads_new_partition_from_its_beginning() -> None:
    start, end = at(t0=5), at(t0=5, t1=4)
    assert unknown_first_offsets(start, end) == [T1]
    plan = plan_batch(start, end, {T1: 0}, {})
    assert spans(list(plan.ranges)) == {"t-0": (5, 5), "t-1": (0, 4)}
    assert list(plan.losses) == []


def test_plan_batch_of_trimmed_new_partition_reports_a_loss() -> None:
    plan = plan_batch(at(), at(t0=9), {T0: 3}, {})
    assert spans(list(plan.ranges)) == {"t-0": (3, 9)}
    assert list(plan.losses) == ["t-0 is new and begins at offset 3 instead of 0"]


def test_plan_batch_reports_a_deleted_partition() -> None:
    plan = plan_batch(at(t0=5, u0=3), at(u0=4), {}, {})
    assert spans(list(plan.ranges)) == {"u-0": (3, 4)}
    assert list(plan.losses) == ["t-0 is gone: it was read up to offset 5"]
    late = plan_batch(at(), at(t0=4), {}, {})
    assert (list(late.ranges), list(late.losses)) == (
        [],
        ["t-0 is gone before anything of it was read"],
    )


def test_plan_batch_reports_a_truncated_log() -> None:
    plan = plan_batch(at(t0=9), at(t0=4), {}, {})
    assert split_ranges(plan.ranges) == []
    (loss,) = plan.losses
    assert "t-0 ends at offset 4, but was read up to offset 9" in loss


def test_plan_batch_reports_recreated_topic_and_reads_it_from_the_beginning() -> None:
    start, end = at({"t": ID_A}, t0=9), at({"t": ID_B}, t0=20)
    assert unknown_first_offsets(start, end) == [T0]
    plan = plan_batch(start, end, {T0: 0}, {"t": ID_B})
    assert spans(list(plan.ranges)) == {"t-0": (0, 20)}
    (loss,) = plan.losses
    assert "topic t was deleted and recreated" in loss


def test_plan_batch_of_topic_recreated_later_does_not_read_the_new_one() -> None:
    ids = {"t": ID_A}
    plan = plan_batch(at(ids, t0=5), at(ids, t0=9), {}, {"t": ID_B})
    assert list(plan.ranges) == []
    (loss,) = plan.losses
    assert "up to offset 9 were not read" in loss


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (3, 8, []),
        (2, 9, []),
        (5, 4, ["t-0 begins at offset 5 and ends before it, at 4"]),
        (1, 8, ["t-0 has no offset 1 to begin at: it holds 2 to 9"]),
        (10, 11, ["no offset 10 to begin at", "no offset 11 to end at"]),
    ],
)
def test_check_range_reports_offsets_outside_of_the_log(
    start: int, end: int, said: list[str]
) -> None:
    found = check_range(T0, start, end, 2, 9)
    assert len(found) == len(said)
    assert all(part in got for part, got in zip(said, found, strict=True))
