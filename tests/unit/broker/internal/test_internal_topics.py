"""``CreationPlan``: when to create an internal topic with how many replicas."""

from __future__ import annotations

import pytest

from kraftjbod.broker.internal.internal_topics import CreationPlan


def plan(wanted: int = 3) -> CreationPlan:
    return CreationPlan(replication_factor=wanted, patience_rounds=2)


@pytest.mark.parametrize("alive", [3, 4, 100])
def test_creation_plan_with_enough_brokers_creates_immediately(alive: int) -> None:
    assert plan().missing(alive) == 3


def test_creation_plan_with_fewer_brokers_waits_two_rounds_then_creates_fewer_replicas() -> None:
    brief = plan()
    assert [brief.missing(1), brief.missing(2)] == [None, None]
    assert [brief.missing(2), brief.missing(1)] == [2, 1]


def test_creation_plan_stops_waiting_when_brokers_arrive() -> None:
    brief = plan()
    assert [brief.missing(2), brief.missing(3)] == [None, 3]


def test_creation_plan_for_one_replica_needs_one_broker() -> None:
    assert plan(1).missing(1) == 1


def test_creation_plan_for_a_deleted_topic_waits_again() -> None:
    brief = plan()
    assert [brief.missing(2) for _ in range(3)] == [None, None, 2]
    brief.note_present()
    assert [brief.missing(2) for _ in range(3)] == [None, None, 2]


def test_creation_plan_reduces_replicas_after_refusals_but_not_below_one() -> None:
    brief = plan()
    assert brief.missing(3) == 3
    brief.refused()
    assert [brief.missing(3), brief.missing(3)] == [None, 2]
    for _ in range(5):
        brief.refused()
    # At least one replica is requested, so that the controller's error tells the reason.
    assert brief.missing(3) == 1
    brief.note_present()
    assert brief.missing(3) == 3
