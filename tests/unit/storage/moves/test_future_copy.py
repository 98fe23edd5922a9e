"""``plan_copy``: tables, and random changes of a log while it is copied."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftjbod.storage.log.leader_epochs import EpochEntries, EpochEntry
from kraftjbod.storage.log.log_view import Truncation
from kraftjbod.storage.moves.future_copy import (
    CopyRange,
    SegmentExtent,
    agreed_before,
    plan_copy,
)

LOG = [SegmentExtent(0, 100), SegmentExtent(10, 80), SegmentExtent(20, 30)]


def test_plan_copy_returns_consecutive_ranges_up_to_the_limit() -> None:
    plan = plan_copy(LOG, {0: 40}, None, 100)
    assert plan.copy == (CopyRange(0, 40, 60), CopyRange(10, 0, 40))
    assert not plan.is_last
    assert plan_copy(LOG, {0: 100, 10: 80}, None, 30).is_last


def test_plan_copy_creates_an_empty_active_segment() -> None:
    log = [SegmentExtent(0, 100), SegmentExtent(10, 0)]
    plan = plan_copy(log, {0: 100}, None, 1)
    assert (plan.copy, plan.is_last) == ((CopyRange(10, 0, 0),), True)


def test_plan_copy_of_a_complete_copy_is_empty() -> None:
    plan = plan_copy(LOG, dict(LOG), None, 1000)
    assert plan == ((), None, (), True)


def test_plan_copy_drops_segments_removed_by_retention() -> None:
    plan = plan_copy(LOG[2:], {0: 100, 10: 80, 20: 5}, None, 1000)
    assert plan.drop == (0, 10)
    assert plan.copy == (CopyRange(20, 5, 25),)


@pytest.mark.parametrize(
    ("truncation", "drop", "shorten", "copy"),
    [
        (Truncation(20, 40), (), None, ()),
        (Truncation(20, 10), (), SegmentExtent(20, 10), (CopyRange(20, 10, 20),)),
        (
            Truncation(10, 50),
            (20,),
            SegmentExtent(10, 50),
            (CopyRange(10, 50, 30), CopyRange(20, 0, 30)),
        ),
        (Truncation(0, 0), (20, 10), SegmentExtent(0, 0), (CopyRange(0, 0, 100),)),
    ],
    ids=["above", "in the last segment", "in the middle", "whole log"],
)
def test_plan_copy_applies_a_truncation_of_the_log(
    truncation: Truncation,
    drop: tuple[int, ...],
    shorten: SegmentExtent | None,
    copy: tuple[CopyRange, ...],
) -> None:
    plan = plan_copy(LOG, dict(LOG), truncation, 1000)
    assert (plan.drop, plan.shorten) == (drop, shorten)
    assert plan.copy[: len(copy)] == copy


def test_plan_copy_drops_segments_after_the_first_difference() -> None:
    """A follower may roll at other offsets after its log lost its tail in a crash."""
    assert plan_copy(LOG, {0: 100, 15: 40}, None, 0).drop == (15,)
    assert plan_copy(LOG, {0: 90, 10: 80}, None, 0).drop == (10,)
    plan = plan_copy(LOG, {0: 120, 12: 80}, None, 0)
    assert (plan.drop, plan.shorten) == ((12,), SegmentExtent(0, 100))


def epochs(*pairs: tuple[int, int]) -> EpochEntries:
    return tuple(EpochEntry(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("ours", "theirs", "start", "parted"),
    [
        (epochs((0, 0), (3, 50)), epochs((0, 0), (3, 50)), 0, None),
        (epochs((0, 0)), epochs((0, 0), (3, 50)), 0, 50),
        (epochs((0, 0), (1, 40)), epochs((0, 0)), 0, 40),
        (epochs((0, 0), (1, 40)), epochs((0, 0), (2, 30)), 0, 30),
        (epochs((0, 0), (1, 40)), epochs((1, 45)), 45, None),
        (epochs(), epochs(), 0, None),
    ],
    ids=["equal", "new epoch", "lost epoch", "truncated and extended", "retention", "empty"],
)
def test_agreed_before_returns_the_offset_of_the_first_different_epoch(
    ours: EpochEntries, theirs: EpochEntries, start: int, parted: int | None
) -> None:
    assert agreed_before(ours, theirs, start) == parted
    assert agreed_before(theirs, ours, start) == parted


class Log:
    """A log as numbers: each append writes new numbers, so equal content has the same origin."""

    def __init__(self) -> None:
        self.segments: dict[int, list[int]] = {0: []}
        self.end = self.written = 0
        self.truncation: Truncation | None = None

    def append(self, size: int) -> None:
        active = self.segments[max(self.segments)]
        for _ in range(size):
            self.written += 1
            active.append(self.written)
        self.end += 1

    def roll(self) -> None:
        if self.segments[max(self.segments)]:
            self.segments.setdefault(self.end, [])

    def retain(self) -> None:
        if len(self.segments) > 1:
            del self.segments[min(self.segments)]

    def truncate(self, segment: int, position: int) -> None:
        bases = sorted(self.segments)
        base = bases[segment % len(bases)]
        for behind in bases[bases.index(base) + 1 :]:
            del self.segments[behind]
        del self.segments[base][position:]
        self.end = base + len(self.segments[base])
        self.note(Truncation(base, len(self.segments[base])))

    def restart(self, offset: int) -> None:
        self.segments = {offset: []}
        self.end = offset
        self.note(Truncation(0, 0))

    def note(self, truncation: Truncation) -> None:
        self.truncation = (
            truncation if self.truncation is None else min(self.truncation, truncation)
        )

    def extents(self) -> list[SegmentExtent]:
        return [SegmentExtent(base, len(data)) for base, data in sorted(self.segments.items())]


events = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9)),
        st.tuples(st.just("roll")),
        st.tuples(st.just("retain")),
        st.tuples(st.just("truncate"), st.integers(0, 5), st.integers(0, 20)),
        st.tuples(st.just("restart"), st.integers(0, 30)),
        st.tuples(st.just("copy"), st.integers(1, 15)),
        st.tuples(st.just("copy"), st.integers(1, 15)),
    ),
    max_size=60,
)


@given(events)
@settings(max_examples=300, deadline=None)
def test_plan_copy_result_is_always_a_prefix_of_the_log_and_becomes_complete(
    history: list[tuple[int, ...]],
) -> None:
    log, copy = Log(), dict[int, list[int]]()
    for name, *arguments in [*history, *[("copy", 1000)] * 3]:
        if name != "copy":
            getattr(log, str(name))(*arguments)
            continue
        truncation, log.truncation = log.truncation, None
        copied = {base: len(data) for base, data in sorted(copy.items())}
        plan = plan_copy(log.extents(), copied, truncation, arguments[0])
        for base in plan.drop:
            del copy[base]
        if plan.shorten is not None:
            del copy[plan.shorten.base_offset][plan.shorten.size_bytes :]
        for base, position, size in plan.copy:
            assert len(copy.setdefault(base, [])) == position
            copy[base] += log.segments[base][position : position + size]
        whole = list(copy)[:-1]
        for base, data in copy.items():
            assert data == log.segments[base][: len(data)]
            assert base not in whole or data == log.segments[base]
        assert plan.is_last == (copy == log.segments)
    assert copy == log.segments
