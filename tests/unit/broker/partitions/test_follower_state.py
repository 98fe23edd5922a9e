"""When a follower counts as caught up."""

from __future__ import annotations

from kraftjbod.broker.partitions.follower_state import UNKNOWN_OFFSET, FollowerState
from kraftjbod.core.ids import BrokerId


def follower(last_caught_up_ms: int = 0) -> FollowerState:
    return FollowerState(BrokerId(2), last_caught_up_ms)


def test_before_its_first_fetch_nothing_is_known_but_the_grace_it_was_given() -> None:
    f = follower(last_caught_up_ms=500)
    assert f.log_end_offset == UNKNOWN_OFFSET and f.last_caught_up_ms == 500


def test_a_first_fetch_after_the_end_does_not_count_as_caught_up() -> None:
    f = follower(last_caught_up_ms=500)
    f.fetched(10, 100, 1_000)
    assert (f.log_end_offset, f.last_caught_up_ms) == (10, 500)


def test_a_fetch_at_the_end_does() -> None:
    f = follower()
    f.fetched(100, 100, 1_000)
    assert f.last_caught_up_ms == 1_000


def test_reaching_the_end_of_the_previous_fetch_counts_from_that_fetch() -> None:
    f = follower()
    f.fetched(10, 100, 1_000)
    f.fetched(100, 200, 2_000)
    assert f.last_caught_up_ms == 1_000
    f.fetched(150, 300, 3_000)
    assert f.last_caught_up_ms == 1_000, "it did not reach 200"


def test_being_caught_up_never_becomes_older() -> None:
    f = follower()
    f.fetched(100, 100, 1_000)
    f.fetched(100, 150, 2_000)
    assert f.last_caught_up_ms == 1_000
    assert "end=100" in repr(f)
