"""``Environment`` of a daemon."""

from __future__ import annotations

from kraftjbod.daemon.process.environment import SystemClock


def test_system_clock_wall_ms_counts_from_1970_and_now_ms_does_not_decrease() -> None:
    clock = SystemClock()
    assert clock.wall_ms() > 1_700_000_000_000
    assert clock.now_ms() <= clock.now_ms()
