"""``FollowerState``: when a follower counts as caught up."""

from __future__ import annotations

from kraftjbod.broker.partitions.follower_state import UNKNOWN_OFFSET, FollowerState
from kraftjbod.core.ids import BrokerId


def follower(last_caught_up_ms: int = 0) -> FollowerState:
    return FollowerState(BrokerId(2), last_caught_up_ms)


def test_follower_state_before_the_first_fetch_keeps_its_grace_time() -> None:
    f = follower(last_caught_up_ms=500)
    assert f.log_end_offset == UNKNOWN_OFFSET and f.last_caught_up_ms == 500


def test_first_fetch_below_the_log_end_keeps_the_last_caught_up_time() -> None:
    f = follower(last_caught_up_ms=500)
    f.fetched(10, 100, 1_000)
    assert (f.log_end_offset, f.last_caught_up_ms) == (10, 500)


def test_fetch_at_the_log_end_sets_the_last_caught_up_time() -> None:
    f = follower()
    f.fetched(100, 100, 1_000)
    assert f.last_caught_up_ms == 1_000


def test_fetch_at_the_previous_log_end_sets_the_time_of_the_previous_fetch() -> None:
    f = follower()
    f.fetched(10, 100, 1_000)
    f.fetched(100, 200, 2_000)
    assert f.last_caught_up_ms == 1_000
    f.fetched(150, 300, 3_000)
    assert f.last_caught_up_ms == 1_000, "the fetch did not reach offset 200"


def test_fetch_below_a_grown_log_end_keeps_the_last_caught_up_time() -> None:
    f = follower()
    f.fetched(100, 100, 1_000)
    f.fetched(100, 150, 2_000)
    assert f.last_caught_up_ms == 1_000
    assert "end=100" in repr(f)
