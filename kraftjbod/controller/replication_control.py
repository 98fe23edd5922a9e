"""PURE. ``ReplicationControlManager``: leaders, in-sync sets, and the directories of replicas.

Five events change a leader or an in-sync set. All of them use ``change_partition``:

* A broker changes: it registers, is fenced or unfenced, or shuts down, or a directory of it
  fails, becomes saturated or stalled, recovers, returns unclean, or is forgotten.
* A broker reports the directory of a replica (AssignReplicasToDirs, KIP-858).
* A leader requests another in-sync set (AlterPartition, KIP-497, KIP-841).
* ``min.insync.replicas`` changes, so that other replicas have the committed records (KIP-966).
* A periodic pass runs: preferred leaders, unclean elections.

A decision about a broker uses its registration *after* the change, so that one entry contains the
change and its consequences. ``ReplicaIndex`` finds the affected partitions, so the cost depends on
them only. The entry contains the first :data:`MAX_FOLLOWED_AT_ONCE` of them. The rest follows in
parts of that size (:meth:`ReplicationControlManager.follow_up`), so that the event loop is not
blocked. Each part uses the state at that time, and a new controller finds the rest in the state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from kraftjbod.controller.brokers.heartbeat_manager import BrokerControlState
from kraftjbod.controller.cluster_control import ClusterControlManager
from kraftjbod.controller.directory_returns import DirectoryReturns, unclean_directories
from kraftjbod.controller.partitions.acceptance import (
    Acceptance,
    AcceptanceOf,
    acceptance_of_directory,
    changed_directories,
)
from kraftjbod.controller.partitions.follow_ups import FollowUps
from kraftjbod.controller.partitions.partition_assignment import Assignment
from kraftjbod.controller.partitions.partition_change import Election, change_partition
from kraftjbod.controller.partitions.replica_index import ReplicaIndex
from kraftjbod.controller.partitions.topic_rules import RulesOf, TopicRules, rules_by_topic
from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import (
    LOST_DIR,
    MIGRATING_DIR,
    UNASSIGNED_DIR,
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    TopicIdPartition,
)
from kraftjbod.metadata.records import PartitionChangeRecord, Record
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    PartitionIsr,
    RefusedAssignment,
)

MAX_ELECTIONS_PER_PASS: Final = 1000
MAX_FOLLOWED_AT_ONCE: Final = 500
"""Partitions of a changed broker per decision; this many take about fifty milliseconds."""
#: Sentinel id: partitions queued for re-evaluation without a broker change.
_NOBODY: Final = BrokerId(-1)


class ReplicationControlManager:
    """Decides leaders, in-sync replicas and directories of partitions.

    Its methods return records, and the replay of these records changes the metadata. The manager
    itself keeps only a queue of partitions to decide later (:meth:`follow_up`).
    """

    def __init__(
        self,
        *,
        state: MetadataState,
        index: ReplicaIndex,
        cluster: ClusterControlManager,
        rules_of: RulesOf,
    ) -> None:
        self._state = state
        self._index = index
        self._cluster = cluster
        self._rules_of = rules_of
        self._returns = DirectoryReturns(
            state=state, index=index, cluster=cluster, rules_of=rules_of
        )
        self._later = FollowUps()
        #: Partitions that one decision about a broker may change.
        self.followed_at_once = MAX_FOLLOWED_AT_ONCE

    # --- brokers ---------------------------------------------------------------------------------

    def register_broker(
        self,
        request: BrokerRegistrationRequest,
        *,
        now_ms: int,
        next_offset: int,
        most: int | None = None,
    ) -> ControllerResult[BrokerRegistrationResponse]:
        """Return the records that register a broker and change its partitions.

        Replicas in forgotten directories, and those of the former incarnation that may lack
        records, leave the ISR first. If very many are affected, the result is only a part
        (``is_part``): the request must be decided again once its records are committed. The
        broker's replicas lead no partition in such a part, because its registration may never be
        recorded.

        :param now_ms: monotonic time.
        :param next_offset: offset of the first record to be appended, which becomes the epoch of a
            new incarnation.
        :param most: number of partitions that the result may change for each of these reasons;
            ``followed_at_once`` if None.
        :raises OperatingError: the registration is refused.
        """
        most = self.followed_at_once if most is None else most
        record = self._cluster.register(request, now_ms=now_ms, next_offset=next_offset)
        former = self._state.brokers.get(request.broker_id)
        changes: list[PartitionChangeRecord] = []
        if former is not None:
            after, forgotten = BrokerRegistration.from_record(record), request.forgotten_log_dirs
            self._returns.require_no_last_copies(after.broker_id, forgotten)
            lost = self._returns.lose(after, forgotten, most=most)
            if len(lost) == most:
                return _part(former, lost)
            unclean = unclean_directories(former, request)
            failed = self._returns.fail(after, unclean, but_for=_keys_of(lost), most=most)
            if len(failed) == most:
                return _part(former, [*lost, *failed])
            changes += self._returns.recreate(after, lost)
            changes += self._returns.come_back(after, _keys_of(failed))
            # Earlier parts of this registration may have left them without a leader.
            undecided = unclean | {UNASSIGNED_DIR} if forgotten else unclean
            changes += self._follow_broker(
                former,
                after,
                but_for=_keys_of(changes),
                also=self._returns.undecided(after.broker_id, undecided),
                most=most,
            )
        is_amendment = former is not None and former.epoch == record.broker_epoch
        return ControllerResult(
            records=(*changes, record),
            # A new epoch is the offset of its entry, so it must be the entry that was expected.
            is_atomic=not is_amendment,
            response=BrokerRegistrationResponse(
                broker_epoch=record.broker_epoch, metadata_offset=next_offset
            ),
        )

    def heartbeat(
        self, request: BrokerHeartbeatRequest
    ) -> ControllerResult[BrokerHeartbeatResponse]:
        """Return the records of a heartbeat: the broker's change of state and its consequences.

        :raises OperatingError: the broker is not registered with that epoch, or the heartbeat names
            a directory that is not the broker's.
        """
        broker = self._cluster.require_epoch(request.broker_id, request.broker_epoch)
        state, change = self._cluster.heartbeat(broker, request)
        records: tuple[Record, ...] = ()
        if change is not None:
            records = (*self._follow_broker(broker, broker.merge(change)), change)
        response = BrokerHeartbeatResponse(
            is_caught_up=request.current_metadata_offset >= broker.epoch,
            is_fenced=state.is_fenced,
            should_shut_down=state is BrokerControlState.SHUTDOWN_NOW,
            metadata_offset=self._state.offset,
            session_timeout_ms=self._cluster.announced_session_ms,
        )
        return ControllerResult(records=records, response=response, is_atomic=False)

    def fence_broker(self, broker_id: BrokerId) -> ControllerResult[None]:
        """Return the records that fence a broker, whose session ended, and change its
        partitions."""
        broker = self._state.brokers[broker_id]
        change = self._cluster.fence(broker)
        changes = self._follow_broker(broker, broker.merge(change))
        return ControllerResult(records=(*changes, change), response=None, is_atomic=False)

    def _follow_broker(
        self,
        before: BrokerRegistration,
        after: BrokerRegistration,
        *,
        but_for: Collection[TopicIdPartition] = (),
        also: Iterable[TopicIdPartition] = (),
        most: int | None = None,
    ) -> list[PartitionChangeRecord]:
        """Return changes of partitions when a broker changes from ``before`` to ``after``.

        If very many are affected, only ``most`` are changed now, those that the broker leads first.
        The rest is queued.

        :param but_for: partitions to be left out.
        :param also: partitions to be decided even if the broker's change does not affect them.
        :param most: maximum number of changes; ``followed_at_once`` if None.
        """
        most = self.followed_at_once if most is None else most
        affected: dict[TopicIdPartition, None] = {}
        for directory_id in changed_directories(before, after):
            in_directory = self._index.partitions_in_directory(before.broker_id, directory_id)
            affected.update(dict.fromkeys(in_directory))
        if before.is_active and not after.is_active:
            in_isr = self._index.partitions_in_isr(before.broker_id)
            affected.update(dict.fromkeys(in_isr))
        if after.is_active and not before.is_active:
            affected.update(dict.fromkeys(self._index.leaderless))
        affected.update(dict.fromkeys(also))
        broker_id, keys = before.broker_id, [key for key in affected if key not in but_for]
        if len(keys) > most:
            keys.sort(key=lambda key: self._partition(key).leader != broker_id)
            self._later.add(broker_id, keys[most:])
        acceptance = self._cluster.acceptance_with(after)
        return self._without_refused(broker_id, keys[:most], acceptance)

    def _without_refused(
        self, broker_id: BrokerId, keys: Iterable[TopicIdPartition], acceptance: AcceptanceOf
    ) -> list[PartitionChangeRecord]:
        """Return the changes that remove the broker from each ISR in which it is refused.

        The changes also elect new leaders. Without eligible leader replicas the broker stays in an
        ISR whose members are all refused, so that the first member that returns can lead.
        """
        rules_of = rules_by_topic(self._state, self._rules_of)
        records = []
        for key in keys:
            partition, rules = self._partition(key), rules_of(key.topic_id)
            isr = partition.isr
            accepted = {m for m in isr if _is_accepted(partition, m, acceptance)}
            if broker_id not in accepted and (accepted or rules.has_elr):
                isr = tuple(member for member in isr if member != broker_id)
            record = change_partition(
                key,
                partition,
                rules=rules,
                election=Election.allowed_by(rules),
                acceptance=acceptance,
                isr=isr,
            )
            if record is not None:
                records.append(record)
        return records

    # --- queued partitions ----------------------------------------------------------------------

    @property
    def has_follow_ups(self) -> bool:
        """Whether partitions that a change of a broker affects are still queued."""
        return bool(self._later)

    def follow_up(self) -> ControllerResult[None]:
        """Decide about the next queued partitions. More may follow even a result without records.

        Partitions stay queued until nothing is left to change, because a write may fail unnoticed.
        """
        if not self._later:
            return ControllerResult(response=None)
        broker_id, keys = self._later.first(self.followed_at_once)
        concerned = [key for key in keys if self._is_concerned(broker_id, key)]
        changes = self._without_refused(broker_id, concerned, self._cluster.acceptance)
        if not changes:
            self._later.drop(broker_id, len(keys))
        return ControllerResult(records=tuple(changes), response=None, is_atomic=False)

    def take_over(self) -> None:
        """Queue the partitions that an earlier active controller may have left undecided."""
        self._later.clear()
        for broker_id in self._state.brokers:
            self._later.add(broker_id, self._refused_or_impaired(broker_id))
        self._later.add(_NOBODY, (*self._index.leaderless, *self._index.reassigning))

    def _refused_or_impaired(self, broker_id: BrokerId) -> Sequence[TopicIdPartition]:
        """Return the partitions with a replica of the broker in an offline or impaired directory;
        for a broker that is fenced or stopping, all partitions with the broker in the ISR."""
        broker = self._state.brokers[broker_id]
        if not broker.is_active:
            return tuple(self._index.partitions_in_isr(broker_id))
        candidates = broker.known_log_dirs | {UNASSIGNED_DIR, MIGRATING_DIR, LOST_DIR}
        return tuple(
            key
            for directory_id in sorted(candidates)
            if acceptance_of_directory(broker, directory_id) is not Acceptance.ACCEPTABLE
            for key in self._index.partitions_in_directory(broker_id, directory_id)
        )

    def _is_concerned(self, broker_id: BrokerId, key: TopicIdPartition) -> bool:
        """Return whether the partition still exists and a change of the broker may affect it."""
        partition = self._state.partition(key)
        return partition is not None and (
            broker_id in partition.isr or not partition.has_leader or partition.is_reassigning
        )

    # --- min.insync.replicas ---------------------------------------------------------------------

    def follow_min_isr(self, rules_of: RulesOf) -> list[PartitionChangeRecord]:
        """Return the changes of partitions with eligible leader replicas after a change of
        ``min.insync.replicas``.

        :param rules_of: the rules after the change.
        """
        rules_after = rules_by_topic(self._state, rules_of)
        return [
            record
            for key in self._index.with_elr
            if (
                record := change_partition(
                    key,
                    self._partition(key),
                    rules=rules_after(key.topic_id),
                    election=Election.ONLINE,
                    acceptance=self._cluster.acceptance,
                )
            )
            is not None
        ]

    # --- AssignReplicasToDirs --------------------------------------------------------------------

    def assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest
    ) -> ControllerResult[AssignReplicasToDirsResponse]:
        """Return the records of the directories that a broker reports. If it names several for a
        replica, the last one is used.

        A replica in a lost or offline directory leaves the ISR and the leadership. A lost one is
        not eligible either.

        :raises OperatingError: UNSUPPORTED_VERSION, or the broker is not registered with that
            epoch.
        """
        broker = self._cluster.require_epoch(request.broker_id, request.broker_epoch)
        if not self._state.metadata_version.has_directories:
            raise OperatingError(
                "Directory assignment is not supported yet.", code=ErrorCode.UNSUPPORTED_VERSION
            )
        wanted: dict[TopicIdPartition, DirectoryId] = {}
        for directory in request.directories:
            for topic in directory.topics:
                for partition_id in topic.partitions:
                    key = TopicIdPartition(topic.topic_id, partition_id)
                    wanted[key] = directory.directory_id
        rules_of = rules_by_topic(self._state, self._rules_of)
        records: list[PartitionChangeRecord] = []
        refused: list[RefusedAssignment] = []
        for key, directory_id in wanted.items():
            error = self._why_not_assign(broker.broker_id, key, directory_id)
            if error is not None:
                refused.append(
                    RefusedAssignment(
                        topic_id=key.topic_id, partition=key.partition, error_code=error
                    )
                )
                continue
            record = self._assign(broker, key, directory_id, rules_of(key.topic_id))
            if record is not None:
                records.append(record)
        return ControllerResult(
            records=tuple(records),
            response=AssignReplicasToDirsResponse(refused=tuple(refused)),
            is_atomic=False,
        )

    def _why_not_assign(
        self, broker_id: BrokerId, key: TopicIdPartition, directory_id: DirectoryId
    ) -> ErrorCode | None:
        if key.topic_id not in self._state.topics:
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition = self._state.partition(key)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if broker_id not in partition.replicas:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if directory_id.is_reserved and directory_id != LOST_DIR:
            return ErrorCode.INVALID_REQUEST
        return None

    def _assign(
        self,
        broker: BrokerRegistration,
        key: TopicIdPartition,
        directory_id: DirectoryId,
        rules: TopicRules,
    ) -> PartitionChangeRecord | None:
        partition = self._partition(key)
        if partition.directory_of(broker.broker_id) == directory_id:
            return None
        isr = partition.isr
        if not broker.has_online_dir(directory_id):
            isr = tuple(member for member in isr if member != broker.broker_id)
        return change_partition(
            key,
            partition,
            rules=rules,
            election=Election.allowed_by(rules),
            acceptance=self._cluster.acceptance,
            isr=isr,
            unclean=broker.broker_id if directory_id == LOST_DIR else None,
            assignment=Assignment.of_partition(partition).with_directory(
                broker.broker_id, directory_id
            ),
        )

    # --- AlterPartition --------------------------------------------------------------------------

    def alter_partition(
        self, request: AlterPartitionRequest
    ) -> ControllerResult[AlterPartitionResponse]:
        """Return the records that change ISRs as a leader requests, and a result per partition.
        The records also end an unclean leader recovery.

        :raises OperatingError: the sender is not registered with that broker epoch.
        """
        self._cluster.require_epoch(request.broker_id, request.broker_epoch)
        records: list[PartitionChangeRecord] = []
        altered: list[AlteredPartition] = []
        seen: set[TopicIdPartition] = set()
        rules_of = rules_by_topic(self._state, self._rules_of)
        for requested in request.partitions:
            key = TopicIdPartition(requested.topic_id, requested.partition)
            error = self._why_not_alter(request.broker_id, requested)
            if key in seen:
                # An earlier item of this request has changed the partition already.
                error = ErrorCode.INVALID_UPDATE_VERSION
            seen.add(key)
            if error is not None:
                altered.append(
                    AlteredPartition(
                        topic_id=key.topic_id, partition=key.partition, error_code=error
                    )
                )
                continue
            partition = self._partition(key)
            # A leader that requests an in-sync set has finished its recovery.
            record = change_partition(
                key,
                partition,
                rules=rules_of(key.topic_id),
                election=Election.ONLINE,
                acceptance=self._cluster.acceptance,
                isr=requested.isr,
                leader_recovering=False,
            )
            if record is not None:
                records.append(record)
                partition = partition.merge(record)
            altered.append(_altered(key, partition, request.broker_id))
        return ControllerResult(
            records=tuple(records),
            response=AlterPartitionResponse(partitions=tuple(altered)),
            is_atomic=False,
        )

    def _why_not_alter(self, sender: BrokerId, requested: PartitionIsr) -> ErrorCode | None:
        """Return the error code of a refused ISR change, else None.

        The checks and their order are Kafka's, and the directories of the members must be online.
        """
        if requested.topic_id not in self._state.topics:
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition = self._state.partition(TopicIdPartition(requested.topic_id, requested.partition))
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        stale = _why_stale(sender, requested, partition)
        if stale is not None:
            return stale
        if not _is_well_formed(requested, partition):
            return ErrorCode.INVALID_REQUEST
        if any(self.ineligible_members(requested)):
            return ErrorCode.INELIGIBLE_REPLICA
        return None

    def ineligible_members(self, requested: PartitionIsr) -> Iterator[tuple[BrokerId, str]]:
        """Yield the members that cannot be in the requested ISR, each with the reason."""
        partition = self._partition(TopicIdPartition(requested.topic_id, requested.partition))
        for member, epoch in zip(requested.isr, requested.isr_broker_epochs, strict=True):
            reason = self._why_ineligible(member, epoch, partition)
            if reason is not None:
                yield member, reason
            elif member not in partition.isr and not self._is_of_current_registration(
                member, epoch, requested
            ):
                yield member, "the leader does not know its latest registration"

    def _why_ineligible(
        self, member: BrokerId, epoch: BrokerEpoch, partition: PartitionRegistration
    ) -> str | None:
        """Return the reason why the member cannot be in sync; None if it can.

        A leader of last resort may name itself.
        """
        broker = self._state.brokers.get(member)
        directory_id = partition.directory_of(member)
        if broker is None or directory_id is None:
            return "the broker is not registered, or has no replica"
        if epoch not in (UNKNOWN_BROKER_EPOCH, broker.epoch):
            return f"the leader knows broker epoch {epoch}, and it is {broker.epoch}"
        match self._cluster.acceptance(member, directory_id):
            case Acceptance.REFUSED if not broker.is_active:
                return "the broker is fenced or shuts down"
            case Acceptance.REFUSED:
                return f"the log directory {directory_id} is offline"
            case Acceptance.LAST_RESORT if member != partition.leader:
                return f"the log directory {directory_id} is full or does not answer"
            case _:
                return None

    def _is_of_current_registration(
        self, member: BrokerId, epoch: BrokerEpoch, requested: PartitionIsr
    ) -> bool:
        """Return whether the leader's request accounts for the joining member's present
        registration.

        The leader must know the broker's epoch and its last registration in that epoch. A directory
        may have returned with fewer records, or without its replicas.
        """
        if epoch == UNKNOWN_BROKER_EPOCH:
            return False
        offset = requested.metadata_offset
        return offset < 0 or offset >= self._state.brokers[member].registered_at

    # --- periodic passes -------------------------------------------------------------------------

    def elect_preferred(self) -> ControllerResult[None]:
        """Return the records that give leaderships back to preferred leaders that can lead, at most
        ``MAX_ELECTIONS_PER_PASS``.
        """
        able = (key for key in self._index.imbalanced if self._may_preferred_lead(key))
        return self._pass(able, Election.PREFERRED)

    def _may_preferred_lead(self, key: TopicIdPartition) -> bool:
        """Return whether the preferred leader can be elected.

        This check is cheaper than an election. A dead broker may be preferred in very many
        partitions.
        """
        partition = self._partition(key)
        preferred, directory_id = partition.preferred_leader, partition.directories[0]
        return (
            preferred in partition.isr
            and self._cluster.acceptance(preferred, directory_id) is Acceptance.ACCEPTABLE
        )

    def elect_unclean(self) -> ControllerResult[None]:
        """Return the records that elect leaders by unclean election where topics allow it, at most
        ``MAX_ELECTIONS_PER_PASS``.
        """
        rules_of = rules_by_topic(self._state, self._rules_of)
        allowed = [
            key for key in self._index.leaderless if rules_of(key.topic_id).may_elect_unclean
        ]
        return self._pass(allowed, Election.UNCLEAN)

    def _pass(self, keys: Iterable[TopicIdPartition], election: Election) -> ControllerResult[None]:
        rules_of = rules_by_topic(self._state, self._rules_of)
        records: list[PartitionChangeRecord] = []
        for key in keys:
            record = change_partition(
                key,
                self._partition(key),
                rules=rules_of(key.topic_id),
                election=election,
                acceptance=self._cluster.acceptance,
            )
            if record is not None:
                records.append(record)
            if len(records) == MAX_ELECTIONS_PER_PASS:
                break
        return ControllerResult(records=tuple(records), response=None, is_atomic=False)

    # --- shared ----------------------------------------------------------------------------------

    def _partition(self, key: TopicIdPartition) -> PartitionRegistration:
        return self._state.topics[key.topic_id].partitions[key.partition]


def _is_accepted(
    partition: PartitionRegistration, member: BrokerId, acceptance: AcceptanceOf
) -> bool:
    directory_id = partition.directory_of(member)
    return directory_id is not None and acceptance(member, directory_id) is not Acceptance.REFUSED


def _part(
    former: BrokerRegistration, changes: Sequence[PartitionChangeRecord]
) -> ControllerResult[BrokerRegistrationResponse]:
    """Return the changes before a registration that is decided in parts."""
    response = BrokerRegistrationResponse(broker_epoch=former.epoch)
    return ControllerResult(
        records=tuple(changes), response=response, is_atomic=False, is_part=True
    )


def _keys_of(changes: Iterable[PartitionChangeRecord]) -> dict[TopicIdPartition, None]:
    """Return the changed partitions, in order."""
    return {TopicIdPartition(change.topic_id, change.partition_id): None for change in changes}


def _why_stale(
    sender: BrokerId, requested: PartitionIsr, partition: PartitionRegistration
) -> ErrorCode | None:
    if (
        requested.leader_epoch > partition.leader_epoch
        or requested.partition_epoch > partition.partition_epoch
    ):
        # The sender knows more than this controller: it is not the active one any more.
        return ErrorCode.NOT_CONTROLLER
    if requested.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if requested.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return None


def _is_well_formed(requested: PartitionIsr, partition: PartitionRegistration) -> bool:
    return (
        len(requested.isr) == len(requested.isr_broker_epochs) == len(set(requested.isr))
        and partition.leader in requested.isr
        and set(requested.isr) <= set(partition.replicas)
    )


def _altered(
    key: TopicIdPartition, partition: PartitionRegistration, sender: BrokerId
) -> AlteredPartition:
    if partition.leader != sender:
        # The change completed a reassignment whose end took the leadership from the sender, or it
        # added a member that leads in place of a leader of last resort.
        return AlteredPartition(
            topic_id=key.topic_id,
            partition=key.partition,
            error_code=ErrorCode.NEW_LEADER_ELECTED,
        )
    return AlteredPartition(
        topic_id=key.topic_id,
        partition=key.partition,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=partition.isr,
    )
