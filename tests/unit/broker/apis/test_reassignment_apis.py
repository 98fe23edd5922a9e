"""AlterPartitionReassignments and ListPartitionReassignments, forwarded to the controller."""

from __future__ import annotations

from typing import Any

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.protocol.kafka_codec import message
from kraftjbod.protocol.rpc_config_messages import (
    AlterPartitionReassignmentsRequestRpc,
    AlterPartitionReassignmentsResponseRpc,
    ListPartitionReassignmentsRequestRpc,
    ListPartitionReassignmentsResponseRpc,
    OngoingReassignment,
    ReassignedPartition,
    ReassignmentOutcome,
)
from kraftjbod.protocol.rpc_messages import (
    MAX_PARTITIONS_PER_REQUEST,
    RpcRequest,
    RpcResponse,
)
from tests.unit.broker.broker_rig import accept, brokers

ALTER = message("AlterPartitionReassignmentsRequest")
LIST = message("ListPartitionReassignmentsRequest")


def answer(request: RpcRequest) -> RpcResponse:
    """Reject partition 9, accept all others, and list topic a as ongoing."""
    match request:
        case AlterPartitionReassignmentsRequestRpc():
            return AlterPartitionReassignmentsResponseRpc(
                partitions=tuple(
                    ReassignmentOutcome(
                        topic=p.topic,
                        partition=p.partition,
                        error_code=ErrorCode(39 if p.partition == 9 else 0),
                        error_message="not there" if p.partition == 9 else None,
                    )
                    for p in request.partitions
                )
            )
        case ListPartitionReassignmentsRequestRpc():
            ongoing = OngoingReassignment(
                topic="a",
                partition=1,
                replicas=(BrokerId(1), BrokerId(2)),
                adding_replicas=(BrokerId(2),),
                removing_replicas=(BrokerId(1),),
            )
            return ListPartitionReassignmentsResponseRpc(partitions=(ongoing,))
        case _:
            return accept(request)


def refuse(request: RpcRequest) -> RpcResponse:
    raise OperatingError("ask later", code=ErrorCode.POLICY_VIOLATION)


def reassignment(index: int, replicas: list[int] | None, dirs: list[str] | None = None) -> Any:
    return ALTER.ReassignablePartition(
        partition_index=index, replicas=replicas, target_directories=dirs or []
    )


async def test_alter_reassignments_forwards_replicas_and_target_directories() -> None:
    async with brokers(answer=answer) as (rig,):
        topics = [
            ALTER.ReassignableTopic(name="a", partitions=[reassignment(0, [1, 2], ["any", "/d2"])]),
            ALTER.ReassignableTopic(
                name="b", partitions=[reassignment(1, None), reassignment(9, [4])]
            ),
        ]
        response = await rig.ask(ALTER(topics=topics, allow_replication_factor_change=False))
        # Before a cancellation the broker lists the ongoing reassignments.
        _, forwarded = rig.controller.seen
        assert forwarded == AlterPartitionReassignmentsRequestRpc(
            partitions=(
                ReassignedPartition(
                    topic="a",
                    partition=0,
                    replicas=(BrokerId(1), BrokerId(2)),
                    target_dirs=("any", "/d2"),
                ),
                ReassignedPartition(topic="b", partition=1, replicas=None),
                ReassignedPartition(topic="b", partition=9, replicas=(BrokerId(4),)),
            ),
            allow_replication_factor_change=False,
        )
        answered = {
            (topic.name, p.partition_index): (p.error_code, p.error_message)
            for topic in response.responses
            for p in topic.partitions
        }
        assert answered == {("a", 0): (0, None), ("b", 1): (0, None), ("b", 9): (39, "not there")}
        assert response.error_code == 0


async def test_list_reassignments_returns_ongoing_reassignments() -> None:
    async with brokers(answer=answer) as (rig,):
        (topic,) = (await rig.ask(LIST(topics=None))).topics
        (partition,) = topic.partitions
        assert (topic.name, partition.partition_index) == ("a", 1)
        assert (partition.replicas, partition.adding_replicas) == ([1, 2], [2])
        assert partition.removing_replicas == [1]


async def test_list_reassignments_forwards_the_named_partitions() -> None:
    def asked(name: str, *indexes: int) -> Any:
        return LIST.ListPartitionReassignmentsTopics(name=name, partition_indexes=list(indexes))

    async with brokers(answer=answer) as (rig,):
        await rig.ask(LIST(topics=[asked("a", 1), asked("b", 0), asked("a", 2)]))
        await rig.ask(LIST(topics=None))
        assert rig.controller.seen == [
            ListPartitionReassignmentsRequestRpc(partitions={"a": (1, 2), "b": (0,)}),
            ListPartitionReassignmentsRequestRpc(partitions=None),
        ]


async def test_reassignments_controller_error_is_returned_in_the_response() -> None:
    async with brokers(answer=refuse) as (rig,):
        for request in (
            ALTER(topics=[ALTER.ReassignableTopic(name="a", partitions=[reassignment(0, [1])])]),
            LIST(topics=None),
        ):
            response = await rig.ask(request)
            assert response.error_code == ErrorCode.POLICY_VIOLATION
            assert response.error_message == "ask later"


async def test_alter_reassignments_above_partition_limit_is_rejected_by_the_broker() -> None:
    async with brokers(answer=answer) as (rig,):
        many = [reassignment(index, [1]) for index in range(MAX_PARTITIONS_PER_REQUEST + 1)]
        request = ALTER(topics=[ALTER.ReassignableTopic(name="a", partitions=many)])
        response = await rig.ask(request)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert "at most 10000" in response.error_message
        assert rig.controller.seen == []
