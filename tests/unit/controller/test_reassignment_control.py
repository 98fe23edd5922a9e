"""Reassignments that transcripts cannot express; tests/golden/reassignment*.txt has the others."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.protocol import rpc_config_messages as c
from kraftjbod.protocol import rpc_messages as m
from tests.golden.transcript import World, directory

UNCLEAN = "unclean.leader.election.enable=true"


def _world(*lines: str, level: MetadataVersion = MetadataVersion.IV_3_7_IV2) -> World:
    world = World(level)
    for line in ("up 1 dirs=a", "up 2 dirs=b", "up 3 dirs=c,d", *lines):
        reported = list(world.run(line))
        assert not any("error" in line or "INVALID" in line for line in reported), reported
    return world


def _partition(world: World) -> PartitionRegistration:
    partition: PartitionRegistration = world.state.topic("t").partitions[0]
    return partition


def test_repeated_cancel_gets_the_first_response() -> None:
    world = _world("topic t replicas=1", "reassign t-0 replicas=2")
    requested = c.ReassignedPartition(topic="t", partition=0, replicas=None, was_under_way=True)

    def outcome(request: c.AlterPartitionReassignmentsRequestRpc) -> ErrorCode:
        response = world.ask(request)
        assert isinstance(response, c.AlterPartitionReassignmentsResponseRpc)
        return response.partitions[0].error_code

    request = c.AlterPartitionReassignmentsRequestRpc(partitions=(requested,))
    assert [outcome(request), outcome(request.again())] == [ErrorCode.NONE] * 2
    not_found = requested.model_copy(update={"was_under_way": False})
    again = c.AlterPartitionReassignmentsRequestRpc(partitions=(not_found,)).again()
    assert outcome(again) is outcome(request) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_cancel_elects_unclean_leader_if_topic_allows() -> None:
    world = _world(
        f"topic t replicas=1 {UNCLEAN}", "reassign t-0 replicas=2", "heartbeat 1 want_fence"
    )
    # An unclean election made the added replica the only in-sync one.
    assert _partition(world).isr == (2,)
    refused = list(world.run("cancel t-0"))
    assert "none of the replicas that would stay can lead" in refused[-1]
    list(world.run("heartbeat 1"))
    world = _world(f"topic t replicas=1 {UNCLEAN}", "reassign t-0 replicas=2,3")
    for line in ("assign 3 t-0=c", "alter 1 t-0 isr=1,2", "heartbeat 1 want_fence", "heartbeat 1"):
        list(world.run(line))
    assert _partition(world).isr == (2,)
    assert list(world.run("cancel t-0"))[-1] == "reply t-0: NONE"
    partition = _partition(world)
    assert (partition.isr, partition.leader, partition.replicas) == ((1,), 1, (1,))
    assert partition.leader_recovering


def test_reassignment_may_keep_replica_of_unregistered_broker() -> None:
    """Only added replicas are checked."""
    world = _world("topic t replicas=1,2")
    del world.state.brokers[BrokerId(2)]
    assert list(world.run("reassign t-0 replicas=1,2,3"))[-1] == "reply t-0: NONE"
    assert list(world.run("reassign t-0 replicas=1,2 dirs=any,/b"))[-1].startswith(
        "reply t-0: INVALID_REPLICA_ASSIGNMENT"
    )


@pytest.fixture
def cordoned() -> World:
    """All directories of brokers 2 and 4 are cordoned, and one directory of broker 3."""
    world = _world("topic t replicas=1,2", "register 4 dirs=g,h", level=MetadataVersion.IV_4_3_IV0)
    for broker_id, names in ((2, "b"), (3, "c"), (4, "gh")):
        world.ask(
            m.BrokerHeartbeatRequest(
                broker_id=BrokerId(broker_id),
                broker_epoch=world.state.brokers[BrokerId(broker_id)].epoch,
                current_metadata_offset=world.state.offset,
                want_fence=False,
                want_shut_down=False,
                cordoned_log_dirs=tuple(map(directory, names)),
            )
        )
    return world


def test_reassignment_checks_cordons_of_added_replicas_only(cordoned: World) -> None:
    """Broker 2 gets no new replica. Kafka would refuse this, because it checks the whole target."""
    assert list(cordoned.run("reassign t-0 replicas=3,2"))[-1] == "reply t-0: NONE"
    assert _partition(cordoned).directory_of(BrokerId(3)) == directory("d")


@pytest.mark.parametrize(
    ("requested", "why"),
    [
        ("replicas=4,2", "broker 4, but all its log directories are cordoned"),
        ("replicas=3,2 dirs=/c,any", "The log directory /c of broker 3 is cordoned"),
    ],
)
def test_reassignment_to_cordoned_directory_is_refused(
    cordoned: World, requested: str, why: str
) -> None:
    (reported,) = cordoned.run(f"reassign t-0 {requested}")
    assert reported.startswith("reply t-0: INELIGIBLE_REPLICA")
    assert why in reported


def test_reassignment_at_level_without_directories_refuses_target_directories() -> None:
    world = _world("topic t replicas=1,2", level=MetadataVersion.IV_3_6_IV2)
    assert list(world.run("reassign t-0 replicas=3,1"))[-1] == "reply t-0: NONE"
    list(world.run("alter 1 t-0 isr=1,2,3"))
    assert _partition(world).replicas == (3, 1)
    reported = list(world.run("reassign t-0 replicas=2 dirs=/b"))
    assert reported[-1].startswith("reply t-0: LOG_DIR_NOT_FOUND")
    assert "it registered none" in reported[-1]


def test_list_reassignments_is_sorted_by_partition() -> None:
    world = _world("topic z replicas=1|1", "topic t replicas=1|1|1")
    list(world.run("reassign z-1 t-2 t-0 replicas=2"))
    reported = [line.split()[0] for line in world.run("ongoing")]
    assert reported == ["t-0", "t-2", "z-1", "reply:"]
    assert world.managers.index.reassigning_count == 3


def test_reassignment_beyond_max_replicas_of_broker_is_refused() -> None:
    """All partitions of a request count together, as do the replicas that the broker has."""
    world = _world(*(f"topic t{number} replicas=1" for number in range(4)), "topic u replicas=2")
    broker = world.state.brokers[BrokerId(2)]
    world.ask(
        m.BrokerHeartbeatRequest(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch,
            current_metadata_offset=world.state.offset,
            want_fence=False,
            want_shut_down=False,
            max_replicas=3,
        )
    )

    def codes() -> list[ErrorCode]:
        moves = [
            c.ReassignedPartition(topic=f"t{number}", partition=0, replicas=(2,))
            for number in range(4)
        ]
        response = world.ask(c.AlterPartitionReassignmentsRequestRpc(partitions=tuple(moves)))
        assert isinstance(response, c.AlterPartitionReassignmentsResponseRpc)
        return [outcome.error_code for outcome in response.partitions]

    none, refused = ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA
    assert codes() == [none, none, refused, refused]
    assert codes() == [none, none, refused, refused], "replicas that are added already fit"
