"""WIRE. Describes and changes the quorum, by requests to a broker or to the controllers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kraftjbod.cli.clients.cluster_admin import require_ok
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.first_contact import controllers_at
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId, Uuid
from kraftjbod.core.node_config import Endpoint
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.protocol.messages import (
    AddRaftVoterRequest,
    DescribeClusterRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
)

_TOPIC: Final = "__cluster_metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplica:
    """One replica of the metadata log. Times are wall-clock ms; unknown values are -1 or None."""

    node_id: int
    directory_id: str | None
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int
    endpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The quorum of controllers; ``leader_id`` and ``high_watermark`` are -1 if unknown."""

    cluster_id: str
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]

    @property
    def leader(self) -> QuorumReplica | None:
        return next((voter for voter in self.voters if voter.node_id == self.leader_id), None)


async def describe_quorum(client: ClusterClient) -> QuorumDescription:
    """Return the quorum, by a request to a broker, which forwards it to the active controller.

    :raises OperatingError: the request is refused, or no controller is active.
    """
    wanted = DescribeQuorumRequest.TopicData(
        topic_name=_TOPIC, partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)]
    )
    response = await client.request_from_any_broker(DescribeQuorumRequest(topics=[wanted]))
    require_ok(response, "the quorum")
    cluster = await client.request_from_any_broker(DescribeClusterRequest())
    require_ok(cluster, "the cluster")
    partition = response.topics[0].partitions[0]
    require_ok(partition, f"{_TOPIC}-0")
    endpoints = {
        node.node_id: tuple(
            Endpoint(listener.name, listener.host, listener.port).text
            for listener in node.listeners
        )
        for node in response.nodes
    }
    return QuorumDescription(
        cluster_id=cluster.cluster_id,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        voters=tuple(
            _replica(state, endpoints.get(state.replica_id, ()))
            for state in partition.current_voters
        ),
        observers=tuple(_replica(state) for state in partition.observers),
    )


def _replica(
    state: DescribeQuorumResponse.ReplicaState, endpoints: tuple[str, ...] = ()
) -> QuorumReplica:
    directory = state.replica_directory_id
    return QuorumReplica(
        node_id=state.replica_id,
        directory_id=str(Uuid(directory)) if any(directory) else None,
        log_end_offset=state.log_end_offset,
        last_fetch_ms=state.last_fetch_timestamp,
        last_caught_up_ms=state.last_caught_up_timestamp,
        endpoints=endpoints,
    )


async def describe_quorum_by_controllers(
    addresses: str, *, timeout_ms: int, report: Callable[[str], None], dialer: Dialer = PLAIN
) -> QuorumDescription:
    """Return the quorum, by a request to the active controller.

    :param addresses: ``HOST:PORT,...`` of controllers.
    :raises WrongPortError: a broker listens at an address.
    :raises OperatingError: the request is refused, or no controller is active.
    """
    # Importing the RPC's messages takes a tenth of a second, and brokers do not need them.
    from kraftjbod.cli.clients.controller_client import ControllerClient
    from kraftjbod.protocol import rpc_quorum_messages as rpc

    async with (
        controllers_at(addresses, timeout_ms=timeout_ms, report=report),
        ControllerClient(addresses, timeout_ms=timeout_ms, dialer=dialer) as client,
    ):
        found = await client.call(rpc.DescribeQuorumRequestRpc())
    assert isinstance(found, rpc.DescribeQuorumResponseRpc), found

    def replica(of: rpc.QuorumReplica) -> QuorumReplica:
        return QuorumReplica(
            node_id=of.node_id,
            directory_id=None if of.directory_id is None else str(of.directory_id),
            log_end_offset=of.log_end_offset,
            last_fetch_ms=of.last_fetch_ms,
            last_caught_up_ms=of.last_caught_up_ms,
            endpoints=of.endpoints,
        )

    return QuorumDescription(
        cluster_id=found.cluster_id,
        leader_id=found.leader_id,
        leader_epoch=found.leader_epoch,
        high_watermark=found.high_watermark,
        voters=tuple(map(replica, found.voters)),
        observers=tuple(map(replica, found.observers)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterToChange:
    """A controller to add to the voters or to remove; only one to add has ``endpoints``."""

    node_id: int
    directory_id: DirectoryId
    endpoints: tuple[Endpoint, ...] = ()


async def add_voter(client: ClusterClient, voter: VoterToChange) -> None:
    """Add a controller to the voters, by a request to a broker.

    :raises OperatingError: the cluster refuses the request.
    """
    response = await client.request_from_any_broker(
        AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=client.request_timeout_ms,
            voter_id=voter.node_id,
            voter_directory_id=voter.directory_id,
            listeners=[
                AddRaftVoterRequest.Listener(name=name, host=host, port=port)
                for name, host, port in voter.endpoints
            ],
        )
    )
    require_ok(response, f"controller {voter.node_id}")


async def remove_voter(client: ClusterClient, voter: VoterToChange) -> None:
    """Remove a controller from the voters, by a request to a broker.

    :raises OperatingError: the cluster refuses the request.
    """
    response = await client.request_from_any_broker(
        RemoveRaftVoterRequest(
            cluster_id=None, voter_id=voter.node_id, voter_directory_id=voter.directory_id
        )
    )
    require_ok(response, f"controller {voter.node_id}")


async def change_by_controllers(
    addresses: str,
    voter: VoterToChange,
    *,
    unregisters: bool,
    timeout_ms: int,
    report: Callable[[str], None],
    dialer: Dialer = PLAIN,
) -> None:
    """Add ``voter`` if it has endpoints, else remove it, by a request to the active controller.

    :param addresses: ``host:port,...`` of controllers; the active one is found through them.
    :param report: called with lines about the progress.
    :param unregisters: whether to unregister the removed controller.
    :raises WrongPortError: a broker listens at an address.
    :raises OperatingError: the request is refused, or no controller is active.
    """
    from kraftjbod.cli.clients.controller_admin import unregister_controller
    from kraftjbod.cli.clients.controller_client import ControllerClient
    from kraftjbod.protocol import rpc_quorum_messages as rpc

    node_id, directory_id = BrokerId(voter.node_id), voter.directory_id
    endpoints = tuple(endpoint.text for endpoint in voter.endpoints)
    request = (
        rpc.AddRaftVoterRequestRpc(voter_id=node_id, directory_id=directory_id, endpoints=endpoints)
        if endpoints
        else rpc.RemoveRaftVoterRequestRpc(voter_id=node_id, directory_id=directory_id)
    )
    async with (
        controllers_at(addresses, timeout_ms=timeout_ms, report=report),
        ControllerClient(addresses, timeout_ms=timeout_ms, dialer=dialer) as client,
    ):
        await client.call(request)
        if unregisters:
            await unregister_controller(client, node_id)


def require_leader(found: QuorumDescription) -> QuorumReplica:
    """Return the leader of the quorum.

    :raises OperatingError: no controller leads, or the leader is not a voter any more.
    """
    leader = found.leader
    if leader is None:
        raise OperatingError(f"the quorum has no leader now (leader id {found.leader_id})")
    return leader
