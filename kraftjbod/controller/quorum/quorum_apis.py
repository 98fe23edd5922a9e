"""LOOP. ``QuorumApis``: what a controller answers about its quorum."""

from __future__ import annotations

from collections.abc import Callable

from kraftjbod.controller.quorum.metadata_followers import Follower, MetadataFollowers
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.loop.timing import Clock
from kraftjbod.protocol.rpc_quorum_messages import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumReplica,
)
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.quorum_view import ReplicaView


class QuorumApis:
    """For the loop's thread."""

    def __init__(
        self,
        *,
        cluster_id: str,
        driver: RaftDriver,
        clock: Clock,
        followers: MetadataFollowers,
        require_active: Callable[[], None],
    ) -> None:
        """:param require_active: raises where this controller does not decide."""
        self._cluster_id = cluster_id
        self._driver = driver
        self._clock = clock
        self._followers = followers
        self._require_active = require_active

    def describe(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        """:raises NotControllerError: only the active controller knows it, and this is none."""
        if not request.of_any:
            self._require_active()
        view = self._driver.view()
        followers = self._followers.of_now(self._clock.wall_ms()) if self._driver.leads else {}
        return DescribeQuorumResponse(
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
