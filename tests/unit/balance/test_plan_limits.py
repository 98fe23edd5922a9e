"""Limits of a plan: the remaining part is consistent, and no worse than no plan."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kraftjbod.balance.fair_shares import DirLoad
from kraftjbod.balance.plan_limits import LimitedMove, within_limits
from kraftjbod.balance.planner import DirPlan, ReplicaLoad, Tier, plan_broker
from tests.unit.balance.test_planner import GOALS, brokers, bytes_after, disk, fills, held

Broker = tuple[list[DirLoad], list[ReplicaLoad]]


def limited(
    replicas: Sequence[ReplicaLoad], plan: DirPlan, most_moves: int | None, most_bytes: int | None
) -> DirPlan:
    """Return ``plan`` without the moves that the limit leaves out."""
    moves = [
        LimitedMove(
            unit=move.step,
            tier=move.tier,
            source=replicas[move.replica].directory,
            target=move.target,
            size_bytes=replicas[move.replica].size_bytes,
        )
        for move in plan.moves
    ]
    made = within_limits(moves, most_moves, most_bytes)
    kept = tuple(move for move, is_made in zip(plan.moves, made, strict=False) if is_made)
    return DirPlan(moves=kept, misfits=plan.misfits)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(brokers(only_open=True, max_replicas=40), st.integers(0, 30), st.integers(0, 2000))
@example(([disk(), disk()], [*held(0, 300, 300), *held(1, 200, 200)]), 9, 250)
def test_limited_plan_is_never_worse_than_no_plan(
    case: Broker, most_moves: int, most_bytes: int
) -> None:
    dirs, replicas = case
    whole = plan_broker(dirs, replicas, GOALS)
    part = limited(replicas, whole, most_moves, most_bytes)
    before = fills(dirs, bytes_after(dirs, replicas, DirPlan(moves=(), misfits=())))
    after = fills(dirs, bytes_after(dirs, replicas, part))
    assert max(after) <= max(before) + 1e-9
    steps = {step: len(list(own)) for step, own in groupby(whole.moves, key=lambda m: m.step)}
    for step, own in groupby(part.moves, key=lambda move: move.step):
        assert len(list(own)) == steps[step], "half a swap"
    assert len(part.moves) <= most_moves
    assert sum(replicas[move.replica].size_bytes for move in part.moves) <= most_bytes
    assert limited(replicas, whole, len(whole.moves), 10**9) == whole


def move(unit: int, ends: str, size: int, tier: Tier = Tier.BYTES) -> LimitedMove:
    return LimitedMove(unit=unit, tier=tier, source=ends[0], target=ends[1], size_bytes=size)


def made(moves: Sequence[LimitedMove], most_bytes: int) -> list[int]:
    """Return the units of the remaining moves."""
    found = within_limits(moves, None, most_bytes)
    return [one.unit for one, is_made in zip(moves, found, strict=False) if is_made]  # type: ignore[misc]


def test_limit_drops_moves_that_depend_on_a_dropped_one() -> None:
    too_large = move(0, "ab", 900)
    assert made([too_large, move(1, "bc", 10)], 100) == [], "b does not get what it passes on"
    assert made([too_large, move(1, "ca", 10)], 100) == [], "a is not emptied"
    assert made([too_large, move(1, "ac", 10)], 100) == [1], "a is the fuller for it"
    assert made([too_large, move(1, "cb", 10)], 100) == [1], "b is the emptier for it"
    assert made([too_large, move(1, "ac", 10, Tier.RATE)], 100) == []
    assert made([too_large, move(1, "bc", 10), move(2, "cd", 10)], 100) == []
    assert made([too_large, move(1, "bc", 10), move(2, "dc", 10)], 100) == [2]
    drain = [move(0, "ab", 900, Tier.DRAIN), move(1, "ab", 10, Tier.DRAIN)]
    assert made(drain, 100) == [1], "a drain moves as many replicas as the limit allows"


def test_limit_ends_at_first_move_that_exceeds_the_bytes() -> None:
    assert made([move(0, "ab", 60), move(1, "ab", 50), move(2, "ab", 10)], 100) == [0]
