"""``Outage``: which of many consecutive failures are logged."""

from __future__ import annotations

from kraftjbod.core.loop.outage import LOG_EVERY_MS, QUIET_MS, Outage


def test_long_outage_is_logged_at_start_then_once_per_interval_and_at_end() -> None:
    outage = Outage()
    logged = [at for at in range(1_000, 2 * LOG_EVERY_MS, 1_000) if outage.failed(at)]
    assert logged == [1_000, 1_000 + LOG_EVERY_MS]
    assert outage.failures == 2 * LOG_EVERY_MS // 1_000 - 1
    assert outage.ended(2 * LOG_EVERY_MS) == 2 * LOG_EVERY_MS - 1_000
    assert (outage.failures, outage.ended(2 * LOG_EVERY_MS)) == (0, None)


def test_flapping_peer_is_logged_as_one_outage_per_quiet_period() -> None:
    outage, lines = Outage(), 0
    for at_ms in range(0, 10 * QUIET_MS, 2_000):
        lines += outage.failed(at_ms)
        lines += outage.ended(at_ms + 1_000) is not None
    assert lines == 2 * 10


def test_outage_soon_after_the_last_is_logged_only_if_it_lasts() -> None:
    outage = Outage()
    assert outage.failed(0) and outage.ended(5) == 5
    assert [at for at in range(10, 2 * QUIET_MS, 10) if outage.failed(at)] == [QUIET_MS + 10]
    assert outage.ended(2 * QUIET_MS) == 2 * QUIET_MS - 10, "from its first failure"
