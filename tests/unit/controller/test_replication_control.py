"""Requests that golden transcripts cannot express; tests/golden has the other scenarios."""

from __future__ import annotations

import pytest

from kraftjbod.controller.replication_control import MAX_ELECTIONS_PER_PASS
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId
from kraftjbod.protocol import rpc_messages as m
from tests.golden.transcript import World, directory


def _world(*lines: str) -> World:
    world = World()
    for line in ("up 1 dirs=a,b", "up 2 dirs=c,d", *lines):
        list(world.run(line))
    return world


def test_alter_partition_refuses_second_change_of_same_partition() -> None:
    world = _world("topic t replicas=1,2")
    topic = world.state.topic("t")
    partition = topic.partitions[0]
    changed = m.PartitionIsr(
        topic_id=topic.topic_id,
        partition=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=(BrokerId(1),),
        isr_broker_epochs=(BrokerEpoch(-1),),
    )
    response = world.ask(
        m.AlterPartitionRequest(
            broker_id=BrokerId(1),
            broker_epoch=world.state.brokers[BrokerId(1)].epoch,
            partitions=(changed, changed),
        )
    )
    assert isinstance(response, m.AlterPartitionResponse)
    codes = [altered.error_code for altered in response.partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION]
    assert world.state.topic("t").partitions[0].partition_epoch == 1


def test_alter_partition_refuses_isr_member_in_offline_directory() -> None:
    """Kafka checks the broker only, and readmits a replica that cannot be written."""
    world = _world("topic t replicas=1,2", "assign 1 t-0=a", "assign 2 t-0=c")
    list(world.run("heartbeat 2 offline=c"))
    assert list(world.run("alter 1 t-0 isr=1,2")) == ["reply: INELIGIBLE_REPLICA"]
    list(world.run("assign 2 t-0=d"))
    assert list(world.run("alter 1 t-0 isr=1,2"))[-1].startswith("reply: leader 1 isr 1,2")


def test_assign_replicas_to_dirs_writes_no_record_for_known_assignments() -> None:
    """A broker that repeats all its assignments must not change the epoch of every partition."""
    world = _world("topic t replicas=" + "|".join(["1,2"] * 50))
    request = m.AssignReplicasToDirsRequest(
        broker_id=BrokerId(1),
        broker_epoch=world.state.brokers[BrokerId(1)].epoch,
        directories=(
            m.AssignedDirectory(
                directory_id=directory("a"),
                topics=(
                    m.AssignedTopic(
                        topic_id=world.state.topic("t").topic_id, partitions=tuple(range(50))
                    ),
                ),
            ),
        ),
    )
    assert len(world.managers.decide(request, now_ms=0).records) == 50
    world.ask(request)
    assert not world.managers.decide(request, now_ms=0).records


@pytest.mark.parametrize("number", [0, 2, 3, 99])
def test_assign_replicas_to_dirs_refuses_reserved_ids(number: int) -> None:
    world = _world("topic t replicas=1,2")
    response = world.ask(
        m.AssignReplicasToDirsRequest(
            broker_id=BrokerId(1),
            broker_epoch=world.state.brokers[BrokerId(1)].epoch,
            directories=(
                m.AssignedDirectory(
                    directory_id=DirectoryId(number.to_bytes(16, "big")),
                    topics=(
                        m.AssignedTopic(topic_id=world.state.topic("t").topic_id, partitions=(0,)),
                    ),
                ),
            ),
        )
    )
    assert isinstance(response, m.AssignReplicasToDirsResponse)
    assert [item.error_code for item in response.refused] == [ErrorCode.INVALID_REQUEST]


def test_directory_change_writes_one_record_per_partition_in_it() -> None:
    world = _world("topic t replicas=" + "|".join(["1,2"] * 90))
    topic_id = world.state.topic("t").topic_id
    for broker, names in ((1, "ab"), (2, "cd")):
        world.ask(
            m.AssignReplicasToDirsRequest(
                broker_id=BrokerId(broker),
                broker_epoch=world.state.brokers[BrokerId(broker)].epoch,
                directories=tuple(
                    m.AssignedDirectory(
                        directory_id=directory(name),
                        topics=(m.AssignedTopic(topic_id=topic_id, partitions=numbers),),
                    )
                    for name, numbers in zip(
                        names, (tuple(range(60)), tuple(range(60, 90))), strict=True
                    )
                ),
            )
        )
    list(world.run("feature 30"))
    list(world.run("heartbeat 1 impaired=b"))
    assert len(world.entries[-1]) == 31
    list(world.run("heartbeat 1 impaired=b offline=a"))
    assert len(world.entries[-1]) == 61
    assert world.managers.index.led_count(BrokerId(2)) == 90
    list(world.run("heartbeat 1 impaired= offline=a"))
    assert len(world.entries[-1]) == 1, "replicas join the ISR when their leaders request it"


def test_elect_preferred_limits_elections_per_pass() -> None:
    lines = [f"topic t{n} replicas={'|'.join(['1,2'] * 100)}" for n in range(11)]
    world = _world(*lines, "heartbeat 1 want_fence", "heartbeat 1")
    # Unassigned replicas keep a broker with several directories fenced, so assign them.
    for name, topic_id in world.state.topic_ids.items():
        assigned = m.AssignedTopic(topic_id=topic_id, partitions=tuple(range(100)))
        world.ask(
            m.AssignReplicasToDirsRequest(
                broker_id=BrokerId(1),
                broker_epoch=world.state.brokers[BrokerId(1)].epoch,
                directories=(m.AssignedDirectory(directory_id=directory("a"), topics=(assigned,)),),
            )
        )
        assert name in world.state.topic_ids
    list(world.run("heartbeat 1"))
    for name in world.state.topic_ids:
        for index in range(100):
            list(world.run(f"alter 2 {name}-{index} isr=2,1"))
    first = world.managers.elect_preferred()
    assert len(first.records) == MAX_ELECTIONS_PER_PASS
    world.commit(first.records)
    assert len(world.managers.elect_preferred().records) == 100
