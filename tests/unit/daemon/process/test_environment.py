"""``Environment`` of a daemon."""

from __future__ import annotations

from kraftjbod.daemon.process.environment import SystemClock


def test_system_clock_counts_milliseconds_since_1970() -> None:
    clock = SystemClock()
    assert clock.wall_ms() > 1_700_000_000_000
    assert clock.now_ms() <= clock.now_ms()
