"""PURE. ``Partition``: the role of one replica on this broker, without its files.

It knows the leader, the epochs, the in-sync replicas (ISR), the progress of each follower, and the
high watermark. It decides which appends are allowed and which records count as replicated. It
never uses a log, a clock or a request: its callers pass offsets and times as numbers.

The rules:

* Metadata changes the role through :meth:`Partition.apply`. The only other change is
  :meth:`Partition.mark_offline`, which is permanent: a replica that returns gets a new object.
* The high watermark is the least log end of the *maximal* ISR (the ISR plus the replicas that an
  unanswered AlterPartition adds). It never decreases.
* A copy that replaces a lost copy never leads in an epoch in which the lost copy led: it may lack
  records that were acknowledged in that epoch.
* The leader waits for no replica outside the maximal ISR: when metadata removes a replica from the
  ISR, the wait for it ends at once, however recently it was caught up (ADR 12).
* While the ISR is smaller than ``min.insync.replicas``, the high watermark does not advance.
* A follower is a replica in the metadata. Its report counts if it was sent after every event that
  invalidates earlier reports: a change of the partition while the follower was outside the ISR,
  or a registration of its broker (``follower_state.py``).
* One ISR change is in flight at a time. A response to an older one is ignored.

The return value of a method says whether waiting requests are affected. After a method without
such a value, ``high_watermark`` may have grown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NoReturn

from kraftjbod.broker.partitions.follower_state import UNKNOWN_OFFSET, FollowerState, Speaker
from kraftjbod.broker.partitions.isr_change import IsrChange, IsrVerdict, verdict_of
from kraftjbod.core.errors import (
    ErrorCode,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    OperatingError,
)
from kraftjbod.core.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    TopicPartition,
)
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration

NO_EPOCH: Final = LeaderEpoch(-1)
ANY_EPOCH: Final = -1
"""Leader epoch in a request whose sender does not know the leader epoch."""


class Role(Enum):
    """The role that this broker's replica has in the partition."""

    NONE = "none"
    """Metadata has not assigned a role yet, or this copy must not take the assigned role."""
    LEADER = "leader"
    FOLLOWER = "follower"
    """Also used without a leader; then ``leader`` is ``NO_LEADER``."""
    OFFLINE = "offline"


class RoleChange(Enum):
    """The effect of one metadata state on the role."""

    NONE = "none"
    """Same leader and epoch; the ISR or the replicas may have changed."""
    STALE = "stale"
    """Older than the known state; ignored."""
    LEADER = "leader"
    """This broker leads in a new epoch: requests that waited here before must fail."""
    FOLLOWER = "follower"
    """Another broker leads in a new epoch: truncate by epoch, then fetch from ``leader``."""


class Partition:
    """One replica of this broker.

    Role and epochs: ``apply(registration, log_end_offset, now_ms) -> RoleChange``,
    ``mark_offline(directory_id)``, ``role``, ``is_leader``, ``leader``, ``leader_epoch``,
    ``partition_epoch``, ``replicas``, ``isr``, ``leader_epoch_start_offset``.

    Guards (raise, never change anything): ``require_leader(expected_epoch)``,
    ``require_replica(expected_epoch)``, ``require_follower(...)``, ``require_appendable(acks,
    expected_epoch)``.

    Offsets: ``high_watermark``, ``log_end_offset``. ``log_end_moved(end)`` follows each append of
    the leader, ``follower_fetched(...)`` each fetch of a follower, and ``is_sent_again(...)`` its
    response. A follower calls ``fetched_from_leader(...)`` and ``truncated(end)``.
    ``acks_state(required_offset)`` is for a waiting produce. A waiting deletion uses
    low_watermark.py. ``log_end_moved``, ``follower_fetched`` and ``fetched_from_leader`` return
    whether the high watermark grew.

    ISR: ``isr_shrink_candidates(now_ms)`` and ``isr_expand_wanted(...)`` find changes,
    ``begin_isr_change(isr, own_broker_epoch) -> IsrChange`` makes one pending,
    ``isr_change_committed(change, ...)`` or ``isr_change_refused(change, code)`` ends it. After a
    retriable failure the same request is sent again while it is pending.
    """

    __slots__ = (
        "_followers",
        "_is_under_min_isr",
        "_led_in",
        "_min_insync_replicas",
        "_replication_factor",
        "_waited",
        "broker_id",
        "directories",
        "eligible",
        "high_watermark",
        "is_counted",
        "isr",
        "leader",
        "leader_epoch",
        "leader_epoch_start_offset",
        "log_end_offset",
        "offline_directory_id",
        "partition_epoch",
        "pending_isr_change",
        "replica_lag_time_max_ms",
        "replicas",
        "role",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        *,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        broker_id: BrokerId,
        log_start_offset: int,
        log_end_offset: int,
        checkpointed_high_watermark: int = UNKNOWN_OFFSET,
        min_insync_replicas: int = 1,
        replica_lag_time_max_ms: int = 30_000,
        led_in: LeaderEpoch = NO_EPOCH,
    ) -> None:
        """Create a replica without a role.

        :param led_in: the last leader epoch of a lost copy that this copy replaces.
        :param checkpointed_high_watermark: UNKNOWN_OFFSET if no checkpoint has the replica. Then
            only records before the log start are known to be committed.
        """
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.broker_id = broker_id
        self.replica_lag_time_max_ms = replica_lag_time_max_ms
        self.role = Role.NONE
        self.offline_directory_id: DirectoryId | None = None
        self.leader = NO_LEADER
        self.leader_epoch = LeaderEpoch(-1)
        self.partition_epoch = PartitionEpoch(-1)
        self.replicas: tuple[BrokerId, ...] = ()
        #: Parallel to ``replicas``.
        self.directories: tuple[DirectoryId, ...] = ()
        self.isr: tuple[BrokerId, ...] = ()
        #: Eligible leader replicas outside the ISR (ELR, KIP-966).
        self.eligible: tuple[BrokerId, ...] = ()
        #: Other brokers may rely on the records that this copy had.
        self.is_counted = False
        self.pending_isr_change: IsrChange | None = None
        #: Log end when this broker became leader in this epoch; UNKNOWN_OFFSET unless it leads.
        self.leader_epoch_start_offset = UNKNOWN_OFFSET
        self.log_end_offset = log_end_offset
        #: Between log start and log end. Only ``truncated`` decreases it.
        self.high_watermark = min(
            max(checkpointed_high_watermark, log_start_offset), log_end_offset
        )
        self._led_in = led_in
        #: Every other replica while this broker leads, else empty.
        self._followers: dict[BrokerId, FollowerState] = {}
        #: The followers in the maximal ISR, which bound the high watermark.
        self._waited: tuple[FollowerState, ...] = ()
        self._min_insync_replicas = min_insync_replicas
        self._is_under_min_isr = False

    def __repr__(self) -> str:
        return (
            f"<Partition {self.topic_partition} {self.role.value} leader={self.leader} "
            f"epoch={self.leader_epoch}/{self.partition_epoch} isr={self.isr} "
            f"hw={self.high_watermark} end={self.log_end_offset}>"
        )

    # --- role ------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def awaits_new_epoch(self) -> bool:
        """Whether this copy must not lead: it replaces a lost copy that led in this epoch."""
        return self.leader == self.broker_id and self.leader_epoch <= self._led_in

    @property
    def is_under_replicated(self) -> bool:
        return self.role is Role.LEADER and len(self.isr) < len(self.replicas)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether this broker leads and the ISR is smaller than ``min.insync.replicas`` (at most
        the replication factor).
        """
        return self._is_under_min_isr

    def apply(
        self,
        registration: PartitionRegistration,
        *,
        log_end_offset: int,
        now_ms: int,
        moment: int = 0,
    ) -> RoleChange:
        """Apply the metadata of the partition, which this broker learned at ``moment``.

        :param log_end_offset: the present end of the local log. No append may be in flight when the
            role changes, or the new leader epoch would start at a wrong offset.
        :param now_ms: monotonic time, from which followers in the ISR have the full lag time.
        :param moment: a value of :class:`Moments`.
        :return: the effect on the role of this replica.
        """
        if registration.partition_epoch < self.partition_epoch:
            return RoleChange.STALE
        if registration.leader_epoch < self.leader_epoch:
            return RoleChange.STALE
        is_new_epoch = registration.leader_epoch > self.leader_epoch
        if registration.partition_epoch > self.partition_epoch:
            # A pending change is now part of this state, or the controller will refuse it.
            self.pending_isr_change = None
            for follower in self._followers.values():
                if follower.broker_id not in registration.isr:
                    # This follower may have been lost, recreated or truncated, or may be soon.
                    follower.not_before = moment
        self.leader = registration.leader
        self.leader_epoch = registration.leader_epoch
        self.partition_epoch = registration.partition_epoch
        self.replicas = registration.replicas
        self.directories = registration.directories
        self.isr = registration.isr
        self.eligible = registration.elr
        self.is_counted = registration.counts_on(self.broker_id)
        self._replication_factor = registration.replication_factor
        if self.role is Role.OFFLINE:
            return RoleChange.NONE
        self.truncated(log_end_offset)  # A truncation may not have been reported.
        if self.awaits_new_epoch:
            return RoleChange.NONE
        if self.leader == self.broker_id:
            return self._lead(is_new_epoch, now_ms)
        return self._follow(is_new_epoch)

    def mark_offline(self, directory_id: DirectoryId) -> None:
        """Make the replica offline permanently: its directory failed."""
        self.role = Role.OFFLINE
        self.offline_directory_id = directory_id
        self._stop_leading()

    def set_min_insync_replicas(self, value: int) -> None:
        self._min_insync_replicas = value
        self._refresh_wait()

    def _lead(self, is_new_epoch: bool, now_ms: int) -> RoleChange:
        begins = is_new_epoch or self.role is not Role.LEADER
        if begins:
            self.role = Role.LEADER
            self.leader_epoch_start_offset = self.log_end_offset
            self._followers = {}
        known = self._followers
        self._followers = {
            # A member of the ISR gets the full lag time before it counts as too slow.
            broker_id: known.get(broker_id)
            or FollowerState(broker_id, now_ms if broker_id in self.isr else 0)
            for broker_id in self.replicas
            if broker_id != self.broker_id
        }
        self._refresh_wait()
        return RoleChange.LEADER if begins else RoleChange.NONE

    def _follow(self, is_new_epoch: bool) -> RoleChange:
        begins = is_new_epoch or self.role is not Role.FOLLOWER
        self.role = Role.FOLLOWER
        self._stop_leading()
        return RoleChange.FOLLOWER if begins else RoleChange.NONE

    def _stop_leading(self) -> None:
        self.pending_isr_change = None
        self.leader_epoch_start_offset = UNKNOWN_OFFSET
        self._followers = {}
        self._waited = ()
        self._is_under_min_isr = False

    def broker_registered(self, broker_id: BrokerId, moment: int) -> None:
        """Note that a broker registered, or reported its directories again, at ``moment``.

        Its replicas outside the ISR may be other copies than before.
        """
        follower = self._followers.get(broker_id)
        if follower is not None and broker_id not in self.isr:
            follower.not_before = moment

    # --- guards ----------------------------------------------------------------------------------

    def require_leader(self, expected_epoch: int = ANY_EPOCH) -> None:
        """Require that this broker leads, and that the sender's leader epoch is current.

        :raises KafkaStorageError: the replica's directory is offline.
        :raises OperatingError: FENCED_LEADER_EPOCH (the sender's epoch is older) or
            UNKNOWN_LEADER_EPOCH (newer).
        :raises NotLeaderOrFollowerError: this broker does not lead.
        """
        if self.role is Role.LEADER and expected_epoch in (ANY_EPOCH, self.leader_epoch):
            return
        self._refuse(expected_epoch)

    def require_replica(self, expected_epoch: int = ANY_EPOCH) -> None:
        """Require that this broker leads or follows, and that the sender's leader epoch is current.

        :raises KafkaStorageError: the replica's directory is offline.
        :raises OperatingError: FENCED_LEADER_EPOCH (the sender's epoch is older) or
            UNKNOWN_LEADER_EPOCH (newer).
        :raises NotLeaderOrFollowerError: the replica has no role yet.
        """
        if self.role is Role.FOLLOWER and expected_epoch in (ANY_EPOCH, self.leader_epoch):
            return
        self.require_leader(expected_epoch)

    def require_follower(
        self,
        broker_id: BrokerId,
        *,
        broker_epoch: BrokerEpoch,
        expected_epoch: int,
        brokers: Mapping[BrokerId, BrokerRegistration],
    ) -> None:
        """Require that this broker leads, and that the sender is a broker with a replica.

        The request must have the sender's registered broker epoch and the current leader epoch. A
        sender whose metadata is newer than this broker's is refused and retries.

        :raises OperatingError: as :meth:`require_leader`.
        :raises NotLeaderOrFollowerError: the sender is not a follower.
        """
        self.require_leader(expected_epoch)
        broker = brokers.get(broker_id)
        is_known = broker is not None and broker.epoch == broker_epoch
        if not is_known or broker_id not in self._followers or expected_epoch == ANY_EPOCH:
            raise NotLeaderOrFollowerError(
                f"broker {broker_id} in its epoch {broker_epoch} is no follower of "
                f"{self.topic_partition} in leader epoch {self.leader_epoch}"
            )

    def require_appendable(self, acks: int, expected_epoch: int = ANY_EPOCH) -> None:
        """Require that this broker leads and, for ``acks`` -1, the ISR is large enough.

        :raises OperatingError: NOT_ENOUGH_REPLICAS, or as :meth:`require_leader`.
        """
        self.require_leader(expected_epoch)
        if acks == -1 and self._is_under_min_isr:
            raise OperatingError(
                f"{self.topic_partition} has {len(self.isr)} in-sync replicas, "
                f"min.insync.replicas asks for {self._min_insync_replicas}",
                code=ErrorCode.NOT_ENOUGH_REPLICAS,
            )

    def _refuse(self, expected_epoch: int) -> NoReturn:
        if self.role is Role.OFFLINE:
            raise KafkaStorageError(
                f"{self.topic_partition} is in log directory {self.offline_directory_id}, "
                "which is offline",
                directory_id=self.offline_directory_id,
            )
        if expected_epoch != ANY_EPOCH and expected_epoch != self.leader_epoch:
            is_older = expected_epoch < self.leader_epoch
            raise OperatingError(
                f"{self.topic_partition} is at leader epoch {self.leader_epoch}, "
                f"the request at {expected_epoch}",
                code=ErrorCode.FENCED_LEADER_EPOCH if is_older else ErrorCode.UNKNOWN_LEADER_EPOCH,
            )
        raise NotLeaderOrFollowerError(
            f"broker {self.broker_id} does not lead {self.topic_partition}"
        )

    # --- offsets ---------------------------------------------------------------------------------

    def note_idle_followers(self, now_ms: int) -> None:
        """Mark each follower in the maximal ISR that has the whole log as caught up at ``now_ms``
        (monotonic).

        Call it before ``log_end_moved``. A fetch of such a follower waits at the leader or does not
        name the partition, so no fetch updates its time.
        """
        for follower in self._waited:
            if follower.log_end_offset == self.log_end_offset:
                follower.last_caught_up_ms = now_ms

    def log_end_moved(self, log_end_offset: int) -> bool:
        """Note that the local log ends at ``log_end_offset``; return whether the high watermark
        grew."""
        if log_end_offset > self.log_end_offset:
            self.log_end_offset = log_end_offset
        # Only if the leader waits for no follower does its own append commit records.
        return self._advance() if self.role is Role.LEADER else False

    def follower_fetched(
        self,
        broker_id: BrokerId,
        *,
        fetch_offset: int,
        now_ms: int,
        broker_epoch: BrokerEpoch,
        speaker: Speaker,
        moment: int,
        log_start_offset: int = UNKNOWN_OFFSET,
    ) -> bool | None:
        """Note a follower's fetch from ``fetch_offset`` at ``now_ms`` (monotonic).

        Call it after ``require_follower``: an offset of another epoch says nothing about this log.

        :param moment: the present moment, a value of :class:`Moments`.
        :param log_start_offset: the start of the follower's log according to the request.
        :return: whether the high watermark grew. None if the report is not accepted, because it may
            describe a lost copy. The next request in the session of ``speaker`` will be accepted.
        """
        follower = self._followers[broker_id]
        if not follower.hears(speaker):
            return None
        follower.broker_epoch, follower.speaker = broker_epoch, speaker
        follower.heard_at = moment
        follower.fetched(fetch_offset, self.log_end_offset, now_ms)
        follower.log_start_offset = log_start_offset
        return fetch_offset > self.high_watermark and self._advance()

    def follower_left(self, broker_id: BrokerId, speaker: Speaker) -> None:
        """Note that the session of ``speaker`` no longer contains this partition. No effect if
        another session of the follower contains it by now."""
        follower = self._followers.get(broker_id)
        if follower is not None and follower.speaker is speaker:
            follower.speaker = None

    def is_sent_again(self, broker_id: BrokerId, fetch_offset: int) -> bool:
        """Note that the follower gets records from ``fetch_offset``.

        Return whether its previous response began at the same offset. If so, the follower could not
        use those records, or the response was lost.
        """
        follower = self._followers.get(broker_id)
        if follower is None:
            return False
        before, follower.sent_from = follower.sent_from, fetch_offset
        return before == fetch_offset

    def fetched_from_leader(self, *, leader_high_watermark: int, log_end_offset: int) -> bool:
        """Note that records fetched from the leader are in the local log.

        Return whether the high watermark grew.
        """
        self.log_end_offset = log_end_offset
        committed = min(leader_high_watermark, log_end_offset)
        if self.role is not Role.FOLLOWER or committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def truncated(self, log_end_offset: int) -> None:
        """Note that the local log was truncated or recreated and now ends at ``log_end_offset``.
        The high watermark is not above it afterwards.
        """
        self.log_end_offset = log_end_offset
        self.high_watermark = min(self.high_watermark, log_end_offset)

    def acks_state(self, required_offset: int) -> ErrorCode | None:
        """Return the state of a produce with ``acks`` -1 whose records end before
        ``required_offset``.

        NOT_ENOUGH_REPLICAS_AFTER_APPEND: the ISR has become too small, even if the records are
        replicated. Otherwise NONE: replicated, or ``None``: keep waiting.
        """
        if self._is_under_min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE if self.high_watermark >= required_offset else None

    def _advance(self) -> bool:
        committed = self.log_end_offset
        for follower in self._waited:
            if follower.log_end_offset < committed:
                committed = follower.log_end_offset
        if committed <= self.high_watermark or self._is_under_min_isr:
            return False
        self.high_watermark = committed
        return True

    def _refresh_wait(self) -> None:
        """Recompute the state that depends on the ISR, then advance the high watermark."""
        if self.role is not Role.LEADER:
            return
        wanted = () if self.pending_isr_change is None else self.pending_isr_change.isr
        maximal = {*self.isr, *wanted}
        self._waited = tuple(f for f in self._followers.values() if f.broker_id in maximal)
        needed = min(self._min_insync_replicas, self._replication_factor)
        self._is_under_min_isr = len(self.isr) < needed
        self._advance()

    def follower(self, broker_id: BrokerId) -> FollowerState | None:
        """Return the progress of a follower; None if this broker does not lead or has no such
        follower."""
        return self._followers.get(broker_id)

    # --- in-sync set -----------------------------------------------------------------------------

    def isr_shrink_candidates(self, now_ms: int) -> tuple[BrokerId, ...]:
        """Return the in-sync followers that were last caught up more than
        ``replica.lag.time.max.ms`` before ``now_ms`` (monotonic). Empty unless this broker leads,
        and while an ISR change is pending.
        """
        if self.role is not Role.LEADER or self.pending_isr_change is not None:
            return ()
        return tuple(
            follower.broker_id
            for follower in self._waited
            if follower.log_end_offset != self.log_end_offset
            and now_ms - follower.last_caught_up_ms > self.replica_lag_time_max_ms
        )

    def isr_expand_wanted(
        self,
        broker_id: BrokerId,
        brokers: Mapping[BrokerId, BrokerRegistration],
        *,
        log_start_offset: int = UNKNOWN_OFFSET,
    ) -> bool:
        """Return whether the follower has caught up and may join the ISR.

        - It has all committed records and all records from before this leader epoch.
        - Its log starts at ``log_start_offset``, the leader's, or later. As a leader it would
          otherwise return deleted records.
        - Its broker is active and in the epoch that fetched.
        - The directory of its replica is online and not impaired (KIP-928).
        - No other ISR change is pending.
        """
        if self.role is not Role.LEADER or broker_id in self.isr:
            return False
        follower = self._followers.get(broker_id)
        if follower is None or self.pending_isr_change is not None:
            return False
        if follower.log_end_offset < max(self.high_watermark, self.leader_epoch_start_offset):
            return False
        if follower.log_start_offset < log_start_offset:
            return False
        broker = brokers.get(broker_id)
        if broker is None or not broker.is_active:
            return False
        if not follower.is_current or follower.broker_epoch != broker.epoch:
            return False
        directory_id = self.directories[self.replicas.index(broker_id)]
        return broker.has_online_dir(directory_id) and not broker.is_impaired(directory_id)

    def begin_isr_change(
        self,
        isr: Sequence[BrokerId],
        *,
        own_broker_epoch: BrokerEpoch,
        metadata_offset: int = -1,
    ) -> IsrChange:
        """Make ``isr`` the pending ISR and return the change to request from the controller.

        The high watermark waits for the new members from now on.
        """
        assert self.role is Role.LEADER and self.pending_isr_change is None, self
        assert self.broker_id in isr, (isr, self)
        change = IsrChange(
            isr=tuple(isr),
            isr_broker_epochs=tuple(
                own_broker_epoch if b == self.broker_id else self._followers[b].broker_epoch
                for b in isr
            ),
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            metadata_offset=metadata_offset,
        )
        self.pending_isr_change = change
        self._refresh_wait()
        return change

    def isr_change_committed(
        self,
        change: IsrChange,
        *,
        leader_epoch: LeaderEpoch,
        partition_epoch: PartitionEpoch,
        isr: tuple[BrokerId, ...],
    ) -> bool:
        """Apply the ISR in the controller's response; return whether it was applied.

        It is not applied if ``change`` is no longer pending, the leader epoch is another one, or
        the ISR lacks a present member. A removal is applied only from metadata, after the
        ``min.insync.replicas`` that the controller used for it (KIP-966).
        """
        is_stale = self.pending_isr_change is not change or leader_epoch != self.leader_epoch
        if is_stale or not set(self.isr) <= set(isr):
            return False
        self.pending_isr_change = None
        self.partition_epoch = max(self.partition_epoch, partition_epoch)
        self.isr = isr
        self._refresh_wait()
        return True

    def isr_change_refused(self, change: IsrChange, code: ErrorCode) -> IsrVerdict:
        """Return the consequence of the controller's refusal ``code`` of ``change``.

        A change that is rolled back is no longer pending afterwards.
        """
        if self.pending_isr_change is not change:
            return IsrVerdict.STALE
        verdict = verdict_of(code)
        if verdict is IsrVerdict.ROLLED_BACK:
            self.pending_isr_change = None
            self._refresh_wait()
        return verdict
