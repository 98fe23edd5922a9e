"""``SlowDirs``: detection of slow directories, demotion, and the exceptions from it."""

from __future__ import annotations

import random

import pytest

from kraftjbod.storage.log_dirs.slow_dirs import (
    CHECKS_TO_FAST,
    CHECKS_TO_SLOW,
    Action,
    BecameFast,
    BecameSlow,
    Demote,
    DirLatency,
    GiveBack,
    SlowDirs,
)
from tests.each_case import each_case
from tests.faults.rig import directory_id

A, B, C = directory_id(1), directory_id(2), directory_id(3)


def slow_dirs(*, may_demote: bool = True) -> SlowDirs:
    return SlowDirs(factor=10, min_ms=50, may_demote=may_demote)


def sample(dirs: SlowDirs, *latencies: float, sick: tuple[int, ...] = ()) -> list[Action]:
    """Run one check of directories numbered from 1; those in ``sick`` are not healthy."""
    return dirs.check(
        [
            DirLatency(
                directory_id=directory_id(number),
                latency_ms=latency_ms,
                is_healthy=number not in sick,
            )
            for number, latency_ms in enumerate(latencies, 1)
        ]
    )


def samples(
    dirs: SlowDirs, times: int, *latencies: float, sick: tuple[int, ...] = ()
) -> list[Action]:
    return [action for _ in range(times) for action in sample(dirs, *latencies, sick=sick)]


@pytest.mark.parametrize(
    ("latencies", "is_slow"),
    [
        ((2.0, 2.0, 60.0), True),
        # Ten times the others, but below the absolute limit.
        ((0.5, 0.5, 49.0), False),
        # Above the absolute limit, but the others are slow as well.
        ((40.0, 40.0, 399.0), False),
        ((40.0, 40.0, 400.0), True),
        # The median counts: one slow directory neither hides another one nor is hidden by it.
        ((1.0, 500.0, 60.0), False),
        ((1.0, 1.0, 500.0, 60.0), True),
        # Two directories: each is compared with the other one.
        ((5.0, 50.0), True),
        ((5.1, 50.0), False),
        # One directory: ten times the minimum.
        ((499.0,), False),
        ((500.0,), True),
    ],
)
def test_slow_dirs_finds_a_directory_slow_relative_to_the_median(
    latencies: tuple[float, ...], is_slow: bool
) -> None:
    dirs = slow_dirs(may_demote=False)
    samples(dirs, CHECKS_TO_SLOW, *latencies)
    assert dirs.is_slow(directory_id(len(latencies))) is is_slow


def test_slow_dirs_requires_several_checks_for_slow_and_more_for_fast() -> None:
    dirs = slow_dirs(may_demote=False)
    assert samples(dirs, CHECKS_TO_SLOW - 1, 1, 80) == []
    assert sample(dirs, 1, 2) == []
    assert samples(dirs, CHECKS_TO_SLOW - 1, 1, 80) == []
    assert sample(dirs, 1, 90) == [BecameSlow(directory_id=B, latency_ms=90, limit_ms=50)]
    assert samples(dirs, 3, 1, 80) == []
    assert samples(dirs, CHECKS_TO_FAST - 1, 1, 2) == []
    assert sample(dirs, 1, 80) == []
    assert samples(dirs, CHECKS_TO_FAST - 1, 1, 2) == []
    assert sample(dirs, 1, 3) == [BecameFast(directory_id=B, latency_ms=3)]
    assert not dirs.is_slow(B)


def test_slow_dirs_demotes_a_slow_directory_and_gives_it_back() -> None:
    dirs = slow_dirs()
    reported = samples(dirs, CHECKS_TO_SLOW, 1, 80)
    assert reported[1:] == [Demote(B)]
    assert dirs.demoted == B
    # A demoted directory is not healthy, and is still measured.
    assert samples(dirs, 20, 1, 80, sick=(2,)) == []
    reported = samples(dirs, CHECKS_TO_FAST, 1, 2, sick=(2,))
    assert reported == [BecameFast(directory_id=B, latency_ms=2), GiveBack(B)]
    assert dirs.demoted is None


def test_slow_dirs_with_warning_only_demotes_no_directory() -> None:
    assert len(samples(slow_dirs(may_demote=False), 50, 1, 1, 80)) == 1


def test_slow_dirs_demotes_one_directory_at_a_time() -> None:
    dirs = slow_dirs()
    reported = samples(dirs, CHECKS_TO_SLOW, 1, 1, 1, 80, 90)
    assert [a for a in reported if isinstance(a, Demote)] == [Demote(directory_id(4))]
    reported = samples(dirs, CHECKS_TO_FAST, 1, 1, 1, 1, 90, sick=(4,))
    assert reported[-2:] == [GiveBack(directory_id(4)), Demote(directory_id(5))]


def test_slow_dirs_never_demotes_the_last_healthy_directory() -> None:
    assert samples(slow_dirs(), 50, 5_000)[1:] == []
    # The other directory is present, but stalled or full.
    assert samples(slow_dirs(), 50, 1, 80, sick=(1,))[1:] == []
    # The other directory is healthy, but just as slow.
    dirs = slow_dirs()
    samples(dirs, CHECKS_TO_SLOW, 1, 80, sick=(1, 2))
    assert samples(dirs, CHECKS_TO_SLOW, 900, 80, sick=(2,)) == [
        BecameSlow(directory_id=A, latency_ms=900, limit_ms=800)
    ]
    assert samples(dirs, 3, 900, 80) == []


def test_slow_dirs_demotes_a_stalled_directory_after_it_answers() -> None:
    dirs = slow_dirs()
    assert samples(dirs, 9, 1, 80, sick=(2,))[1:] == []
    assert sample(dirs, 1, 80) == [Demote(B)]


def test_slow_dirs_forgets_a_removed_directory() -> None:
    dirs = slow_dirs()
    samples(dirs, CHECKS_TO_SLOW, 1, 1, 80)
    assert dirs.demoted == C
    assert sample(dirs, 1, 1) == []
    assert dirs.demoted is None
    assert not dirs.is_slow(C)
    assert samples(dirs, CHECKS_TO_SLOW - 1, 1, 1, 80) == []
    assert sample(dirs, 1, 1, 80)[-1] == Demote(C)


@each_case("seed", range(20))
def test_slow_dirs_random_walk_demotes_at_most_one_and_keeps_a_healthy_one(seed: int) -> None:
    rng = random.Random(seed)
    dirs, demoted = slow_dirs(), None
    for _ in range(400):
        present = rng.sample(range(1, 5), rng.randint(1, 4))
        latencies = [
            DirLatency(
                directory_id=directory_id(number),
                latency_ms=rng.choice([1, 2, 80, 1_000]),
                is_healthy=directory_id(number) != demoted and rng.random() < 0.9,
            )
            for number in present
        ]
        if demoted not in {one.directory_id for one in latencies}:
            demoted = None
        for action in dirs.check(latencies):
            if isinstance(action, Demote):
                assert demoted is None
                assert any(
                    one.is_healthy and not dirs.is_slow(one.directory_id)
                    for one in latencies
                    if one.directory_id != action.directory_id
                )
                demoted = action.directory_id
            elif isinstance(action, GiveBack):
                assert action.directory_id == demoted
                demoted = None
        assert dirs.demoted == demoted
