from __future__ import annotations

import random

import pytest

from kraftjbod.core import buggify
from kraftjbod.core.buggify import Points


def points_of(seed: int) -> Points:
    return Points(lambda name: random.Random(f"{seed}/{name}"))


def fired_by(seed: int, names: list[str]) -> list[str]:
    points = points_of(seed)
    return [name for _ in range(300) for name in names if points.fires(name)]


def test_buggify_fires_without_points_is_false() -> None:
    assert not buggify.is_on
    assert not buggify.fires("storage.early_roll")


def test_buggify_points_of_the_same_seed_fire_at_the_same_calls() -> None:
    seeds = [seed for seed in range(20) if fired_by(seed, ["a", "b"])]
    assert seeds
    assert [fired_by(seed, ["a", "b"]) for seed in seeds] == [
        fired_by(seed, ["a", "b"]) for seed in seeds
    ]


def test_buggify_points_in_use_differ_by_seed_and_some_seeds_use_none() -> None:
    names = [f"point.{number}" for number in range(30)]
    in_use = [frozenset(fired_by(seed, names)) for seed in range(40)]
    assert in_use.count(frozenset()) in range(4, 21)
    assert all(len(points) <= 20 for points in in_use)
    assert len(set(in_use)) > 10


def test_buggify_added_point_keeps_draws_of_other_points() -> None:
    for seed in range(20):
        with_new = fired_by(seed, ["a", "new", "b"])
        assert [name for name in with_new if name != "new"] == fired_by(seed, ["a", "b"])


def test_buggify_least_probability_applies_also_to_quiet_seeds_until_a_limit() -> None:
    seed = next(seed for seed in range(99) if not fired_by(seed, ["a"]))
    points = Points(lambda name: random.Random(f"{seed}/{name}"), {"a": 1.0})
    assert points.fires("a")
    points.limit("a", 0.0)
    assert not points.fires("a")


def test_buggify_limit_lowers_and_does_not_raise_the_probability_of_a_point() -> None:
    seed = next(seed for seed in range(99) if fired_by(seed, ["a"]).count("a") > 30)
    points = points_of(seed)
    points.limit("a", 0.0)
    assert not any(points.fires("a") for _ in range(300))
    points = points_of(seed)
    points.limit("a", 1.0)
    assert [points.fires("a") for _ in range(300)].count(True) > 30, "a limit raises nothing"


def test_buggify_forced_point_fires_during_the_context_only() -> None:
    seed = next(seed for seed in range(99) if not fired_by(seed, ["a"]))
    points = points_of(seed)
    with points.forced("a", 1.0):
        with points.forced("a", 0.5):
            assert all(points.fires("a") for _ in range(20)), "the largest probability applies"
        assert points.fires("a")
        assert not points.fires("b")
    assert not any(points.fires("a") for _ in range(300))


def test_buggify_use_returns_previous_points_and_counts_each_firing() -> None:
    points = next(p for p in map(points_of, range(50)) if any(p.fires("a") for _ in range(300)))
    points.fired.clear()
    before = buggify.use(points)
    try:
        assert buggify.is_on
        fired = sum(buggify.fires("a") for _ in range(1_000))
        timeouts = 0
        for _ in range(1_000):
            try:
                buggify.time_out("a")
            except TimeoutError:
                timeouts += 1
    finally:
        assert buggify.use(before) is points
    assert fired and timeouts
    assert points.fired == {"a": fired + timeouts}
    assert not buggify.is_on
    buggify.time_out("a")


@pytest.mark.parametrize("name", ["a", "b"])
def test_buggify_point_fires_in_shares_near_the_possible_probabilities(name: str) -> None:
    shares = {round(fired_by(seed, [name]).count(name) / 300, 1) for seed in range(60)}
    assert shares <= {0.0, 0.1, 0.2, 0.3}
    assert shares & {0.2, 0.3}, "the largest probability is 0.25"
