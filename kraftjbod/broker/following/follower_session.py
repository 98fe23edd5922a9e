"""LOOP. ``FollowerSession``: the replicas that the leader knows of, and those to name in the next
fetch.

The follower's end of an incremental fetch session (KIP-227); fetch_sessions.py is the leader's
end. The first fetch names every replica. Later fetches name only new, changed and removed
replicas. This class does no I/O; replica_fetcher.py sends the requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.ids import BrokerEpoch, BrokerId, TopicId, TopicIdPartition, TopicPartition
from kraftjbod.protocol.messages import FetchRequest
from kraftjbod.storage.log.log_handle import LogHandle


class Followed:
    """A replica that the fetch loop fetches from the leader of one leader epoch, with the progress
    and the consecutive failures of its fetches.

    It is not fetched before ``not_before_ms`` (monotonic).
    """

    __slots__ = (
        "failures",
        "handle",
        "has_caught_up",
        "is_aligned",
        "leader_epoch",
        "not_before_ms",
        "replica",
    )

    def __init__(self, replica: HostedReplica) -> None:
        assert replica.partition is not None and replica.handle is not None, replica
        self.replica = replica
        self.handle: LogHandle = replica.handle
        self.leader_epoch = replica.partition.leader_epoch
        #: The log is known to match the leader's up to its end.
        self.is_aligned = False
        #: All records that were committed at the leader's last response are here.
        self.has_caught_up = False
        self.failures = 0
        self.not_before_ms = 0

    @property
    def topic_partition(self) -> TopicPartition:
        return self.replica.topic_partition


class FetchLimits:
    """Limits of the fetch requests of one fetch loop, in bytes and ms, from ``replica.fetch.*``.

    ``timeout_ms`` is the time limit for a connection or a response (``replica.socket.timeout.ms``).
    """

    __slots__ = ("max_bytes", "max_partition_bytes", "max_wait_ms", "min_bytes", "timeout_ms")

    def __init__(
        self,
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        max_partition_bytes: int,
        timeout_ms: int,
    ) -> None:
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.max_partition_bytes = max_partition_bytes
        self.timeout_ms = timeout_ms


class FollowerSession:
    def __init__(self, *, broker_id: BrokerId, limits: FetchLimits) -> None:
        self._broker_id = broker_id
        self._limits = limits
        self._followed: dict[TopicPartition, Followed] = {}
        #: Replicas that the next fetch must name: new, or changed since they were last named.
        self._unreported: dict[TopicPartition, Followed] = {}
        #: The replicas in the leader's session.
        self._reported: dict[TopicIdPartition, Followed] = {}
        #: Replicas that the next fetch removes from the leader's session.
        self._left: dict[TopicIdPartition, None] = {}
        self._session_id = 0
        self._session_epoch = 0

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def unreported(self) -> Collection[Followed]:
        return self._unreported.values()

    @property
    def has_reported(self) -> bool:
        """Whether the leader's session contains any replica."""
        return bool(self._reported)

    # --- followed replicas -----------------------------------------------------------------------

    def follow(self, replica: HostedReplica) -> None:
        self.drop(replica.topic_partition)
        one = Followed(replica)
        self._followed[replica.topic_partition] = one
        self.name(one)

    def drop(self, topic_partition: TopicPartition) -> None:
        one = self._followed.pop(topic_partition, None)
        if one is not None:
            self._unreported.pop(topic_partition, None)
            self.leave(one)

    def is_followed(self, one: Followed) -> bool:
        return self._followed.get(one.topic_partition) is one

    def get(self, topic_partition: TopicPartition) -> Followed | None:
        return self._followed.get(topic_partition)

    def named(self, key: TopicIdPartition) -> Followed | None:
        """Return the replica that a response about ``key`` is for; None if it is no longer
        followed."""
        one = self._reported.get(key)
        return one if one is not None and self.is_followed(one) else None

    # --- the leader's session ---------------------------------------------------------------------

    def name(self, one: Followed) -> None:
        """Include the replica in the next fetch request. No effect if it is no longer followed."""
        if self.is_followed(one):
            self._unreported[one.topic_partition] = one

    def name_last(self, one: Followed) -> None:
        """Include the replica in the next fetch request, after all replicas that are already to be
        included. No effect if it is not followed any more.
        """
        self._unreported.pop(one.topic_partition, None)
        self.name(one)

    def leave(self, one: Followed) -> None:
        """Remove the replica from the leader's session with the next fetch, unless that fetch names
        the replica again. No effect if the session does not contain it.
        """
        if self._reported.pop(one.replica.key, None) is not None:
            self._left[one.replica.key] = None

    def restart_session(self) -> None:
        """Make the next fetch open a new session that names all replicas. The leader closes the old
        session then.
        """
        self._session_epoch = 0
        for one in self._reported.values():
            self.name(one)
        self._reported, self._left = {}, {}

    def was_answered(self, session_id: int) -> None:
        self._session_id = session_id
        self._session_epoch += 1

    def request(
        self, ready: Sequence[Followed], *, broker_epoch: BrokerEpoch, wait_ms: int
    ) -> FetchRequest:
        """Return the next fetch request, and treat it as sent: each request must be sent once.

        :param ready: the replicas to name. Replicas that left are removed from the leader's
            session.
        :param wait_ms: how long the leader may wait for ``min_bytes``.
        """
        naming: dict[TopicId, list[Followed]] = defaultdict(list)
        forgetting: dict[TopicId, list[int]] = defaultdict(list)
        for one in ready:
            naming[one.replica.topic_id].append(one)
            self._reported[one.replica.key] = one
            self._left.pop(one.replica.key, None)
            self._unreported.pop(one.topic_partition, None)
        for key in self._left:
            forgetting[key.topic_id].append(key.partition)
        self._left = {}
        return FetchRequest(
            replica_state=FetchRequest.ReplicaState(
                replica_id=self._broker_id, replica_epoch=broker_epoch
            ),
            max_wait_ms=max(0, wait_ms),
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[
                FetchRequest.FetchTopic(
                    topic_id=topic_id, partitions=[self._partition(one) for one in followed]
                )
                for topic_id, followed in naming.items()
            ],
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in forgetting.items()
            ],
        )

    def _partition(self, one: Followed) -> FetchRequest.FetchPartition:
        return FetchRequest.FetchPartition(
            partition=one.topic_partition.partition,
            current_leader_epoch=one.leader_epoch,
            fetch_offset=one.handle.log_end_offset,
            last_fetched_epoch=one.handle.latest_epoch,
            log_start_offset=one.handle.durable_log_start,
            partition_max_bytes=self._limits.max_partition_bytes,
        )
