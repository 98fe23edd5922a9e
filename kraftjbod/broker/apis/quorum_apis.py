"""LOOP. DescribeQuorum, AddRaftVoter, RemoveRaftVoter and UnregisterController, forwarded.

DescribeQuorum accepts one partition, ``__cluster_metadata-0``, which clients cannot read otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kraftjbod.broker.cluster.controller_channel import ControllerChannel, forward_timeout_ms
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, InvalidUuidText, OperatingError
from kraftjbod.core.ids import MAX_BROKER_ID, BrokerId, DirectoryId
from kraftjbod.core.node_config import Endpoint
from kraftjbod.protocol import rpc_controller_messages
from kraftjbod.protocol import rpc_quorum_messages as rpc
from kraftjbod.protocol.messages import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterControllerRequest,
    UnregisterControllerResponse,
)
from kraftjbod.protocol.rpc_messages import MAX_REPEATED_CHARS

_TOPIC: Final = "__cluster_metadata"
_PARTITION: Final = 0
#: DescribeQuorum: the first version with directories and endpoints.
_WITH_NODES: Final = 2
#: AddRaftVoter: the first version that can be answered before the change is committed.
_WITH_EARLY_ACK: Final = 1
_PartitionData = DescribeQuorumResponse.PartitionData


class QuorumApis:
    def __init__(
        self,
        *,
        cluster_id: str,
        channel: ControllerChannel,
        cache: MetadataCache,
        timeout_ms: int,
    ) -> None:
        """Create the handlers.

        :param timeout_ms: time limit of the controller's response, for requests without a timeout.
        """
        self._cluster_id = cluster_id
        self._channel = channel
        self._cache = cache
        self._timeout_ms = timeout_ms

    async def describe_quorum(
        self, request: DescribeQuorumRequest, context: RequestContext
    ) -> DescribeQuorumResponse:
        response = DescribeQuorumResponse(error_message=None)
        try:
            found = await self._channel.forward(
                rpc.DescribeQuorumRequestRpc(), timeout_ms=self._timeout_ms
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

    async def add_raft_voter(
        self, request: AddRaftVoterRequest, context: RequestContext
    ) -> AddRaftVoterResponse:
        response = AddRaftVoterResponse(error_message=None)
        says_when = context.api_version >= _WITH_EARLY_ACK
        try:
            node_id, directory_id = self._voter_of(request), _directory_of(request)
            wanted = rpc.AddRaftVoterRequestRpc(
                voter_id=node_id,
                directory_id=directory_id,
                endpoints=_endpoints_of(request),
                ack_when_committed=request.ack_when_committed if says_when else True,
                was_checked=not await self._votes(node_id, directory_id),
            )
            timeout_ms = forward_timeout_ms(request.timeout_ms)
            await self._channel.forward(wanted, timeout_ms=timeout_ms)
        except OperatingError as e:
            response.error_code, response.error_message = e.code, e.message
        return response

    async def remove_raft_voter(
        self, request: RemoveRaftVoterRequest, _context: RequestContext
    ) -> RemoveRaftVoterResponse:
        response = RemoveRaftVoterResponse(error_message=None)
        try:
            node_id, directory_id = self._voter_of(request), _directory_of(request)
            wanted = rpc.RemoveRaftVoterRequestRpc(
                voter_id=node_id,
                directory_id=directory_id,
                was_checked=await self._votes(node_id, directory_id),
            )
            await self._channel.forward(wanted, timeout_ms=self._timeout_ms)
        except OperatingError as e:
            response.error_code, response.error_message = e.code, e.message
        return response

    async def unregister_controller(
        self, request: UnregisterControllerRequest, _context: RequestContext
    ) -> UnregisterControllerResponse:
        response = UnregisterControllerResponse(error_message=None)
        try:
            controller_id = _controller_id(request.controller_id)
            found = self._cache.state.controllers.get(controller_id)
            await self._channel.forward(
                rpc_controller_messages.UnregisterControllerRequestRpc(
                    controller_id=controller_id,
                    found_incarnation_id=None if found is None else found.incarnation_id,
                ),
                timeout_ms=self._timeout_ms,
            )
        except OperatingError as e:
            response.error_code, response.error_message = e.code, e.message
        return response

    async def _votes(self, node_id: BrokerId, directory_id: DirectoryId) -> bool:
        """Return whether the node is a voter before the change is requested.

        With that, a retry of the forwarded request recognizes its own success.

        :raises OperatingError: no controller responds in time.
        """
        found = await self._channel.forward(
            rpc.DescribeQuorumRequestRpc(), timeout_ms=self._timeout_ms
        )
        return any(
            (voter.node_id, voter.directory_id) == (node_id, directory_id) for voter in found.voters
        )

    def _voter_of(self, request: AddRaftVoterRequest | RemoveRaftVoterRequest) -> BrokerId:
        """Return the id of the voter to add or remove.

        :raises OperatingError: the request is for another cluster, or the id is invalid.
        """
        if request.cluster_id not in (None, self._cluster_id):
            raise OperatingError(
                f"this is cluster {self._cluster_id}, not {request.cluster_id}",
                code=ErrorCode.INCONSISTENT_CLUSTER_ID,
            )
        return _controller_id(request.voter_id)


def _controller_id(number: int) -> BrokerId:
    """Return ``number`` as the id of a controller.

    :raises OperatingError: INVALID_REQUEST: the number is out of range.
    """
    if not 0 <= number <= MAX_BROKER_ID:
        raise OperatingError(f"{number} is the id of no controller", code=ErrorCode.INVALID_REQUEST)
    return BrokerId(number)


def _directory_of(request: AddRaftVoterRequest | RemoveRaftVoterRequest) -> DirectoryId:
    """Return the directory id of the voter to add or remove.

    :raises OperatingError: INVALID_REQUEST: the id is missing or malformed.
    """
    try:
        if any(request.voter_directory_id):
            return DirectoryId(request.voter_directory_id)
    except InvalidUuidText as e:
        raise OperatingError(str(e), code=ErrorCode.INVALID_REQUEST) from e
    raise OperatingError("no directory id is given", code=ErrorCode.INVALID_REQUEST)


def _endpoints_of(request: AddRaftVoterRequest) -> tuple[str, ...]:
    """Return the endpoints of the voter to add, as texts.

    :raises OperatingError: INVALID_REQUEST: the endpoints are too many or too long.
    """
    if len(request.listeners) > rpc.MAX_ENDPOINTS:
        raise OperatingError(
            f"{len(request.listeners)} endpoints are given; {rpc.MAX_ENDPOINTS} may be",
            code=ErrorCode.INVALID_REQUEST,
        )
    endpoints = tuple(Endpoint(one.name, one.host, one.port).text for one in request.listeners)
    if any(len(one) > MAX_REPEATED_CHARS for one in endpoints):
        raise OperatingError(
            f"an endpoint has more than {MAX_REPEATED_CHARS} characters",
            code=ErrorCode.INVALID_REQUEST,
        )
    return endpoints


def _partition(
    topic: str, index: int, found: rpc.DescribeQuorumResponseRpc, version: int
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
