"""LOOP. The replicas that this broker hosts, and who hears when one of them moves.

* :class:`HostedReplica` joins a :class:`Partition` (the role) to a :class:`LogHandle` (the files).
* :class:`HostedReplicas` finds them for requests, and is the one place where a moved log end, a
  moved high watermark or a lost replica wakes the requests that wait for it.

Who changes roles is replica_manager.py; who appends and reads are replica_appends.py and
replica_reads.py.
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
    """One replica on this broker. ``partition`` and ``handle`` are None while there is no log.

    Written by the replica manager only, but for what belongs to a move between directories,
    ``gate`` and ``is_assigned_by_move``, and for what is counted.
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
        #: The replica came into being while this broker followed the metadata.
        self.is_new = is_new
        self.handle: LogHandle | None = None
        self.partition: Partition | None = None
        #: The leader epoch in which a copy that is lost led last. What comes in its place may lack
        #: what was acknowledged then, so it leads in a newer one or not at all.
        self.led_in = LeaderEpoch(-1)
        self.state = ReplicaState.MAKING
        #: Why it has no log and gets none for now, as it was logged last; None unless that is so.
        self.waits_because_of: Action | None = None
        #: A move has reported to the controller where the replica shall be, and will set that
        #: right.
        self.is_assigned_by_move = False
        #: Closed while a move lets the copies change places.
        self.gate = AppendGate()
        #: Appended since consumers last heard that there is more to read.
        self.unread_bytes = 0
        #: As of the last move of the high watermark.
        self.last_stable_offset = -1
        #: Appended here, leading or following, and given out to consumers and followers, since
        #: the replica came or the broker started; wherever it lay then.
        self.appended_bytes = 0
        self.fetched_bytes = 0
        #: The fetch sessions of its followers; an ordered set.
        self.watchers: dict[FetchSession, None] = {}

    def __repr__(self) -> str:
        return f"<HostedReplica {self.topic_partition} {self.state.value} {self.partition!r}>"

    @property
    def is_offline(self) -> bool:
        """Its directory is, or may be, among those that are offline."""
        return self.state is ReplicaState.OFFLINE

    @property
    def should_follow(self) -> bool:
        """Whether it is to be fetched: it follows, its leader is known, and there is a log for it.

        Not while a move lets its copies change places; it goes on when the gate is open again.
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
        """Whether news of it may find it a log.

        One that lost its directory waits for that alone, unless it ``is_reported`` that
        metadata names another one, or it was reconciled since.
        """
        if self.handle is not None or self.state is ReplicaState.MAKING:
            return False
        return self.partition is None or self.waits_because_of is not None or is_reported

    def count_appended(self, size_bytes: int) -> None:
        """So many bytes of records were appended; its directory counts them too."""
        self.appended_bytes += size_bytes
        if self.handle is not None:
            self.handle.log_dir.statistics.appended_bytes += size_bytes

    def count_fetched(self, size_bytes: int) -> None:
        """So many bytes of records are on their way to a consumer or a follower."""
        self.fetched_bytes += size_bytes
        if self.handle is not None:
            self.handle.log_dir.statistics.fetched_bytes += size_bytes

    def note(self, event: ReplicaEvent) -> None:
        self.state = next_state(self.state, event)

    def note_dir_state(self) -> None:
        """Its log is open: the replica is in the state of its directory."""
        if self.handle is not None:
            self.note(EVENT_OF_DIR[self.handle.log_dir.state])

    def require_open(self) -> tuple[Partition, LogHandle]:
        """Role and files.

        :raises KafkaStorageError: if its directory is offline.
        :raises NotLeaderOrFollowerError: if its log is still being created, or another broker leads
            since its directory went: clients that know no errors of disks go there then.
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
    """All of this broker's replicas by topic name and partition."""

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
        """``stable_fetches`` are those of consumers who want what is committed.

        :param lets_followers_serve: followers hear at once what is committed, and so do consumers
            that read them.
        """
        self.lets_followers_serve = lets_followers_serve
        self.stable_fetches = stable_fetches or FetchPurgatory()
        self.produces = produces
        self.deletions = deletions
        self.consumer_fetches = consumer_fetches
        #: What came after what, of all that matters to what followers say.
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
        """By the metadata of now."""
        return self._cache.state.brokers

    def is_current(self, replica: HostedReplica) -> bool:
        """Whether it is still hosted; asked again after every await."""
        return self._by_name.get(replica.topic_partition) is replica

    def require(self, topic_partition: TopicPartition) -> HostedReplica:
        """The replica of a request.

        :raises UnknownTopicOrPartitionError: if there is no such partition in the cluster.
        :raises NotLeaderOrFollowerError: if it has no replica here.
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
        """As :meth:`Partition.require_follower`, by the metadata of now."""
        partition.require_follower(
            broker_id,
            broker_epoch=broker_epoch,
            expected_epoch=leader_epoch,
            brokers=self._cache.state.brokers,
        )

    def topic_name(self, topic_id: TopicId) -> str:
        """:raises OperatingError: UNKNOWN_TOPIC_ID."""
        topic = self._cache.state.topics.get(topic_id)
        if topic is None:
            raise OperatingError(f"no topic has the id {topic_id}", code=ErrorCode.UNKNOWN_TOPIC_ID)
        return topic.name

    def count_late_transactions(self, *, before_ms: int) -> int:
        """Partitions with a transaction that has been open since before ``before_ms`` of the wall.

        Its coordinator should have ended it: it may be one that hangs.
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
        """The leader appended ``size_bytes``, which may have committed them already."""
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
        """A follower here heard of its leader that more is committed."""
        if self.lets_followers_serve:
            self.consumer_fetches.wake(replica.topic_partition)
            self.stable_fetches.wake(replica.topic_partition)

    def in_sync_set_changed(self, replica: HostedReplica, high_watermark_before: int) -> None:
        """The ISR is another now, which may commit records or make waiting for it pointless."""
        partition = replica.partition
        if partition is None:
            return
        if partition.high_watermark != high_watermark_before:
            self.high_watermark_moved(replica)
        if partition.is_under_min_isr:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            self.produces.fail(replica.topic_partition, code)

    def end_waits(self, replica: HostedReplica, code: ErrorCode) -> None:
        """Nothing that waits for the replica can be served any more."""
        self.produces.fail(replica.topic_partition, code)
        self.deletions.fail(replica.topic_partition, code)
        replica.gate.recheck()
        self.reading_changed(replica)

    def reading_changed(self, replica: HostedReplica) -> None:
        """Whoever waits to read the replica shall try again."""
        self.consumer_fetches.wake(replica.topic_partition)
        self.stable_fetches.wake(replica.topic_partition)
        for session in replica.watchers:
            session.changed(replica.key)

    # --- deletions of records --------------------------------------------------------------------

    def low_watermark(self, replica: HostedReplica) -> int:
        """Below which nobody shows records of a partition that is led here (KIP-107).

        :raises OperatingError: if it is not led here, or its directory is offline.
        """
        partition, handle = replica.require_open()
        partition.require_leader()
        return low_watermark_of(partition, handle.log_start_offset, self._cache.state.brokers)

    def follower_start_reported(self, replica: HostedReplica) -> None:
        """A follower said where its log starts, which may be what a deletion waits for."""
        if not self.deletions.is_waited_for(replica.topic_partition):
            return
        try:
            low_watermark = self.low_watermark(replica)
        except OperatingError as e:
            self.deletions.fail(replica.topic_partition, e.code)
        else:
            self.deletions.reached(replica.topic_partition, low_watermark)

    def recheck_deletions(self) -> None:
        """Another broker or directory counts now: of those partitions that a deletion waits for."""
        for topic_partition in self.deletions.partitions:
            # One that is not hosted any more has ended its waits.
            self.follower_start_reported(self._by_name[topic_partition])

    def close(self) -> None:
        self.produces.close()
        self.deletions.close()
        self.consumer_fetches.close()
        self.stable_fetches.close()

    def _figures(self) -> Iterator[tuple[str, int]]:
        """Count in one loop over the replicas, because each snapshot of the metrics does."""
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
