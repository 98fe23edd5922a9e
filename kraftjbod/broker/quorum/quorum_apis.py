"""LOOP. DescribeQuorum, forwarded to the controller: who votes on the metadata, who follows it.

There is one partition to ask for, ``__cluster_metadata-0``, although nobody else may read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.node_config import Endpoint
from kraftjbod.protocol import rpc_quorum_messages as rpc
from kraftjbod.protocol.messages import DescribeQuorumRequest, DescribeQuorumResponse

_TOPIC: Final = "__cluster_metadata"
_PARTITION: Final = 0
#: DescribeQuorum: the first version with directories and endpoints.
_WITH_NODES: Final = 2
_PartitionData = DescribeQuorumResponse.PartitionData


class QuorumApis:
    def __init__(self, *, channel: ControllerChannel, timeout_ms: int) -> None:
        """:param timeout_ms: for the controller to answer."""
        self._channel = channel
        self._timeout_ms = timeout_ms

    async def describe_quorum(
        self, request: DescribeQuorumRequest, context: RequestContext
    ) -> DescribeQuorumResponse:
        response = DescribeQuorumResponse(error_message=None)
        try:
            found = await self._channel.forward(
                rpc.DescribeQuorumRequest(), timeout_ms=self._timeout_ms
            )
        except OperatingError as e:
            response.error_code, response.error_message = e.code, e.message
            return response
        response.topics = [
            DescribeQuorumResponse.TopicData(
                topic_name=topic.topic_name,
                partitions=[
                    _partition(
                        topic.topic_name, partition.partition_index, found, context.api_version
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        if context.api_version >= _WITH_NODES:
            response.nodes = list(_nodes(found.voters))
        return response


def _partition(
    topic: str, index: int, found: rpc.DescribeQuorumResponse, version: int
) -> _PartitionData:
    if (topic, index) != (_TOPIC, _PARTITION):
        return _PartitionData(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"only {_TOPIC}-{_PARTITION} has a quorum",
        )
    return _PartitionData(
        partition_index=index,
        error_message=None,
        leader_id=found.leader_id,
        leader_epoch=found.leader_epoch,
        high_watermark=found.high_watermark,
        current_voters=[_replica(voter, version) for voter in found.voters],
        observers=[_replica(observer, version) for observer in found.observers],
    )


def _replica(replica: rpc.QuorumReplica, version: int) -> DescribeQuorumResponse.ReplicaState:
    state = DescribeQuorumResponse.ReplicaState(
        replica_id=replica.node_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_ms,
        last_caught_up_timestamp=replica.last_caught_up_ms,
    )
    if version >= _WITH_NODES and replica.directory_id is not None:
        state.replica_directory_id = bytes(replica.directory_id)
    return state


def _nodes(voters: Iterable[rpc.QuorumReplica]) -> Iterable[DescribeQuorumResponse.Node]:
    for voter in voters:
        endpoints = map(Endpoint.parse, voter.endpoints)
        yield DescribeQuorumResponse.Node(
            node_id=voter.node_id,
            listeners=[
                DescribeQuorumResponse.Listener(name=name, host=host, port=port)
                for name, host, port in endpoints
            ],
        )
