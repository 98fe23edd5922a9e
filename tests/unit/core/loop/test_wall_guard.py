"""``WallGuard``: a jump of the wall clock must not cause irreversible decisions."""

from __future__ import annotations

import random

from kraftjbod.core.config_model import HOUR_MS, MINUTE_MS
from kraftjbod.core.loop.wall_guard import LARGEST_STEP_MS, SETTLES_AFTER_MS, PossibleNow, WallGuard

NOON_MS = 1_800_000_000_000
YEAR_MS = 365 * 24 * HOUR_MS


def test_wall_guard_accepts_small_clock_corrections_at_once() -> None:
    guard = WallGuard()
    wall_ms = NOON_MS
    for now_ms in range(0, 100 * HOUR_MS, HOUR_MS):
        wall_ms += HOUR_MS + 9 * MINUTE_MS
        assert guard.sample(now_ms, wall_ms) == PossibleNow(wall_ms, wall_ms)


def test_wall_guard_keeps_both_times_after_a_jump_until_the_clock_returns() -> None:
    for jump_ms in (YEAR_MS, -YEAR_MS, LARGEST_STEP_MS + 1):
        guard = WallGuard()
        guard.sample(0, NOON_MS)
        both = sorted((NOON_MS + 1000, NOON_MS + 1000 + jump_ms))
        assert guard.sample(1000, NOON_MS + 1000 + jump_ms) == tuple(both)
        assert guard.sample(2000, NOON_MS + 2000).doubt_ms == 0
        # The next jump is doubted again.
        assert guard.sample(3000, NOON_MS + jump_ms + 3000).doubt_ms == abs(jump_ms)


def test_wall_guard_accepts_a_jump_after_settling_time() -> None:
    guard = WallGuard()
    guard.sample(0, NOON_MS)
    jumped_ms = NOON_MS + YEAR_MS
    assert guard.sample(1, jumped_ms + 1).doubt_ms == YEAR_MS
    almost_ms = SETTLES_AFTER_MS
    assert guard.sample(almost_ms, jumped_ms + almost_ms) == (
        NOON_MS + almost_ms,
        jumped_ms + almost_ms,
    )
    assert guard.sample(almost_ms + 1, jumped_ms + almost_ms + 1).doubt_ms == 0


def test_wall_guard_second_jump_restarts_settling_time() -> None:
    guard = WallGuard()
    guard.sample(0, NOON_MS)
    guard.sample(1, NOON_MS + YEAR_MS)
    later_ms = SETTLES_AFTER_MS
    assert guard.sample(later_ms, NOON_MS + 2 * YEAR_MS).doubt_ms > YEAR_MS
    assert guard.sample(2 * later_ms - 1, NOON_MS + 2 * YEAR_MS + later_ms - 1).doubt_ms > YEAR_MS
    assert guard.sample(2 * later_ms, NOON_MS + 2 * YEAR_MS + later_ms).doubt_ms == 0


def test_wall_guard_keeps_the_true_time_possible_while_the_clock_jumps_for_less_than_a_day() -> (
    None
):
    dice = random.Random(13)
    for _ in range(200):
        guard, now_ms = WallGuard(), 0
        guard.sample(0, NOON_MS)
        jump_ms = 0
        while now_ms < SETTLES_AFTER_MS:
            now_ms += dice.randrange(1, HOUR_MS)
            if dice.random() < 0.3:
                jump_ms = dice.choice([0, YEAR_MS, -YEAR_MS, dice.randrange(-YEAR_MS, YEAR_MS)])
                if abs(jump_ms) <= LARGEST_STEP_MS:
                    jump_ms = 0
            found = guard.sample(now_ms, NOON_MS + now_ms + jump_ms)
            assert found.earliest_ms <= NOON_MS + now_ms <= found.latest_ms
