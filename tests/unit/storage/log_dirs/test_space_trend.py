"""``SpaceTrend`` and ``WarningMark``: growth of a disk, and warnings before it is full."""

from __future__ import annotations

import pytest

from kraftjbod.storage.log_dirs.space_trend import (
    GROWTH_WINDOW_MS,
    Crossing,
    SpaceTrend,
    WarningMark,
)

GIB = 1 << 30
SECOND = 1_000


def grown(rate: int, seconds: int, *, step_s: int = 1) -> SpaceTrend:
    trend = SpaceTrend()
    for at_s in range(0, seconds + 1, step_s):
        trend.note(5 * GIB + rate * at_s, 77_000 + at_s * SECOND)
    return trend


def test_space_trend_without_samples_is_unknown() -> None:
    trend = SpaceTrend()
    assert (trend.bytes_per_second, trend.seconds_until_full(GIB)) == (0, None)
    trend.note(GIB, 1_000)
    assert (trend.bytes_per_second, trend.seconds_until_full(GIB)) == (0, None)


@pytest.mark.parametrize("step_s", [1, 5, 60])
def test_space_trend_finds_steady_growth_at_any_interval(step_s: int) -> None:
    trend = grown(10_000, 10 * GROWTH_WINDOW_MS // SECOND, step_s=step_s)
    assert trend.bytes_per_second == pytest.approx(10_000, rel=0.01)
    assert trend.seconds_until_full(10_000_000) == pytest.approx(1_000, rel=0.01)


@pytest.mark.parametrize("step_s", [1, 60])
def test_space_trend_reaches_63_percent_of_new_growth_after_one_window(step_s: int) -> None:
    trend = grown(10_000, GROWTH_WINDOW_MS // SECOND, step_s=step_s)
    assert trend.bytes_per_second == pytest.approx(6_321, rel=0.01)


def test_space_trend_of_a_shrinking_disk_has_no_time_until_full() -> None:
    trend = grown(-10_000, 3_600)
    assert trend.bytes_per_second < 0
    assert trend.seconds_until_full(0) is None


def test_space_trend_ignores_the_remainder_of_past_growth() -> None:
    trend = grown(2_000, 3_600)
    for i in range(1, 3_600):
        trend.note(5 * GIB + 2_000 * 3_600, 77_000 + (3_600 + i) * SECOND)
    assert trend.seconds_until_full(GIB) is None


def test_space_trend_ignores_a_second_sample_at_the_same_time() -> None:
    trend = grown(1_000, 60)
    before = trend.bytes_per_second
    trend.note(99 * GIB, 77_000 + 60 * SECOND)
    assert trend.bytes_per_second == before


def test_warning_mark_reports_each_crossing_once_with_hysteresis() -> None:
    mark = WarningMark(10)
    reported = [mark.sample(free, 100) for free in (50, 10, 9, 5, 9, 10, 9, 11, 10, 9, 50)]
    filling, over = Crossing.FILLING_UP, Crossing.NO_LONGER
    assert reported == [None, None, filling, None, None, None, None, over, None, filling, over]


def test_warning_mark_of_zero_or_an_unknown_size_reports_nothing() -> None:
    assert WarningMark(0).sample(0, 100) is None
    assert WarningMark(10).sample(0, 0) is None
