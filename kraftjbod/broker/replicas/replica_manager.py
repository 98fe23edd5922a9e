"""LOOP. ``ReplicaManager``: the replicas on this broker, their roles and their directories.

* Metadata arrives as deltas. Roles change at once and without an ``await``. Disk operations (new
  and removed logs) are returned as work, so that a bad directory does not block other replicas.
* directory_reconcile.py decides about a replica's directory, partition.py about its role.
* After every ``await`` the replica is looked up again: the replica or its directory may be gone.
* A failed directory takes its replicas offline at once and ends all waits for them. In an impaired
  directory (KIP-928) replicas keep log and role, and written records are still replicated, but the
  replicas do not follow a leader until the directory recovers.
* A replica without a log that may not get one yet is reconciled again whenever its metadata
  changes.

replica_maker.py creates logs. alter_log_dirs_manager.py moves replicas between directories: this
module only finds the moves to resume and to end, and handles a completed move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import assert_never

from kraftjbod.broker.cluster.assignments_manager import AssignmentsManager
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.broker.partitions.partition import Partition, RoleChange
from kraftjbod.broker.partitions.replica_states import ReplicaEvent, ReplicaState
from kraftjbod.broker.replicas.directory_reconcile import (
    Action,
    AdoptFuture,
    Assign,
    Create,
    CreateChosen,
    DropFuture,
    KeepAsIs,
    LocalCopy,
    LocalDirs,
    RemoveStray,
    ResumeMove,
    WaitOffline,
    WaitOutOfSync,
    Wanted,
    reconcile,
)
from kraftjbod.broker.replicas.doubtful_copies import DoubtfulCopies
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.broker.replicas.leaderships import Leaderships
from kraftjbod.broker.replicas.leftover_copies import LeftoverCopies
from kraftjbod.broker.replicas.replica_assignments import ReplicaAssignments
from kraftjbod.broker.replicas.replica_changes import ReplicaChanges
from kraftjbod.broker.replicas.replica_maker import ReplicaMaker
from kraftjbod.broker.replicas.replica_removals import ReplicaRemovals
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import (
    LOST_DIR,
    NO_LEADER,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    TopicIdPartition,
    TopicPartition,
)
from kraftjbod.core.loop.timing import Clock, ExponentialBackoff
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.metadata.records import ResourceType
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.metadata.state import MetadataDelta
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas.requested_moves import RequestedMoves


class ReplicaManager:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        replicas: HostedReplicas,
        logs: LogManager,
        cache: MetadataCache,
        topic_configs: TopicConfigs,
        assignments: AssignmentsManager,
        doubtful: DoubtfulCopies,
        clock: Clock,
        backoff: ExponentialBackoff,
        removals: ReplicaRemovals,
        leftovers: LeftoverCopies,
        metrics: Metrics,
        requested_moves: RequestedMoves,
        leaderships: Leaderships,
        replica_lag_time_max_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._logs = logs
        self._cache = cache
        self._topic_configs = topic_configs
        self._assignments = ReplicaAssignments(
            broker_id=broker_id, cache=cache, logs=logs, assignments=assignments
        )
        self._doubtful = doubtful
        self._clock = clock
        self._replica_lag_time_max_ms = replica_lag_time_max_ms
        #: Removals in progress. A new log of the same name waits for them.
        self._removals = removals
        self._requested_moves = requested_moves
        self._leaderships = leaderships
        self._maker = ReplicaMaker(
            broker_id=broker_id,
            replicas=replicas,
            removals=removals,
            leftovers=leftovers,
            logs=logs,
            topic_configs=topic_configs,
            requested_moves=requested_moves,
            backoff=backoff,
            next_step=lambda replica: self._reconcile(replica, None)[-1],
            stay_offline=self._stay_offline,
        )
        #: Whether the cluster's metadata had this broker's directories at the last pass.
        self._knew_dirs = False
        self._log = get_logger(component="replica_manager")
        metrics.gauge("OfflineLogDirectoryCount", lambda: len(logs.offline_dirs()))

    # --- metadata --------------------------------------------------------------------------------

    def apply_configs(self) -> None:
        """Apply the topics' configurations in the metadata. Call it before the logs are loaded."""
        for resource_type, name in self._cache.state.configs:
            if resource_type is ResourceType.TOPIC:
                self.config_changed(name)

    def apply_all(self) -> ReplicaChanges:
        """Apply all metadata once, after all logs are loaded; return the work that follows.

        Copies that the metadata does not have are set aside as strays.

        O(replicas), about 40 us each, in one event loop iteration. The broker is fenced and serves
        no client yet. Slices would need a rule for each event in between: a delta, or a directory
        that returns and would set aside the copies of replicas that are not hosted yet.
        """
        changes = ReplicaChanges()
        self._knew_dirs = self._cache.state.knows_dirs_of(self._broker_id)
        for key, registration in self._cache.state.partitions():
            topic_partition = self._named(key)
            if registration.directory_of(self._broker_id) is not None:
                self._host(topic_partition, key, registration, changes, is_new=False)
        for handle in list(self._logs.handles()):
            if self._replicas.get(handle.topic_partition) is None:
                self._set_aside(handle.topic_partition, changes)
        for future in self._logs.futures():
            if self._replicas.get(future.topic_partition) is None:
                changes.drop_future.append(future.topic_partition)
        return changes

    def apply_delta(self, delta: MetadataDelta) -> ReplicaChanges:
        """Apply a metadata delta; return the work that follows.

        O(``delta``), about 40 us for each replica here. The loader limits the partitions of a
        delta, unless one entry has more.
        """
        changes = ReplicaChanges()
        for topic_id, topic in delta.deleted_topics.items():
            self._topic_configs.forget(topic.name)
            for index in topic.partitions:
                gone = self._replicas.get(TopicPartition(topic.name, index))
                if gone is not None and gone.topic_id == topic_id:
                    self._stop_hosting(gone, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, changes)
        for key, before in delta.partitions.items():
            registration = self._cache.state.partition(key)
            if registration is not None:
                was_here = before is not None and before.directory_of(self._broker_id) is not None
                self._apply_partition(key, not was_here, registration, changes)
        self._note_registered(delta.registered)
        if self._knew_dirs != self._cache.state.knows_dirs_of(self._broker_id):
            self._knew_dirs = not self._knew_dirs
            self._assign_all()
        self._replicas.recheck_deletions()
        return changes

    def _note_registered(self, brokers: Collection[BrokerId]) -> None:
        """Note that brokers registered again: earlier reports of their followers do not count any
        more."""
        moment = self._replicas.moments.next()
        for replica in self._replicas if brokers else ():
            if replica.partition is not None:
                for broker_id in brokers:
                    replica.partition.broker_registered(broker_id, moment)

    def config_changed(self, topic: str) -> ReplicaChanges:
        """Apply a changed topic configuration; return the work that it makes possible."""
        changes = ReplicaChanges()
        self._topic_configs.forget(topic)
        registration = self._cache.state.topic(topic)
        if registration is None:
            return changes
        config = self._topic_configs.get(topic)
        self._logs.update_config(topic, config, registration.partitions)
        for index in registration.partitions:
            replica = self._replicas.get(TopicPartition(topic, index))
            if replica is None:
                continue
            if replica.partition is not None:
                high_watermark = replica.partition.high_watermark
                replica.partition.set_min_insync_replicas(config.min_insync_replicas)
                self._replicas.in_sync_set_changed(replica, high_watermark)
            if replica.lacks_a_log():
                self._settle(replica, changes)
        return changes

    def waiting_replicas(self, *, offline_too: bool) -> list[tuple[HostedReplica, ReplicaState]]:
        """Return the replicas that wait for a directory, with their states.

        :param offline_too: include replicas of offline directories.
        """
        awaited = {ReplicaState.HELD_BACK}
        if offline_too:
            awaited.add(ReplicaState.OFFLINE)
        return [(replica, replica.state) for replica in self._replicas if replica.state in awaited]

    def reconcile_waiting(
        self, waiting: Iterable[tuple[HostedReplica, ReplicaState]]
    ) -> ReplicaChanges:
        """Reconcile the replicas whose state is still the one in ``waiting``.

        O(``waiting``), about 40 us each: divide long lists.
        """
        changes = ReplicaChanges()
        for replica, state in waiting:
            if replica.state is state:
                self._settle(replica, changes)
        return changes

    def reconcile_copies(self) -> ReplicaChanges:
        """Reconcile the copies on disk, after a directory returned from OFFLINE or was forgotten.

        O(replicas), about 1 us each.
        """
        changes = ReplicaChanges()
        self._reconcile_copies(changes)
        self._assign_all()
        return changes

    def _reconcile_copies(self, changes: ReplicaChanges) -> None:
        """Set aside unwanted copies, and resume moves that the failure of their target
        interrupted."""
        for handle in self._logs.handles():
            tp = handle.topic_partition
            if self._replicas.get(tp) is None and self._present_copy(tp) is not None:
                self._set_aside(tp, changes)
        for future in self._logs.futures():
            replica = self._replicas.get(future.topic_partition)
            if replica is None or replica.topic_id != future.topic_id:
                changes.drop_future.append(future.topic_partition)
            elif replica.handle is not None and not replica.is_assigned_by_move:
                self._resume_move(replica, replica.handle, changes)

    def _resume_move(
        self, replica: HostedReplica, handle: LogHandle, changes: ReplicaChanges
    ) -> None:
        """Resume the replica's move if its future copy is in an attached directory."""
        future = self._logs.future(replica.topic_partition)
        if future is not None and future.log_dir is handle.log_dir:
            changes.drop_future.append(replica.topic_partition)
            return
        for action in self._reconcile(replica, handle):
            if isinstance(action, ResumeMove):
                changes.resume.append(self._assignments.to_resume(replica, action))

    def _apply_partition(
        self,
        key: TopicIdPartition,
        is_new: bool,
        registration: PartitionRegistration,
        changes: ReplicaChanges,
    ) -> None:
        topic_partition = self._named(key)
        replica = self._replicas.get(topic_partition)
        if registration.directory_of(self._broker_id) is None:
            if replica is not None:
                self._stop_hosting(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER, changes)
        elif replica is None:
            self._host(topic_partition, key, registration, changes, is_new=is_new)
        else:
            named = registration.directory_of(self._broker_id)
            is_reported = replica.registration.directory_of(self._broker_id) != named
            replica.registration = registration
            if replica.partition is not None:
                self._apply_role(replica, changes)
            if replica.lacks_a_log(is_reported=is_reported):
                self._settle(replica, changes)
            if replica.handle is not None:
                self._correct_assignment(replica, replica.handle)

    def _host(
        self,
        topic_partition: TopicPartition,
        key: TopicIdPartition,
        registration: PartitionRegistration,
        changes: ReplicaChanges,
        *,
        is_new: bool,
    ) -> None:
        """Start hosting a replica that the metadata has here."""
        replica = HostedReplica(topic_partition, key.topic_id, registration, is_new=is_new)
        self._replicas.add(replica)
        self._settle(replica, changes)

    def _settle(self, replica: HostedReplica, changes: ReplicaChanges) -> None:
        """Open the replica's existing log, queue the creation of one, or leave the replica
        offline."""
        topic_partition = replica.topic_partition
        handle = self._present_copy(topic_partition)
        for action in self._reconcile(replica, handle):
            match action:
                case RemoveStray():
                    self._set_aside(topic_partition, changes)
                    handle = None
                case DropFuture():
                    changes.drop_future.append(topic_partition)
                case Create() | CreateChosen() | AdoptFuture():
                    replica.note(ReplicaEvent.WANTED)
                    changes.create.append(replica)
                case Assign() | KeepAsIs() if handle is not None:
                    self._doubtful.met(replica, handle)
                    self._open(replica, handle, changes)
                case ResumeMove():
                    changes.resume.append(self._assignments.to_resume(replica, action))
                case Assign() | KeepAsIs() | WaitOffline() | WaitOutOfSync():
                    self._stay_offline(replica, action)
                case _:
                    assert_never(action)

    def _stay_offline(self, replica: HostedReplica, action: Action) -> None:
        """Mark the replica offline, report it if ``action`` says so, and log the reason once.

        Its directory is offline or its copy is lost, and no log may be created.
        """
        replica.note(ReplicaEvent.LOST)
        if isinstance(action, Assign):
            self._assignments.assign_without_log(replica, action.directory_id)
        if replica.waits_because_of == action:
            return  # Already logged.
        replica.waits_because_of = action
        partition = str(replica.topic_partition)
        match action:
            case Assign():
                self._log.warning("replica_reported_lost", partition=partition)
            case WaitOutOfSync():
                self._log.error(
                    "last_in_sync_replica_lost",
                    partition=partition,
                    advice="bring its disk back, allow unclean elections for the topic, or "
                    "delete the topic",
                )
            case _:
                self._log.warning("replica_awaits_offline_dir", partition=partition)

    def _stop_hosting(
        self, replica: HostedReplica, code: ErrorCode, changes: ReplicaChanges
    ) -> None:
        self._replicas.remove(replica)
        replica.note(ReplicaEvent.LEFT)
        self._leaderships.note_end(replica)
        self._replicas.end_waits(replica, code)
        changes.unfollow.append(replica.topic_partition)
        changes.left.append(replica.topic_partition)
        has_future = self._logs.future(replica.topic_partition) is not None
        # A removal in progress also removes the future copy, which belongs to an earlier replica.
        is_leaving = replica.topic_partition in self._removals
        if replica.handle is not None or (has_future and not is_leaving):
            self._removals.begin_removal(replica.topic_partition)
            changes.delete.append(replica.topic_partition)

    def _set_aside(self, topic_partition: TopicPartition, changes: ReplicaChanges) -> None:
        self._removals.begin_removal(topic_partition)
        changes.set_aside.append(topic_partition)

    # --- roles -----------------------------------------------------------------------------------

    def _open(self, replica: HostedReplica, handle: LogHandle, changes: ReplicaChanges) -> None:
        """Attach the log to the replica and apply its role in the metadata."""
        config = self._topic_configs.get(replica.topic_partition.topic)
        replica.handle = handle
        # From now on a failed disk may have its copy.
        replica.is_new = False
        replica.waits_because_of = None
        replica.note(ReplicaEvent.OPENED)
        replica.note_dir_state()
        replica.partition = Partition(
            topic_partition=replica.topic_partition,
            topic_id=replica.topic_id,
            broker_id=self._broker_id,
            log_start_offset=handle.log_start_offset,
            log_end_offset=handle.log_end_offset,
            checkpointed_high_watermark=handle.checkpointed_high_watermark,
            min_insync_replicas=config.min_insync_replicas,
            replica_lag_time_max_ms=self._replica_lag_time_max_ms,
            led_in=replica.led_in,
        )
        self._correct_assignment(replica, handle)
        self._apply_role(replica, changes)
        if replica.partition.awaits_new_epoch:
            self._log.warning(
                "replica_awaits_new_leader_epoch",
                partition=str(replica.topic_partition),
                leader_epoch=replica.partition.leader_epoch,
            )

    def apply_role(self, replica: HostedReplica) -> ReplicaChanges:
        """Apply the replica's role in the metadata, after the operation that delayed it has ended.
        Return the work that follows.
        """
        changes = ReplicaChanges()
        if self._replicas.is_current(replica) and replica.partition is not None:
            self._apply_role(replica, changes)
        return changes

    def _apply_role(self, replica: HostedReplica, changes: ReplicaChanges) -> None:
        partition, handle = replica.partition, replica.handle
        assert partition is not None, replica
        will_lead = replica.registration.leader == self._broker_id and not partition.is_leader
        if handle is not None and handle.unsettled.has_role_wait(will_lead=will_lead):
            # A leader's log must not lose records, and the new epoch must start at the log end.
            changes.unsettled.append(replica)
            if will_lead:
                changes.unfollow.append(replica.topic_partition)
            return
        if will_lead and self._doubtful.is_leaving(replica):
            return  # The pending LOST report triggers another election.
        high_watermark = partition.high_watermark
        change = partition.apply(
            replica.registration,
            log_end_offset=partition.log_end_offset if handle is None else handle.log_end_offset,
            now_ms=self._clock.now_ms(),
            moment=self._replicas.moments.next(),
        )
        match change:
            case RoleChange.LEADER:
                changes.unfollow.append(replica.topic_partition)
                self._replicas.end_waits(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            case RoleChange.FOLLOWER:
                self._replicas.end_waits(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if replica.should_follow:
                    changes.follow.append(replica)
                elif partition.leader == NO_LEADER:
                    changes.unfollow.append(replica.topic_partition)
            case RoleChange.NONE | RoleChange.STALE:
                pass
            case _:
                assert_never(change)
        self._leaderships.note(replica)
        self._replicas.in_sync_set_changed(replica, high_watermark)

    def _correct_assignment(self, replica: HostedReplica, handle: LogHandle) -> None:
        """Report the replica's directory to the controller if the metadata names another one."""
        if not handle.log_dir.is_online:
            return  # :meth:`mark_offline` will handle the failure.
        if replica.is_assigned_by_move:
            self._assignments.assign_moving(replica)
            return
        if replica.registration.directory_of(self._broker_id) == handle.log_dir.directory_id:
            # The usual case, decided without a reconciliation: this runs for all replicas at once.
            return
        for action in self._reconcile(replica, handle):
            if isinstance(action, Assign):
                self._assignments.assign(replica, action.directory_id)

    def _assign_all(self) -> None:
        for replica in self._replicas:
            if replica.handle is not None:
                self._correct_assignment(replica, replica.handle)

    # --- moves between directories ---------------------------------------------------------------

    def prefer_directory(
        self, topic_partition: TopicPartition, directory_id: DirectoryId | None
    ) -> None:
        """Note the directory in which to create a replica that does not exist here yet; see
        :meth:`ReplicaMaker.prefer_directory`. None removes the note.
        """
        self._maker.prefer_directory(topic_partition, directory_id)

    def promoted(self, replica: HostedReplica, handle: LogHandle) -> None:
        """Attach the future copy, which has replaced the replica's log and has the same records.

        The caller stopped the replica's fetching before, and restarts it afterwards if it follows.
        """
        if not self._replicas.is_current(replica):
            return  # The replica left this broker meanwhile; its log is about to be removed.
        if not handle.log_dir.is_online:
            self._lose(replica, handle.log_dir)
        elif replica.is_offline:
            # The old directory failed meanwhile and took the replica offline, but this copy is
            # complete.
            replica.led_in = LeaderEpoch(-1)
            changes = ReplicaChanges()
            self._open(replica, handle, changes)
            assert not changes.follow, "not before its gate opens"
        else:
            assert replica.partition is not None, replica
            handle.high_watermark = replica.partition.high_watermark
            replica.handle = handle
            replica.note_dir_state()
        self._leaderships.publish()

    # --- logs ------------------------------------------------------------------------------------

    async def create_log(self, replica: HostedReplica) -> ReplicaChanges:
        """Create the log of a new replica; return the work that follows."""
        changes = ReplicaChanges()
        handle = await self._maker.make(replica)
        if handle is not None:
            self._open(replica, handle, changes)
            # A directory with its future copy may have been attached meanwhile.
            self._resume_move(replica, handle, changes)
        return changes

    async def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks to each directory's checkpoint.

        Entries of replicas that neither the metadata nor the disk has here are removed. Otherwise a
        new topic with the same name would look like one that lost its log.
        """
        await self._logs.checkpoint_high_watermarks(
            {
                replica.topic_partition: replica.partition.high_watermark
                for replica in self._replicas
                if replica.partition is not None and replica.handle is not None
            },
            is_gone=lambda tp: not self._is_wanted(tp),
        )

    # --- directories -----------------------------------------------------------------------------

    def mark_offline(self, log_dir: LogDir) -> list[HostedReplica]:
        """Take the replicas of a failed directory offline and end all waits for them. Return
        them."""
        lost = self._replicas_in(log_dir)
        for replica in lost:
            self._lose(replica, log_dir)
        return lost

    def note_dir_state(self, log_dir: LogDir) -> list[HostedReplica]:
        """Apply a directory's impairment or recovery to its replicas, and wake their readers.

        Produces that wait for replication continue to wait: their records are written. Return the
        replicas.
        """
        replicas = self._replicas_in(log_dir)
        for replica in replicas:
            replica.note_dir_state()
            self._replicas.reading_changed(replica)
        return replicas

    def _replicas_in(self, log_dir: LogDir) -> list[HostedReplica]:
        return [
            replica
            for replica in self._replicas
            if replica.handle is not None and replica.handle.log_dir is log_dir
        ]

    def _lose(self, replica: HostedReplica, log_dir: LogDir) -> None:
        assert replica.partition is not None, replica
        if replica.partition.is_leader:
            replica.led_in = replica.partition.leader_epoch
        replica.partition.mark_offline(log_dir.directory_id)
        replica.note(ReplicaEvent.LOST)
        replica.handle = None
        self._leaderships.note_end(replica)
        self._replicas.end_waits(replica, ErrorCode.KAFKA_STORAGE_ERROR)

    def leads_in(self, directory_id: DirectoryId, lost: Collection[TopicPartition]) -> bool:
        """Return whether this broker still leads a replica in a failed directory, according to the
        metadata.

        A replica that has another log now is ignored.

        :param lost: the replicas in the directory when it failed. A controller that did not know
            of the failure may have assigned others to it since.
        """
        return any(
            replica.registration.leader == self._broker_id
            and (replica.handle is None or not replica.handle.log_dir.is_online)
            and (
                replica.topic_partition in lost
                or replica.registration.directory_of(self._broker_id) == directory_id
            )
            for replica in self._replicas
        )

    # --- lookups ---------------------------------------------------------------------------------

    def _is_wanted(self, topic_partition: TopicPartition) -> bool:
        topic = self._cache.state.topic(topic_partition.topic)
        registration = None if topic is None else topic.partitions.get(topic_partition.partition)
        return registration is not None and registration.directory_of(self._broker_id) is not None

    def _named(self, key: TopicIdPartition) -> TopicPartition:
        return TopicPartition(self._cache.state.topics[key.topic_id].name, key.partition)

    def _present_copy(self, topic_partition: TopicPartition) -> LogHandle | None:
        """Return the replica's log in an online directory, unless it is being removed or
        created."""
        if topic_partition in self._removals or topic_partition in self._maker:
            return None
        handle = self._logs.get(topic_partition)
        return handle if handle is not None and handle.log_dir.is_online else None

    def _reconcile(self, replica: HostedReplica, handle: LogHandle | None) -> tuple[Action, ...]:
        tp = replica.topic_partition
        future = None if tp in self._removals else self._logs.future(tp)
        building = None
        if future is not None and future.log_dir.is_online:
            building = LocalCopy(directory_id=future.log_dir.directory_id, topic_id=future.topic_id)
        return reconcile(self._wanted(replica), _copy_of(handle), building, self._dirs())

    def _wanted(self, replica: HostedReplica) -> Wanted:
        registration, tp = replica.registration, replica.topic_partition
        named = registration.directory_of(self._broker_id) or LOST_DIR
        return Wanted(
            topic_id=replica.topic_id,
            directory_id=named,
            is_new=replica.is_new,
            is_counted=registration.counts_on(self._broker_id),
            is_last=set(registration.holders) == {self._broker_id},
            was_made=self._logs.remembers(tp)
            or bool(self._logs.strays.strays_of(replica.key) or self._logs.orphans_of(replica.key)),
            may_lose_records=self._topic_configs.get(tp.topic).unclean_leader_election_enable,
            moved_from=self._requested_moves.source_of(replica.key, named),
        )

    def _dirs(self) -> LocalDirs:
        return LocalDirs(
            online=_ids(self._logs.online_dirs()), any_offline=bool(self._logs.offline_dirs())
        )


def _ids(log_dirs: Sequence[LogDir]) -> frozenset[DirectoryId]:
    return frozenset(log_dir.directory_id for log_dir in log_dirs)


def _copy_of(handle: LogHandle | None) -> LocalCopy | None:
    if handle is None:
        return None
    return LocalCopy(directory_id=handle.log_dir.directory_id, topic_id=handle.topic_id)
