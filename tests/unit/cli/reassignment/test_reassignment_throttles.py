"""Replicas and brokers that the throttles of a reassignment name."""

from __future__ import annotations

from kraftjbod.cli.reassignment.reassignment_throttles import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    PartitionMove,
    moving_brokers,
    plan_moves,
    topic_throttles,
)
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.core.topic_config import TopicConfig

FOO_0, FOO_10, BAR_0 = (
    TopicPartition("foo", 0),
    TopicPartition("foo", 10),
    TopicPartition("bar", 0),
)


def move(sources: set[int], destinations: set[int]) -> PartitionMove:
    return PartitionMove(sources=frozenset(sources), destinations=frozenset(destinations))


def test_plan_moves_has_current_replicas_as_sources_and_new_ones_as_destinations() -> None:
    assert plan_moves({}, {FOO_0: (2, 3)}, {FOO_0: (1, 2)}) == {FOO_0: move({1, 2}, {3})}


def test_plan_moves_keeps_sources_of_running_reassignment() -> None:
    """The current replicas include those being added, which have no data to send yet."""
    running = {FOO_0: move({1, 2}, {3}), BAR_0: move({5}, {6})}
    assert plan_moves(running, {FOO_0: (2, 4)}, {FOO_0: (1, 2, 3)}) == {
        FOO_0: move({1, 2}, {4}),
        BAR_0: move({5}, {6}),
    }


def test_topic_throttles_list_leaders_and_followers_by_topic() -> None:
    moves = {FOO_10: move({2}, {1}), FOO_0: move({2, 1}, {3}), BAR_0: move({9}, set())}
    assert topic_throttles(moves) == {
        "bar": {LEADER_REPLICAS: "0:9", FOLLOWER_REPLICAS: ""},
        "foo": {LEADER_REPLICAS: "0:1,0:2,10:2", FOLLOWER_REPLICAS: "0:3,10:1"},
    }
    assert moving_brokers(moves) == [1, 2, 3, 9]


def test_topic_throttles_are_valid_topic_configs() -> None:
    made = topic_throttles({FOO_0: move({2, 1}, {3}), BAR_0: move({9}, set())})
    configs = {
        topic: TopicConfig().with_overrides(settings, source=topic)
        for topic, settings in made.items()
    }
    assert configs["bar"].leader_replication_throttled_replicas.holds(0, BrokerId(9))
    assert configs["foo"].leader_replication_throttled_replicas.holds(0, BrokerId(2))
    assert not configs["foo"].follower_replication_throttled_replicas.holds(0, BrokerId(2))
