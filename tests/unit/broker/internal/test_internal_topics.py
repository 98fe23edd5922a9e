"""When brokers ask for an internal topic that takes fewer replicas, and with how many."""

from __future__ import annotations

import pytest

from kraftjbod.broker.internal.internal_topics import CreationPlan


def plan(wanted: int = 3) -> CreationPlan:
    return CreationPlan(replication_factor=wanted, patience_rounds=2)


@pytest.mark.parametrize("alive", [3, 4, 100])
def test_with_enough_brokers_it_is_asked_for_at_once(alive: int) -> None:
    assert plan().missing(alive) == 3


def test_with_fewer_after_some_rounds() -> None:
    brief = plan()
    assert [brief.missing(1), brief.missing(2)] == [None, None]
    assert [brief.missing(2), brief.missing(1)] == [2, 1]


def test_who_comes_in_time_ends_the_waiting() -> None:
    brief = plan()
    assert [brief.missing(2), brief.missing(3)] == [None, 3]


def test_one_replica_needs_nobody_else() -> None:
    assert plan(1).missing(1) == 1


def test_a_topic_that_goes_is_waited_for_anew() -> None:
    brief = plan()
    assert [brief.missing(2) for _ in range(3)] == [None, None, 2]
    brief.there()
    assert [brief.missing(2) for _ in range(3)] == [None, None, 2]


def test_brokers_that_take_no_replicas_do_not_count() -> None:
    brief = plan()
    assert brief.missing(3) == 3
    brief.refused()
    assert [brief.missing(3), brief.missing(3)] == [None, 2]
    for _ in range(5):
        brief.refused()
    # And at least one is asked for, so that the operator hears why not even that is possible.
    assert brief.missing(3) == 1
    brief.there()
    assert brief.missing(3) == 3
