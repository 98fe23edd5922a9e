"""Which failures of a row are told."""

from __future__ import annotations

from kraftjbod.core.outage import QUIET_MS, TOLD_EVERY_MS, Outage


def test_a_long_outage_is_told_at_first_then_rarely_and_its_end() -> None:
    outage = Outage()
    told = [at for at in range(1_000, 2 * TOLD_EVERY_MS, 1_000) if outage.failed(at)]
    assert told == [1_000, 1_000 + TOLD_EVERY_MS]
    assert outage.failures == 2 * TOLD_EVERY_MS // 1_000 - 1
    assert outage.ended(2 * TOLD_EVERY_MS) == 2 * TOLD_EVERY_MS - 1_000
    assert (outage.failures, outage.ended(2 * TOLD_EVERY_MS)) == (0, None)


def test_a_peer_that_comes_and_goes_is_told_of_once_a_minute() -> None:
    outage, lines = Outage(), 0
    for at_ms in range(0, 10 * QUIET_MS, 2_000):
        lines += outage.failed(at_ms)
        lines += outage.ended(at_ms + 1_000) is not None
    assert lines == 2 * 10


def test_one_that_begins_soon_after_the_last_is_told_if_it_lasts() -> None:
    outage = Outage()
    assert outage.failed(0) and outage.ended(5) == 5
    assert [at for at in range(10, 2 * QUIET_MS, 10) if outage.failed(at)] == [QUIET_MS + 10]
    assert outage.ended(2 * QUIET_MS) == 2 * QUIET_MS - 10, "from its first failure"
