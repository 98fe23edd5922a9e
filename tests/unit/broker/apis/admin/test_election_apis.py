"""ElectLeaders and UnregisterBroker in all of Kafka's versions."""

from __future__ import annotations

from typing import Any

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import NO_LEADER, BrokerId
from kraftjbod.metadata.records import PartitionChangeRecord
from kraftjbod.protocol import rpc_config_messages as rpc
from kraftjbod.protocol.messages import ElectLeadersRequest, UnregisterBrokerRequest
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from tests.unit.broker.broker_rig import TOPIC_ID, accept, brokers, partition, topic

ELECT = ElectLeadersRequest


def answer(request: RpcRequest) -> RpcResponse:
    """Answer that partition 1 has its preferred leader and that broker 9 is not registered."""
    match request:
        case rpc.ElectLeadersRequestRpc():
            return rpc.ElectLeadersResponseRpc(
                partitions=tuple(
                    rpc.ElectionOutcome(
                        topic=wanted.topic,
                        partition=wanted.partition,
                        error_code=ErrorCode.ELECTION_NOT_NEEDED
                        if wanted.partition == 1
                        else ErrorCode.NONE,
                    )
                    for wanted in request.partitions
                )
            )
        case rpc.UnregisterBrokerRequestRpc():
            if request.broker_id == BrokerId(9):
                raise OperatingError("no such broker", code=ErrorCode.BROKER_ID_NOT_REGISTERED)
            return rpc.UnregisterBrokerResponseRpc()
        case _:
            return accept(request)


def asking(*indexes: int, **more: Any) -> ElectLeadersRequest:
    named = ELECT.TopicPartitions(topic="t", partitions=list(indexes))
    return ELECT(topic_partitions=[named], timeout_ms=5_000, **more)


def outcomes(response: Any) -> dict[tuple[str, int], int]:
    return {
        (result.topic, part.partition_id): part.error_code
        for result in response.replica_election_results
        for part in result.partition_result
    }


async def test_elect_leaders_returns_an_outcome_for_each_partition() -> None:
    async with brokers(answer=answer) as (rig,):
        for version, kind in ((0, 0), (1, 1), (2, 1)):
            response = await rig.ask(asking(0, 1, 0, election_type=kind), version)
            assert outcomes(response) == {("t", 0): 0, ("t", 1): ErrorCode.ELECTION_NOT_NEEDED}
            forwarded = rig.controller.seen[-1]
            assert forwarded.election_type == kind
            assert [each.partition for each in forwarded.partitions] == [0, 1]


async def test_elect_leaders_without_partitions_selects_those_without_the_expected_leader() -> None:
    """Partitions that need no election any more are absent from the response."""
    async with brokers(2, answer=answer) as (rig, _):
        changes = [
            PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=index, leader=leader)
            for index, leader in ((0, BrokerId(2)), (1, BrokerId(2)), (3, NO_LEADER))
        ]
        members = [partition(index, replicas=(1, 2)) for index in range(4)]
        await rig.follow(topic(), *members, *changes)
        preferred = await rig.ask(ELECT(topic_partitions=None, election_type=0), 2)
        assert outcomes(preferred) == {("t", 0): 0, ("t", 3): 0}
        unclean = await rig.ask(ELECT(topic_partitions=None, election_type=1), 2)
        assert outcomes(unclean) == {("t", 3): 0}


async def test_elect_leaders_with_unknown_election_type_returns_invalid_request() -> None:
    async with brokers(answer=answer) as (rig,):
        response = await rig.ask(asking(0, election_type=2), 2)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert not rig.controller.seen


async def test_unregister_broker_forwards_the_id_and_refuses_unknown_brokers() -> None:
    async with brokers(answer=answer) as (rig,):
        gone = await rig.ask(UnregisterBrokerRequest(broker_id=3))
        assert (gone.error_code, gone.error_message) == (0, None)
        for unknown in (9, -1):
            refused = await rig.ask(UnregisterBrokerRequest(broker_id=unknown))
            assert refused.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        assert [each.broker_id for each in rig.controller.seen] == [3, 9]
