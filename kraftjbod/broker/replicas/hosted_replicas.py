"""LOOP. The replicas that this broker hosts, and the notification of requests that wait for them.

* :class:`HostedReplica` joins a :class:`Partition` (the role) to a :class:`LogHandle` (the files).
* :class:`HostedReplicas` finds replicas for requests. It is the only place where a moved log end,
  a moved high watermark or a lost replica wakes the waiting requests.

replica_manager.py changes roles, replica_appends.py appends, replica_reads.py reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.partitions.append_gate import AppendGate
from kraftjbod.broker.partitions.delayed_operations import FetchPurgatory, OffsetPurgatory
from kraftjbod.broker.partitions.fetch_sessions import FetchSession
from kraftjbod.broker.partitions.follower_state import Moments
from kraftjbod.broker.partitions.low_watermark import low_watermark_of
from kraftjbod.broker.partitions.partition import Partition, Role
from kraftjbod.broker.partitions.replica_states import (
    EVENT_OF_DIR,
    ReplicaEvent,
    ReplicaState,
    next_state,
)
from kraftjbod.broker.replicas.directory_reconcile import Action
from kraftjbod.core.errors import (
    ErrorCode,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    OperatingError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    TopicId,
    TopicIdPartition,
    TopicPartition,
)
from kraftjbod.core.telemetry import Metrics
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration
from kraftjbod.storage.log.log_handle import LogHandle


class HostedReplica:
    """One replica on this broker. ``partition`` and ``handle`` are None while it has no log.

    Only the replica manager writes the attributes. Exceptions are the counters, and ``gate`` and
    ``is_assigned_by_move``, which belong to moves between directories.
    """

    __slots__ = (
        "appended_bytes",
        "fetched_bytes",
        "gate",
        "handle",
        "is_assigned_by_move",
        "is_new",
        "key",
        "last_stable_offset",
        "led_in",
        "partition",
        "registration",
        "state",
        "topic_id",
        "topic_partition",
        "unread_bytes",
        "waits_because_of",
        "watchers",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        registration: PartitionRegistration,
        *,
        is_new: bool,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.key = TopicIdPartition(topic_id, topic_partition.partition)
        self.registration = registration
        #: The replica was created while this broker followed the metadata.
        self.is_new = is_new
        self.handle: LogHandle | None = None
        self.partition: Partition | None = None
        #: The last leader epoch of a lost copy. The copy that replaces it may lack records that
        #: were acknowledged in that epoch, so it leads only in a newer epoch.
        self.led_in = LeaderEpoch(-1)
        self.state = ReplicaState.MAKING
        #: The last logged reason why the replica has no log; None otherwise.
        self.waits_because_of: Action | None = None
        #: A move reported the replica's future directory to the controller and will correct it if
        #: needed.
        self.is_assigned_by_move = False
        #: Closed while a move swaps the copies.
        self.gate = AppendGate()
        #: Bytes appended since consumers were last notified.
        self.unread_bytes = 0
        #: As of the last change of the high watermark.
        self.last_stable_offset = -1
        #: Bytes appended (as leader or follower) and bytes sent to consumers and followers, in all
        #: directories, since the replica came here or the broker started.
        self.appended_bytes = 0
        self.fetched_bytes = 0
        #: The fetch sessions of its followers, as an ordered set.
        self.watchers: dict[FetchSession, None] = {}

    def __repr__(self) -> str:
        return f"<HostedReplica {self.topic_partition} {self.state.value} {self.partition!r}>"

    @property
    def is_offline(self) -> bool:
        """Whether the replica's directory is, or may be, offline."""
        return self.state is ReplicaState.OFFLINE

    @property
    def should_follow(self) -> bool:
        """Whether a fetch loop should fetch the replica.

        True for a follower with a known leader and a log, unless a move is swapping its copies.
        """
        partition = self.partition
        return (
            partition is not None
            and self.handle is not None
            and partition.role is Role.FOLLOWER
            and partition.leader != NO_LEADER
            and not self.gate.is_closed
        )

    def lacks_a_log(self, *, is_reported: bool = False) -> bool:
        """Return whether the replica has no log but a change may give it one.

        A replica that lost its directory gets a log only when it is reconciled.

        :param is_reported: the metadata names another directory for it than before.
        """
        if self.handle is not None or self.state is ReplicaState.MAKING:
            return False
        return self.partition is None or self.waits_because_of is not None or is_reported

    def count_appended(self, size_bytes: int) -> None:
        """Count ``size_bytes`` of appended records for the replica, and for its directory while the
        replica has a log."""
        self.appended_bytes += size_bytes
        if self.handle is not None:
            self.handle.log_dir.statistics.appended_bytes += size_bytes

    def count_fetched(self, size_bytes: int) -> None:
        """Count ``size_bytes`` of records sent to a consumer or a follower."""
        self.fetched_bytes += size_bytes
        if self.handle is not None:
            self.handle.log_dir.statistics.fetched_bytes += size_bytes

    def note(self, event: ReplicaEvent) -> None:
        self.state = next_state(self.state, event)

    def note_dir_state(self) -> None:
        """Adopt the state of the directory that has the replica's log. No effect without a log."""
        if self.handle is not None:
            self.note(EVENT_OF_DIR[self.handle.log_dir.state])

    def require_open(self) -> tuple[Partition, LogHandle]:
        """Return the replica's role and its log.

        :raises KafkaStorageError: its directory is offline, or no directory takes its log at
            present.
        :raises NotLeaderOrFollowerError: its log is still being created, or another broker became
            leader after the directory failed. This code sends clients that cannot handle storage
            errors to that leader.
        """
        if self.partition is not None and self.handle is not None:
            return self.partition, self.handle
        if self.is_offline and self.partition is not None:
            leader = self.partition.leader
            if leader not in (NO_LEADER, self.partition.broker_id):
                raise NotLeaderOrFollowerError(
                    f"the log directory of {self.topic_partition} is offline; {leader} leads it"
                )
        if self.state is ReplicaState.OFFLINE:
            raise KafkaStorageError(f"the log directory of {self.topic_partition} is offline")
        if self.state is ReplicaState.HELD_BACK:
            raise KafkaStorageError(f"no log directory takes {self.topic_partition} for now")
        raise NotLeaderOrFollowerError(f"{self.topic_partition} is being created on this broker")


class HostedReplicas:
    """All replicas of this broker, by topic name and partition."""

    def __init__(
        self,
        *,
        cache: MetadataCache,
        produces: OffsetPurgatory,
        deletions: OffsetPurgatory,
        consumer_fetches: FetchPurgatory,
        metrics: Metrics,
        stable_fetches: FetchPurgatory | None = None,
        lets_followers_serve: bool = False,
    ) -> None:
        """Create an empty registry.

        :param stable_fetches: fetches of consumers with ``read_committed``.
        :param lets_followers_serve: whether consumers may read followers (KIP-392). If so, a new
            high watermark is sent to followers at once.
        """
        self.lets_followers_serve = lets_followers_serve
        self.stable_fetches = stable_fetches or FetchPurgatory()
        self.produces = produces
        self.deletions = deletions
        self.consumer_fetches = consumer_fetches
        #: Orders all events that affect the validity of followers' reports.
        self.moments = Moments()
        self._cache = cache
        self._by_name: dict[TopicPartition, HostedReplica] = {}
        metrics.gauge("PartitionCount", lambda: len(self._by_name))
        metrics.gauges(lambda: dict(self._figures()))

    def __iter__(self) -> Iterator[HostedReplica]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, topic_partition: TopicPartition) -> HostedReplica | None:
        return self._by_name.get(topic_partition)

    def add(self, replica: HostedReplica) -> None:
        self._by_name[replica.topic_partition] = replica

    def remove(self, replica: HostedReplica) -> None:
        del self._by_name[replica.topic_partition]

    @property
    def brokers(self) -> Mapping[BrokerId, BrokerRegistration]:
        """The brokers in the present metadata."""
        return self._cache.state.brokers

    def is_current(self, replica: HostedReplica) -> bool:
        """Return whether the replica is still hosted. Check it after every ``await``."""
        return self._by_name.get(replica.topic_partition) is replica

    def require(self, topic_partition: TopicPartition) -> HostedReplica:
        """Return the replica that a request names.

        :raises UnknownTopicOrPartitionError: the cluster has no such partition.
        :raises NotLeaderOrFollowerError: the partition has no replica here.
        """
        replica = self._by_name.get(topic_partition)
        if replica is not None:
            return replica
        if self._cache.state.partition_named(topic_partition) is None:
            raise UnknownTopicOrPartitionError(f"{topic_partition} does not exist")
        raise NotLeaderOrFollowerError(f"{topic_partition} has no replica on this broker")

    def require_follower(
        self,
        partition: Partition,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        leader_epoch: int,
    ) -> None:
        """As :meth:`Partition.require_follower`, with the brokers in the present metadata."""
        partition.require_follower(
            broker_id,
            broker_epoch=broker_epoch,
            expected_epoch=leader_epoch,
            brokers=self._cache.state.brokers,
        )

    def topic_name(self, topic_id: TopicId) -> str:
        """Return the name of the topic with this id.

        :raises OperatingError: UNKNOWN_TOPIC_ID.
        """
        topic = self._cache.state.topics.get(topic_id)
        if topic is None:
            raise OperatingError(f"no topic has the id {topic_id}", code=ErrorCode.UNKNOWN_TOPIC_ID)
        return topic.name

    def count_late_transactions(self, *, before_ms: int) -> int:
        """Return the number of partitions with an open transaction that began before
        ``before_ms``.

        The coordinator should have ended such transactions, so they may hang.

        :param before_ms: wall-clock time.
        """
        late = 0
        for replica in self._by_name.values():
            handle = replica.handle
            if handle is not None and handle.view.unstable:
                late += handle.view.has_transaction_since(before_ms)
        return late

    # --- wake-ups --------------------------------------------------------------------------------

    def log_end_moved(
        self, replica: HostedReplica, size_bytes: int, *, has_committed: bool
    ) -> None:
        """Notify waiting requests that the leader has appended ``size_bytes``.

        :param has_committed: whether the append advanced the high watermark.
        """
        replica.unread_bytes += size_bytes
        for session in replica.watchers:
            session.moved(replica.key, size_bytes)
        if has_committed:
            self.high_watermark_moved(replica)

    def high_watermark_moved(self, replica: HostedReplica) -> None:
        partition, handle = replica.partition, replica.handle
        if partition is None or handle is None:
            return
        handle.high_watermark = partition.high_watermark
        self.produces.reached(replica.topic_partition, partition.high_watermark)
        for session in replica.watchers:
            session.noted(replica.key)
            if self.lets_followers_serve:
                session.wake()
        unread, replica.unread_bytes = replica.unread_bytes, 0
        self.consumer_fetches.arrived(replica.topic_partition, unread)
        before, replica.last_stable_offset = replica.last_stable_offset, handle.last_stable_offset
        if replica.last_stable_offset != before:
            self.stable_fetches.wake(replica.topic_partition)

    def follower_committed(self, replica: HostedReplica) -> None:
        """Notify consumers that read this follower: its high watermark has advanced. No effect
        unless followers may serve consumers (KIP-392)."""
        if self.lets_followers_serve:
            self.consumer_fetches.wake(replica.topic_partition)
            self.stable_fetches.wake(replica.topic_partition)

    def in_sync_set_changed(self, replica: HostedReplica, high_watermark_before: int) -> None:
        """Notify waiting requests after a change of the ISR.

        The change may have committed records, or left too few in-sync replicas for waiting
        produces.
        """
        partition = replica.partition
        if partition is None:
            return
        if partition.high_watermark != high_watermark_before:
            self.high_watermark_moved(replica)
        if partition.is_under_min_isr:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            self.produces.fail(replica.topic_partition, code)

    def end_waits(self, replica: HostedReplica, code: ErrorCode) -> None:
        """End all waits for the replica. Waiting produces and deletions get ``code``, appends at
        its gate are checked again, and fetches read again.
        """
        self.produces.fail(replica.topic_partition, code)
        self.deletions.fail(replica.topic_partition, code)
        replica.gate.recheck()
        self.reading_changed(replica)

    def reading_changed(self, replica: HostedReplica) -> None:
        """Wake all fetches that wait for the replica, so that they read it again."""
        self.consumer_fetches.wake(replica.topic_partition)
        self.stable_fetches.wake(replica.topic_partition)
        for session in replica.watchers:
            session.changed(replica.key)

    # --- deletions of records --------------------------------------------------------------------

    def low_watermark(self, replica: HostedReplica) -> int:
        """Return the low watermark of a partition that is led here (KIP-107); ``UNKNOWN_OFFSET``
        while a replica that deletions wait for (:func:`low_watermark_of`) has not fetched in this
        leader epoch.

        :raises OperatingError: it is not led here, or its directory is offline.
        """
        partition, handle = replica.require_open()
        partition.require_leader()
        return low_watermark_of(partition, handle.log_start_offset, self._cache.state.brokers)

    def follower_start_reported(self, replica: HostedReplica) -> None:
        """Complete waiting deletions of records that a follower's new log start offset allows."""
        if not self.deletions.is_waited_for(replica.topic_partition):
            return
        try:
            low_watermark = self.low_watermark(replica)
        except OperatingError as e:
            self.deletions.fail(replica.topic_partition, e.code)
        else:
            self.deletions.reached(replica.topic_partition, low_watermark)

    def recheck_deletions(self) -> None:
        """Recompute the low watermarks that deletions wait for, because brokers or directories
        changed."""
        for topic_partition in self.deletions.partitions:
            # A replica that is not hosted any more has ended its waits.
            self.follower_start_reported(self._by_name[topic_partition])

    def close(self) -> None:
        self.produces.close()
        self.deletions.close()
        self.consumer_fetches.close()
        self.stable_fetches.close()

    def _figures(self) -> Iterator[tuple[str, int]]:
        """Yield the metrics of the replicas, counted in one loop for each snapshot of the
        metrics."""
        leaders = under_replicated = under_min_isr = offline = 0
        for replica in self._by_name.values():
            if replica.state is ReplicaState.OFFLINE:
                offline += 1
            partition = replica.partition
            if partition is not None and partition.role is Role.LEADER:
                leaders += 1
                under_replicated += len(partition.isr) < len(partition.replicas)
                under_min_isr += partition.is_under_min_isr
        yield "LeaderCount", leaders
        yield "UnderReplicatedPartitions", under_replicated
        yield "UnderMinIsrPartitionCount", under_min_isr
        yield "OfflineReplicaCount", offline
