"""PURE. ``Partition``: one replica's role on this broker, without its files.

It knows who leads, the epochs, the in-sync set (ISR), how far each follower is, and the high
watermark; it decides who may append and what counts as replicated. It never sees a log, a clock
or a request: offsets and instants are given to it as numbers.

The rules:

* metadata moves the role, through :meth:`Partition.apply`, and nothing else does but
  :meth:`Partition.mark_offline`, after which this object stays offline: a replica that comes back
  is another one;
* the high watermark is the least log end of the *maximal* ISR (the ISR plus whom an unanswered
  request may already have added), and never goes back;
* a copy that takes the place of a lost one never leads in an epoch in which that one did: it may
  lack what was acknowledged then;
* nobody outside of that set is waited for: a replica that metadata takes out of the ISR leaves the
  wait at once, however recently it was caught up;
* while the ISR is smaller than ``min.insync.replicas`` the high watermark stands still;
* a follower is who metadata says it is, and its word counts if it was said after everything that
  makes former words void: any change of the partition while it was out of the ISR, and any
  registration of its broker (``follower_state.py``);
* one ISR change is in flight at a time. An answer for an older one is ignored.

Methods that cannot matter to a waiting request say so by what they return; after all others
``high_watermark`` may have grown.
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
"""What a request carries that does not know the leader epoch."""


class Role(Enum):
    """What this broker is to the partition."""

    NONE = "none"
    """Metadata has not said anything yet, or nothing that this copy may do."""
    LEADER = "leader"
    FOLLOWER = "follower"
    """Also without a leader to follow: then ``leader`` is ``NO_LEADER``."""
    OFFLINE = "offline"


class RoleChange(Enum):
    """What one look at the metadata did to the role."""

    NONE = "none"
    """Same leader, same epoch; the ISR or the replicas may have changed."""
    STALE = "stale"
    """Older than what is known already; nothing was taken over."""
    LEADER = "leader"
    """This broker leads, in a new epoch: requests that wait here from before must fail."""
    FOLLOWER = "follower"
    """Another leads, in a new epoch: truncate by epoch, then fetch from ``leader``."""


class Partition:
    """One replica of this broker.

    Role and epochs: ``apply(registration, log_end_offset, now_ms) -> RoleChange``,
    ``mark_offline(directory_id)``, ``role``, ``is_leader``, ``leader``, ``leader_epoch``,
    ``partition_epoch``, ``replicas``, ``isr``, ``leader_epoch_start_offset``.

    Guards (raise, never change anything): ``require_leader(expected_epoch)``,
    ``require_replica(expected_epoch)``, ``require_follower(...)``,
    ``require_appendable(acks, expected_epoch)``.

    Offsets: ``high_watermark``,
    ``log_end_offset``; ``log_end_moved(end)`` after each append of the leader,
    ``follower_fetched(...)`` for each fetch of a follower, ``is_sent_again(...)`` for its answer,
    ``fetched_from_leader(...)`` on a follower, ``truncated(end)``;
    ``acks_state(required_offset)`` for a produce that waits (for a deletion: low_watermark.py).
    Those that return ``bool`` return whether the high watermark grew.

    ISR: ``isr_shrink_candidates(now_ms)`` and ``isr_expand_wanted(...)`` ask,
    ``begin_isr_change(isr, own_broker_epoch) -> IsrChange`` makes it pending,
    ``isr_change_committed(change, ...)`` or ``isr_change_refused(change, code)`` ends it.
    After a retriable failure of the request the same one is sent again while it is pending.
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
        """``led_in`` is the epoch in which another copy of the replica led, which is lost.

        ``checkpointed_high_watermark`` is UNKNOWN_OFFSET where no checkpoint names the replica;
        then nothing but what precedes the log's start is known to be committed."""
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
        #: Runs parallel to ``replicas``.
        self.directories: tuple[DirectoryId, ...] = ()
        self.isr: tuple[BrokerId, ...] = ()
        #: Out of the ISR, and may lead next all the same (KIP-966).
        self.eligible: tuple[BrokerId, ...] = ()
        #: Others may go by what this copy held.
        self.is_counted = False
        self.pending_isr_change: IsrChange | None = None
        #: Log end when this broker began to lead in this epoch; UNKNOWN_OFFSET unless it leads.
        self.leader_epoch_start_offset = UNKNOWN_OFFSET
        self.log_end_offset = log_end_offset
        #: Between log start and log end; never goes back but by ``truncated``.
        self.high_watermark = min(
            max(checkpointed_high_watermark, log_start_offset), log_end_offset
        )
        self._led_in = led_in
        #: Every other replica while leading, else empty.
        self._followers: dict[BrokerId, FollowerState] = {}
        #: The followers in the maximal ISR: those that the high watermark waits for.
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
        """Whether metadata has this copy lead in an epoch in which only its predecessor may."""
        return self.leader == self.broker_id and self.leader_epoch <= self._led_in

    @property
    def is_under_replicated(self) -> bool:
        return self.role is Role.LEADER and len(self.isr) < len(self.replicas)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether the ISR is smaller than ``min.insync.replicas``, capped by the replicas."""
        return self._is_under_min_isr

    def apply(
        self,
        registration: PartitionRegistration,
        *,
        log_end_offset: int,
        now_ms: int,
        moment: int = 0,
    ) -> RoleChange:
        """Take over what metadata says of the partition; ``moment`` is when that was learned.

        ``log_end_offset`` is the local log's end at this moment: no append may be on its way when
        the role changes, or the new epoch would start in the wrong place.
        """
        if registration.partition_epoch < self.partition_epoch:
            return RoleChange.STALE
        if registration.leader_epoch < self.leader_epoch:
            return RoleChange.STALE
        is_new_epoch = registration.leader_epoch > self.leader_epoch
        if registration.partition_epoch > self.partition_epoch:
            # Whatever was pending is now either part of this state or bound to be refused.
            self.pending_isr_change = None
            for follower in self._followers.values():
                if follower.broker_id not in registration.isr:
                    # It may have been lost, made anew, or truncated, or be about to be.
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
        self.truncated(log_end_offset)  # If it was, nobody may have been left to say so.
        if self.awaits_new_epoch:
            return RoleChange.NONE
        if self.leader == self.broker_id:
            return self._lead(is_new_epoch, now_ms)
        return self._follow(is_new_epoch)

    def mark_offline(self, directory_id: DirectoryId) -> None:
        """The directory under the replica is gone; nothing brings this object back."""
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
            # A member of the ISR gets a full lag time before it may be found too slow.
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
        """A broker registered, or reported anew which directories it has, as was learned then.

        Those of its replicas that are not in sync may be others than they were.
        """
        follower = self._followers.get(broker_id)
        if follower is not None and broker_id not in self.isr:
            follower.not_before = moment

    # --- guards ----------------------------------------------------------------------------------

    def require_leader(self, expected_epoch: int = ANY_EPOCH) -> None:
        """Let only the leader through, and only if the asker's leader epoch is ours.

        :raises KafkaStorageError: if the replica's directory is offline.
        :raises OperatingError: FENCED_LEADER_EPOCH (theirs is older), UNKNOWN_LEADER_EPOCH (newer).
        :raises NotLeaderOrFollowerError: if another broker leads.
        """
        if self.role is Role.LEADER and expected_epoch in (ANY_EPOCH, self.leader_epoch):
            return
        self._refuse(expected_epoch)

    def require_replica(self, expected_epoch: int = ANY_EPOCH) -> None:
        """Let leader and followers through, and only if the asker's leader epoch is ours.

        :raises KafkaStorageError: if the replica's directory is offline.
        :raises OperatingError: FENCED_LEADER_EPOCH (theirs is older), UNKNOWN_LEADER_EPOCH (newer).
        :raises NotLeaderOrFollowerError: if metadata has not said yet what the replica is.
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
        """``require_leader``, and an asker that is a follower: a broker that has a replica.

        It must say the epoch in which it is registered, and the leader epoch. One that is ahead of
        our metadata asks again.

        :raises NotLeaderOrFollowerError: if it is none.
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
        """``require_leader``, and for ``acks`` -1 enough in-sync replicas to hold the records.

        :raises OperatingError: NOT_ENOUGH_REPLICAS.
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
        """Call it before ``log_end_moved``: the log is about to grow.

        A follower that has all of an idle log asks for nothing, and is caught up until now.
        """
        for follower in self._waited:
            if follower.log_end_offset == self.log_end_offset:
                follower.last_caught_up_ms = now_ms

    def log_end_moved(self, log_end_offset: int) -> bool:
        """The local log now ends at ``log_end_offset``; True if the high watermark grew."""
        if log_end_offset > self.log_end_offset:
            self.log_end_offset = log_end_offset
        # Only a leader without followers to wait for is committed by its own append.
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
        """A follower asked from ``fetch_offset`` on; True if the high watermark grew.

        None: it is not heard, for that may have been said of a copy that is lost. What continues
        the session of ``speaker`` will be. ``log_start_offset`` is where it says that its log
        starts, ``moment`` the present one.

        Call it after ``require_follower``: an offset of another epoch says nothing about this log.
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
        """What goes on being said by ``speaker`` is not about this partition any more."""
        follower = self._followers.get(broker_id)
        if follower is not None and follower.speaker is speaker:
            follower.speaker = None

    def is_sent_again(self, broker_id: BrokerId, fetch_offset: int) -> bool:
        """Records from ``fetch_offset`` on go to a follower; whether it got them last time too.

        If so it could not use them, or the answer was lost.
        """
        follower = self._followers.get(broker_id)
        if follower is None:
            return False
        before, follower.sent_from = follower.sent_from, fetch_offset
        return before == fetch_offset

    def fetched_from_leader(self, *, leader_high_watermark: int, log_end_offset: int) -> bool:
        """On a follower, after a fetch's records are in the local log."""
        self.log_end_offset = log_end_offset
        committed = min(leader_high_watermark, log_end_offset)
        if self.role is not Role.FOLLOWER or committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def truncated(self, log_end_offset: int) -> None:
        """The follower's log was truncated, or started anew, and now ends at ``log_end_offset``."""
        self.log_end_offset = log_end_offset
        self.high_watermark = min(self.high_watermark, log_end_offset)

    def acks_state(self, required_offset: int) -> ErrorCode | None:
        """Where a produce with ``acks`` -1 stands whose records end before ``required_offset``.

        NONE: replicated. NOT_ENOUGH_REPLICAS_AFTER_APPEND: the ISR has become too small for it
        since, so that waiting is pointless. ``None``: wait on.
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
        """Recompute what depends on the ISR, then see how far that commits the log."""
        if self.role is not Role.LEADER:
            return
        wanted = () if self.pending_isr_change is None else self.pending_isr_change.isr
        maximal = {*self.isr, *wanted}
        self._waited = tuple(f for f in self._followers.values() if f.broker_id in maximal)
        needed = min(self._min_insync_replicas, self._replication_factor)
        self._is_under_min_isr = len(self.isr) < needed
        self._advance()

    def follower(self, broker_id: BrokerId) -> FollowerState | None:
        """What the leader knows of one."""
        return self._followers.get(broker_id)

    # --- in-sync set -----------------------------------------------------------------------------

    def isr_shrink_candidates(self, now_ms: int) -> tuple[BrokerId, ...]:
        """Members of the ISR that were not caught up for longer than the allowed lag."""
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
        """Whether that follower has caught up and may join the ISR.

        It must hold everything committed and everything from before this leader's epoch, and
        nothing from before ``log_start_offset``, where the leader's log starts: as a leader it
        would show what was deleted. Its broker must be active, the one that fetched, and have the
        replica's directory online and not impaired (KIP-928).
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
        """Make ``isr`` the pending one; those it adds are waited for from now on."""
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
        """The controller answered with the state that now holds; True if it was taken over.

        Metadata may have brought it already. That somebody left counts only when that brings it,
        after the ``min.insync.replicas`` that the controller reckoned with (KIP-966).
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
        """The controller refused the change for this partition with ``code``."""
        if self.pending_isr_change is not change:
            return IsrVerdict.STALE
        verdict = verdict_of(code)
        if verdict is IsrVerdict.ROLLED_BACK:
            self.pending_isr_change = None
            self._refresh_wait()
        return verdict
