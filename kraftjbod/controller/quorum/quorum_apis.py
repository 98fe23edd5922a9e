"""LOOP. ``QuorumApis``: describes the quorum, its controllers and feature levels, and changes the
voters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from kraftjbod.controller.quorum.metadata_followers import Follower, MetadataFollowers
from kraftjbod.controller.quorum.voter_changes import (
    after_adding,
    after_naming,
    after_removing,
    is_about_voters,
    is_added,
    is_removed,
    problem_of_update,
)
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.metadata_version import KRAFT_VERSION, KRAFT_VERSIONS, SUPPORTED_FEATURES
from kraftjbod.core.node_config import Endpoint
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_controller_messages import (
    DescribeClusterRequestRpc,
    DescribeClusterResponseRpc,
    DescribedController,
    DescribedFeature,
)
from kraftjbod.protocol.rpc_messages import (
    FeatureOutcome,
    ListenerInfo,
    RpcRequest,
    RpcResponse,
    UpdateFeaturesRequestRpc,
    UpdateFeaturesResponseRpc,
)
from kraftjbod.protocol.rpc_quorum_messages import (
    AddRaftVoterRequestRpc,
    AddRaftVoterResponseRpc,
    DescribeQuorumRequestRpc,
    DescribeQuorumResponseRpc,
    QuorumReplica,
    RemoveRaftVoterRequestRpc,
    RemoveRaftVoterResponseRpc,
)
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.machine.voter_set import Voter, VoterSet
from kraftjbod.raft.quorum_view import ReplicaView

ChangeVoters = Callable[[VoterSet], asyncio.Future[None]]
"""Put a set of voters in force; the future completes when it is committed, or fails."""


class QuorumApis:
    """Answers requests that describe the cluster's controllers or change the quorum. Use it in the
    event loop's thread only.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        driver: RaftDriver,
        clock: Clock,
        followers: MetadataFollowers,
        require_active: Callable[[], None],
        directories: Callable[[], Mapping[BrokerId, DirectoryId]],
        state: Callable[[], MetadataState],
        change: ChangeVoters,
        until_committed: Callable[[], Awaitable[None]],
    ) -> None:
        """:param require_active: raises if this controller is not active.
        :param directories: returns the directories of the controllers of a static quorum.
        :param state: returns the present metadata.
        :param change: applies another set of voters.
        :param until_committed: waits until all decisions so far are committed.
        """
        self._cluster_id = cluster_id
        self._driver = driver
        self._clock = clock
        self._followers = followers
        self._require_active = require_active
        self._directories = directories
        self._state = state
        self._change = change
        self._until_committed = until_committed

    async def handle(self, request: RpcRequest) -> RpcResponse | None:
        """Answer a request; return None if it is not about the quorum.

        :raises NotControllerError: the request needs the active controller, which is another one.
        :raises OperatingError: the voters cannot be changed; the message says why.
        """
        if isinstance(request, DescribeQuorumRequestRpc):
            return self._describe(request)
        if isinstance(request, DescribeClusterRequestRpc):
            self._require_active()
            await self._until_committed()
            self._require_active()
            return self._describe_cluster()
        if isinstance(request, AddRaftVoterRequestRpc):
            self._require_active()
            if is_added(self._driver.voters, request):
                await self._until_committed()
                return AddRaftVoterResponseRpc()
            committed = self._change(after_adding(self._driver.voters, request))
            if request.ack_when_committed:
                await asyncio.shield(committed)
            return AddRaftVoterResponseRpc()
        if isinstance(request, RemoveRaftVoterRequestRpc):
            self._require_active()
            if is_removed(self._driver.voters, request):
                await self._until_committed()
                return RemoveRaftVoterResponseRpc()
            await asyncio.shield(self._change(after_removing(self._driver.voters, request)))
            return RemoveRaftVoterResponseRpc()
        if isinstance(request, UpdateFeaturesRequestRpc) and is_about_voters(request):
            self._require_active()
            return await self._update(request)
        return None

    async def _update(self, request: UpdateFeaturesRequestRpc) -> UpdateFeaturesResponseRpc:
        voters = self._driver.voters
        problem = problem_of_update(voters, request)
        if problem is not None:
            return UpdateFeaturesResponseRpc(results=(problem,))
        if voters.is_static and request.updates[0].level:
            named = after_naming(voters, self._directories())
            if not request.validate_only:
                await asyncio.shield(self._change(named))
        else:
            # An earlier request may just have named the voters.
            await self._until_committed()
        return UpdateFeaturesResponseRpc(results=(FeatureOutcome(name=KRAFT_VERSION),))

    def _describe(self, request: DescribeQuorumRequestRpc) -> DescribeQuorumResponseRpc:
        if not request.of_any:
            self._require_active()
        view = self._driver.view()
        followers = (
            self._followers.active_followers(self._clock.wall_ms()) if self._driver.leads else {}
        )
        return DescribeQuorumResponseRpc(
            node_id=self._driver.node_id,
            cluster_id=self._cluster_id,
            leader_id=-1 if view.leader is None else view.leader,
            leader_epoch=view.term,
            high_watermark=view.high_watermark,
            voters=tuple(map(_replica, view.voters)),
            observers=(
                *map(_replica, view.observers),
                *(_follower(broker, found) for broker, found in followers.items()),
            ),
        )

    def _describe_cluster(self) -> DescribeClusterResponseRpc:
        state, voters = self._state(), self._driver.voters
        votes = {voter.key.node_id: voter for voter in voters.voters}
        levels = {
            **{
                name: (*supported, state.features.get(name, 0))
                for name, supported in SUPPORTED_FEATURES.items()
            },
            KRAFT_VERSION: (*KRAFT_VERSIONS, int(not voters.is_static)),
        }
        return DescribeClusterResponseRpc(
            cluster_id=self._cluster_id,
            controller_id=self._driver.node_id,
            epoch=state.offset,
            controllers=tuple(
                _controller(state, node_id, votes.get(node_id))
                for node_id in sorted(votes.keys() | state.controllers.keys())
            ),
            features=tuple(
                DescribedFeature(name=name, lowest=lowest, highest=highest, finalized=finalized)
                for name, (lowest, highest, finalized) in sorted(levels.items())
            ),
        )


def _controller(
    state: MetadataState, node_id: BrokerId, voter: Voter | None
) -> DescribedController:
    found = state.controllers.get(node_id)
    if found is None:
        endpoints = () if voter is None else map(Endpoint.parse, voter.endpoints)
        return DescribedController(
            controller_id=node_id,
            is_voter=voter is not None,
            listeners=tuple(
                ListenerInfo(name=each.name, host=each.host, port=each.port) for each in endpoints
            ),
            directory_id=None if voter is None else voter.key.directory_id,
        )
    return DescribedController(
        controller_id=node_id,
        is_voter=voter is not None,
        listeners=tuple(
            ListenerInfo(name=each.name, host=each.host, port=each.port) for each in found.listeners
        ),
        incarnation_id=found.incarnation_id,
        directory_id=found.directory_id,
        software_version=found.software_version,
    )


def _replica(view: ReplicaView) -> QuorumReplica:
    return QuorumReplica(
        node_id=view.key.node_id,
        directory_id=view.key.directory_id,
        log_end_offset=view.log_end_offset,
        last_fetch_ms=view.last_heard_ms,
        last_caught_up_ms=view.last_caught_up_ms,
        endpoints=view.endpoints,
    )


def _follower(broker: BrokerId, follower: Follower) -> QuorumReplica:
    return QuorumReplica(
        node_id=broker,
        log_end_offset=follower.next_offset,
        last_fetch_ms=follower.last_fetch_ms,
        last_caught_up_ms=follower.last_caught_up_ms,
    )
