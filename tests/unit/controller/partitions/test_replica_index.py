"""Indexes of replicas; test_control_managers.py checks them against random histories."""

from __future__ import annotations

from kraftjbod.core.ids import BrokerId, DirectoryId, TopicIdPartition
from tests.golden.transcript import World, directory

ONE, TWO = BrokerId(1), BrokerId(2)


def _world(*lines: str) -> World:
    world = World()
    setup = ("up 1 dirs=a,b", "up 2 dirs=c", "topic t replicas=1,2|2,1", "topic s replicas=2")
    for line in (*setup, *lines):
        list(world.run(line))
    return world


def _numbers(keys: object) -> list[int]:
    assert isinstance(keys, tuple)
    return [key.partition for key in keys if isinstance(key, TopicIdPartition)]


def test_replica_index_returns_isr_partitions_and_led_count_of_each_broker() -> None:
    index = _world().managers.index
    assert _numbers(index.partitions_in_isr(ONE)) == [0, 1]
    assert _numbers(index.partitions_in_isr(TWO)) == [0, 1, 0]
    assert (index.led_count(ONE), index.led_count(TWO)) == (1, 2)
    assert index.led_count(BrokerId(9)) == 0
    assert len(index) == 3


def test_partitions_in_directory_are_kept_by_broker() -> None:
    index = _world("assign 1 t-1=a").managers.index
    in_a: DirectoryId = directory("a")
    assert _numbers(index.partitions_in_directory(ONE, in_a)) == [1]
    assert _numbers(index.partitions_in_directory(TWO, in_a)) == []
    assert _numbers(index.partitions_in_directory(TWO, directory("c"))) == [0, 1, 0]


def test_replica_index_has_unresolved_is_true_while_directories_are_unassigned() -> None:
    world = _world("assign 1 t-0=a")
    assert world.managers.index.has_unresolved(ONE)
    assert not world.managers.index.has_unresolved(TWO)
    list(world.run("assign 1 t-1=lost"))
    assert not world.managers.index.has_unresolved(ONE)


def test_replica_index_lists_leaderless_and_imbalanced_partitions() -> None:
    world = _world("heartbeat 2 want_fence")
    index = world.managers.index
    assert _numbers(index.leaderless) == [0]
    assert _numbers(index.imbalanced) == [1]
    assert (index.leaderless_count, index.imbalanced_count) == (1, 1)


def test_replica_index_lists_reassigning_partitions_until_cancel() -> None:
    world = _world("reassign s-0 replicas=1")
    index = world.managers.index
    assert (_numbers(index.reassigning), index.reassigning_count) == ([0], 1)
    list(world.run("cancel s-0"))
    assert not index.reassigning


def test_replica_index_is_empty_after_topic_deletion() -> None:
    index = _world("reassign s-0 replicas=1", "heartbeat 2 want_fence", "delete t s").managers.index
    assert len(index) == 0
    assert not index.partitions_in_isr(ONE)
    assert not index.leaderless
    assert not index.reassigning
    assert index.led_count(ONE) == 0
