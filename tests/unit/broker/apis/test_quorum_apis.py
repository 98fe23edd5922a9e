"""DescribeQuorum in all of Kafka's versions, AddRaftVoter and UnregisterController."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ErrorCode, NotControllerError, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId, Uuid
from kraftjbod.metadata.records import RegisterControllerRecord
from kraftjbod.protocol.kafka_codec import message
from kraftjbod.protocol.rpc_controller_messages import (
    UnregisterControllerRequestRpc,
    UnregisterControllerResponseRpc,
)
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from kraftjbod.protocol.rpc_quorum_messages import (
    DescribeQuorumRequestRpc,
    DescribeQuorumResponseRpc,
    QuorumReplica,
)
from tests.unit.broker.broker_rig import accept, brokers

DESCRIBE = message("DescribeQuorumRequest")
UNREGISTER = message("UnregisterControllerRequest")
DIRECTORY = DirectoryId(bytes(15) + b"\x07")
QUORUM = DescribeQuorumResponseRpc(
    node_id=BrokerId(100),
    cluster_id="c",
    leader_id=100,
    leader_epoch=4,
    high_watermark=9,
    voters=(
        QuorumReplica(
            node_id=BrokerId(100),
            directory_id=DIRECTORY,
            log_end_offset=12,
            last_fetch_ms=5_000,
            last_caught_up_ms=5_000,
            endpoints=("CONTROLLER://[::1]:9090",),
        ),
        QuorumReplica(
            node_id=BrokerId(101), log_end_offset=7, last_fetch_ms=4_900, last_caught_up_ms=4_000
        ),
    ),
    observers=(QuorumReplica(node_id=BrokerId(1)),),
)


def answer(request: RpcRequest) -> RpcResponse:
    return QUORUM if isinstance(request, DescribeQuorumRequestRpc) else accept(request)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_describe_quorum_returns_voters_observers_and_nodes(version: int) -> None:
    wanted = [
        DESCRIBE.TopicData(
            topic_name="__cluster_metadata",
            partitions=[DESCRIBE.PartitionData(partition_index=index) for index in (0, 1)],
        )
    ]
    async with brokers(answer=answer) as (rig,):
        response = await rig.ask(DESCRIBE(topics=wanted), version)
    found, other = response.topics[0].partitions
    assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (found.error_code, found.leader_id, found.leader_epoch) == (0, 100, 4)
    assert found.high_watermark == 9
    assert [(v.replica_id, v.log_end_offset) for v in found.current_voters] == [(100, 12), (101, 7)]
    assert [observer.replica_id for observer in found.observers] == [1]
    if version >= 2:
        assert found.current_voters[0].replica_directory_id == DIRECTORY
        (listener,) = response.nodes[0].listeners
        assert (listener.name, listener.host, listener.port) == ("CONTROLLER", "::1", 9090)


async def test_describe_quorum_without_a_leader_returns_not_controller() -> None:
    def refuse(request: RpcRequest) -> RpcResponse:
        if isinstance(request, DescribeQuorumRequestRpc):
            raise NotControllerError("no leader is known")
        return accept(request)

    async with brokers(answer=refuse) as (rig,):
        response = await rig.ask(DESCRIBE(topics=[]))
    assert response.error_code == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize(
    ("hosts", "words"), [(("x" * 995,), "endpoint"), (("h",) * 17, "17 endpoints")]
)
async def test_add_raft_voter_with_unencodable_endpoints_returns_invalid_request(
    hosts: tuple[str, ...], words: str
) -> None:
    """``make fuzz`` found this case."""
    kind = message("AddRaftVoterRequest")
    listeners = [kind.Listener(name="N", host=host, port=1) for host in hosts]
    asked = kind(cluster_id=None, voter_id=101, voter_directory_id=DIRECTORY, listeners=listeners)
    async with brokers(answer=answer) as (rig,):
        response = await rig.ask(asked, 1)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert words in response.error_message


async def test_unregister_controller_forwards_the_incarnation_in_metadata() -> None:
    """The controller detects by the incarnation whether another one registered since."""
    incarnation = Uuid(b"i" * 16)
    known = RegisterControllerRecord(
        controller_id=BrokerId(102),
        incarnation_id=incarnation,
        directory_id=DIRECTORY,
        listeners=(),
        features={},
        software_version="1",
    )

    def forget(request: RpcRequest) -> RpcResponse:
        if not isinstance(request, UnregisterControllerRequestRpc):
            return accept(request)
        if request.found_incarnation_id is None:
            raise OperatingError("who?", code=ErrorCode.BROKER_ID_NOT_REGISTERED)
        return UnregisterControllerResponseRpc()

    async with brokers(answer=forget) as (rig,):
        await rig.follow(known)
        answers = [await rig.ask(UNREGISTER(controller_id=one)) for one in (102, 103, -1)]
        seen = [
            (request.controller_id, request.found_incarnation_id)
            for request in rig.controller.seen
            if isinstance(request, UnregisterControllerRequestRpc)
        ]
    assert [(one.error_code, one.error_message) for one in answers] == [
        (0, None),
        (ErrorCode.BROKER_ID_NOT_REGISTERED, "who?"),
        (ErrorCode.INVALID_REQUEST, "-1 is the id of no controller"),
    ]
    assert seen == [(102, incarnation), (103, None)]
