"""``ReplicaManager``: which replicas live here, in which role, in which directory.

* Metadata comes in as deltas; roles change at once and without an ``await``. What takes a disk
  (new logs, removed logs) is returned as work, so that a sick directory holds up nobody else.
* Where a replica belongs is decided in directory_reconcile.py, what its role means in partition.py.
* After every ``await`` the replica is looked up again: it may be gone, or its directory.
* A dead directory takes its replicas offline at once, and everything that waits for them ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from kraftjbod.broker.assignments_manager import AssignmentsManager
from kraftjbod.broker.directory_reconcile import (
    Assign,
    Create,
    CreateChosen,
    KeepAsIs,
    LocalCopy,
    LocalDirs,
    RemoveStray,
    WaitOffline,
    Wanted,
    reconcile,
)
from kraftjbod.broker.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.broker.metadata_cache import MetadataCache
from kraftjbod.broker.partition import Partition, RoleChange
from kraftjbod.broker.topic_configs import TopicConfigs
from kraftjbod.core.errors import ErrorCode, OperatingError, OverloadedError
from kraftjbod.core.ids import (
    LOST_DIR,
    NO_LEADER,
    BrokerId,
    DirectoryId,
    TopicIdPartition,
    TopicPartition,
)
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.core.timing import Clock, ExponentialBackoff
from kraftjbod.metadata.records import ResourceType
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.metadata.state import MetadataDelta
from kraftjbod.storage.log_dir import LogDir
from kraftjbod.storage.log_handle import LogHandle
from kraftjbod.storage.log_manager import LogManager


@dataclass(slots=True)
class ReplicaChanges:
    """What a delta leaves to do: for the fetchers at once, for the disks in their own time."""

    follow: list[HostedReplica] = field(default_factory=list)
    unfollow: list[TopicPartition] = field(default_factory=list)
    create: list[HostedReplica] = field(default_factory=list)
    delete: list[TopicPartition] = field(default_factory=list)
    """Their topic is gone, or the replica moved to another broker."""
    set_aside: list[TopicPartition] = field(default_factory=list)
    """Copies that nobody wants and nobody may serve."""


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
        clock: Clock,
        backoff: ExponentialBackoff,
        metrics: Metrics,
        replica_lag_time_max_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._logs = logs
        self._cache = cache
        self._topic_configs = topic_configs
        self._assignments = assignments
        self._clock = clock
        self._backoff = backoff
        self._replica_lag_time_max_ms = replica_lag_time_max_ms
        #: Logs on their way out; a new one of the same name waits for that.
        self._leaving: dict[TopicPartition, asyncio.Event] = {}
        #: Logs being made; one for a topic that took over the name waits for that.
        self._making: dict[TopicPartition, asyncio.Event] = {}
        self._log = get_logger(component="replica_manager")
        metrics.gauge("OfflineLogDirectoryCount", lambda: len(logs.offline_dirs()))

    # --- metadata --------------------------------------------------------------------------------

    def apply_configs(self) -> None:
        """Let the logs be loaded with their topics' own configuration."""
        for resource_type, name in self._cache.state.configs:
            if resource_type is ResourceType.TOPIC:
                self.config_changed(name)

    async def resolve_duplicates(self) -> None:
        """Choose among several copies of one replica: the one that metadata names, or else the
        longest. Where metadata names a directory that is offline, none of them is served."""
        for topic_partition, copies in list(self._logs.duplicates.items()):
            registration = self._cache.state.partition_named(topic_partition)
            named = None if registration is None else registration.directory_of(self._broker_id)
            winner = max(copies, key=lambda h: (h.log_dir.directory_id == named, h.log_end_offset))
            is_elsewhere = named in _ids(self._logs.offline_dirs())
            if not is_elsewhere:
                await self._logs.resolve(topic_partition, winner)

    def apply_all(self) -> ReplicaChanges:
        """The first look at the metadata, once all logs are loaded: what is here, what is missing.

        Copies that metadata knows nothing of are set aside.
        """
        changes = ReplicaChanges()
        for key, registration in self._cache.state.partitions():
            topic_partition = self._named(key)
            if registration.directory_of(self._broker_id) is not None:
                self._host(topic_partition, key, registration, changes, is_new=False)
        for handle in list(self._logs.handles()):
            if self._replicas.get(handle.topic_partition) is None:
                self._set_aside(handle.topic_partition, changes)
        return changes

    def apply_delta(self, delta: MetadataDelta) -> ReplicaChanges:
        """Take over what changed."""
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
                self._apply_partition(key, before is None, registration, changes)
        return changes

    def config_changed(self, topic: str) -> None:
        self._topic_configs.forget(topic)
        registration = self._cache.state.topic(topic)
        if registration is None:
            return
        config = self._topic_configs.get(topic)
        self._logs.update_config(topic, config)
        for index in registration.partitions:
            replica = self._replicas.get(TopicPartition(topic, index))
            if replica is not None and replica.partition is not None:
                high_watermark = replica.partition.high_watermark
                replica.partition.set_min_insync_replicas(config.min_insync_replicas)
                self._replicas.in_sync_set_changed(replica, high_watermark)

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
            replica.registration = registration
            if replica.partition is not None:
                self._apply_role(replica, changes)
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
        """Begin to host a replica: with the copy that is here, or with a log to be created."""
        replica = HostedReplica(topic_partition, key.topic_id, registration, is_new=is_new)
        self._replicas.add(replica)
        handle = self._present_copy(topic_partition)
        for action in reconcile(self._wanted(replica), _copy_of(handle), self._dirs()):
            match action:
                case RemoveStray():
                    self._set_aside(topic_partition, changes)
                    handle = None
                case Create() | CreateChosen():
                    changes.create.append(replica)
                case Assign() | KeepAsIs():
                    if handle is not None:
                        self._open(replica, handle, changes)
                    else:
                        self._stay_offline(replica, action)
                case WaitOffline():
                    self._stay_offline(replica, action)
                case _:
                    assert_never(action)

    def _stay_offline(
        self, replica: HostedReplica, action: Assign | KeepAsIs | WaitOffline
    ) -> None:
        """The replica may live in a directory that is offline: make nothing in its place."""
        replica.is_offline = True
        self._log.warning("replica_awaits_offline_dir", partition=str(replica.topic_partition))
        if isinstance(action, Assign):
            self._assignments.assign(replica.key, action.directory_id)

    def _stop_hosting(
        self, replica: HostedReplica, code: ErrorCode, changes: ReplicaChanges
    ) -> None:
        self._replicas.remove(replica)
        self._replicas.end_waits(replica, code)
        changes.unfollow.append(replica.topic_partition)
        if replica.handle is not None:
            self._leaving[replica.topic_partition] = asyncio.Event()
            changes.delete.append(replica.topic_partition)

    def _set_aside(self, topic_partition: TopicPartition, changes: ReplicaChanges) -> None:
        self._leaving[topic_partition] = asyncio.Event()
        changes.set_aside.append(topic_partition)

    # --- roles -----------------------------------------------------------------------------------

    def _open(self, replica: HostedReplica, handle: LogHandle, changes: ReplicaChanges) -> None:
        """Give a replica its log, and the role that metadata has for it."""
        config = self._topic_configs.get(replica.topic_partition.topic)
        replica.handle = handle
        replica.partition = Partition(
            topic_partition=replica.topic_partition,
            topic_id=replica.topic_id,
            broker_id=self._broker_id,
            log_start_offset=handle.log_start_offset,
            log_end_offset=handle.log_end_offset,
            checkpointed_high_watermark=handle.checkpointed_high_watermark,
            min_insync_replicas=config.min_insync_replicas,
            replica_lag_time_max_ms=self._replica_lag_time_max_ms,
        )
        self._correct_assignment(replica, handle)
        self._apply_role(replica, changes)

    def _apply_role(self, replica: HostedReplica, changes: ReplicaChanges) -> None:
        partition, handle = replica.partition, replica.handle
        assert partition is not None, replica
        high_watermark = partition.high_watermark
        change = partition.apply(
            replica.registration,
            log_end_offset=partition.log_end_offset if handle is None else handle.log_end_offset,
            now_ms=self._clock.now_ms(),
        )
        match change:
            case RoleChange.LEADER:
                changes.unfollow.append(replica.topic_partition)
                self._end_waits_of_old_epoch(replica)
            case RoleChange.FOLLOWER:
                self._end_waits_of_old_epoch(replica)
                if partition.leader == NO_LEADER:
                    changes.unfollow.append(replica.topic_partition)
                else:
                    changes.follow.append(replica)
            case RoleChange.NONE | RoleChange.STALE:
                pass
            case _:
                assert_never(change)
        self._replicas.in_sync_set_changed(replica, high_watermark)

    def _end_waits_of_old_epoch(self, replica: HostedReplica) -> None:
        self._replicas.end_waits(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _correct_assignment(self, replica: HostedReplica, handle: LogHandle) -> None:
        """Tell the controller where the replica is, if it believes something else."""
        if not handle.log_dir.is_online:
            return  # Its end is on the way to :meth:`mark_offline`.
        for action in reconcile(self._wanted(replica), _copy_of(handle), self._dirs()):
            if isinstance(action, Assign):
                self._assignments.assign(replica.key, action.directory_id)

    # --- logs ------------------------------------------------------------------------------------

    async def create_log(self, replica: HostedReplica) -> ReplicaChanges:
        """Make the log of a new replica; what is to be followed then.

        Goes on trying, in another directory if the first one dies, until the replica has a log,
        has to wait for a directory, or is not wanted any more.
        """
        changes, failures = ReplicaChanges(), 0
        topic_partition = replica.topic_partition
        while self._replicas.is_current(replica) and replica.handle is None:
            if other := self._leaving.get(topic_partition) or self._making.get(topic_partition):
                await other.wait()
                continue
            action = reconcile(self._wanted(replica), None, self._dirs())[0]
            if not isinstance(action, Create | CreateChosen):
                assert isinstance(action, Assign | WaitOffline), action
                self._stay_offline(replica, action)
                break
            directory_id = action.directory_id if isinstance(action, Create) else None
            self._making[topic_partition] = asyncio.Event()
            try:
                await self._create(replica, directory_id, changes)
            except OperatingError as e:
                self._log.warning(
                    "replica_creation_failed", partition=str(topic_partition), reason=str(e)
                )
            finally:
                self._making.pop(topic_partition).set()
            if replica.handle is None and self._replicas.is_current(replica):
                failures += 1
                await asyncio.sleep(self._backoff.wait_ms(failures) / 1000)
        return changes

    async def _create(
        self, replica: HostedReplica, directory_id: DirectoryId | None, changes: ReplicaChanges
    ) -> None:
        """Make the log and open the replica, unless either is gone by then."""
        topic_partition = replica.topic_partition
        handle = await self._logs.create(
            topic_partition,
            replica.topic_id,
            directory_id,
            self._topic_configs.get(topic_partition.topic),
        )
        if not self._replicas.is_current(replica):
            await self._remove(topic_partition, is_wanted_nowhere=False)
        elif handle.log_dir.is_online:
            self._open(replica, handle, changes)

    async def delete_log(self, topic_partition: TopicPartition) -> None:
        await self._let_go(topic_partition, is_wanted_nowhere=False)

    async def set_aside_log(self, topic_partition: TopicPartition) -> None:
        """Rename a stray; it is kept, but never served."""
        self._log.warning("stray_replica_set_aside", partition=str(topic_partition))
        await self._let_go(topic_partition, is_wanted_nowhere=True)

    async def _let_go(self, topic_partition: TopicPartition, *, is_wanted_nowhere: bool) -> None:
        try:
            await self._remove(topic_partition, is_wanted_nowhere=is_wanted_nowhere)
        finally:
            self._leaving.pop(topic_partition).set()

    async def _remove(self, topic_partition: TopicPartition, *, is_wanted_nowhere: bool) -> None:
        """Take the log that is here out of service; once more where too much waits for its dir."""
        failures = 0
        while True:
            try:
                if is_wanted_nowhere:
                    await self._logs.rename_stray(topic_partition)
                else:
                    await self._logs.delete(topic_partition)
            except OverloadedError:
                failures += 1
                await asyncio.sleep(self._backoff.wait_ms(failures) / 1000)
                continue
            except OperatingError as e:
                # The directory died: what lies in it is seen to when it comes back.
                self._log.warning(
                    "replica_removal_failed", partition=str(topic_partition), reason=str(e)
                )
            return

    async def checkpoint_high_watermarks(self) -> None:
        """Write what is committed to each directory's checkpoint."""
        await self._logs.checkpoint_high_watermarks(
            {
                replica.topic_partition: replica.partition.high_watermark
                for replica in self._replicas
                if replica.partition is not None and replica.handle is not None
            }
        )

    # --- directories -----------------------------------------------------------------------------

    def mark_offline(self, log_dir: LogDir) -> list[HostedReplica]:
        """The directory died: its replicas end here, and everything that waits for them."""
        lost = [
            replica
            for replica in self._replicas
            if replica.handle is not None and replica.handle.log_dir is log_dir
        ]
        for replica in lost:
            assert replica.partition is not None, replica
            replica.partition.mark_offline(log_dir.directory_id)
            replica.is_offline = True
            replica.handle = None
            self._replicas.end_waits(replica, ErrorCode.KAFKA_STORAGE_ERROR)
        return lost

    def leads_any(self, replicas: Iterable[HostedReplica]) -> bool:
        """Whether metadata still has this broker lead one of them."""
        return any(
            replica.registration.leader == self._broker_id and self._replicas.is_current(replica)
            for replica in replicas
        )

    # --- looking around --------------------------------------------------------------------------

    def _named(self, key: TopicIdPartition) -> TopicPartition:
        return TopicPartition(self._cache.state.topics[key.topic_id].name, key.partition)

    def _present_copy(self, topic_partition: TopicPartition) -> LogHandle | None:
        """The log that is here and may be used; one in a dying directory counts as gone."""
        if topic_partition in self._leaving or topic_partition in self._making:
            return None
        handle = self._logs.get(topic_partition)
        return handle if handle is not None and handle.log_dir.is_online else None

    def _wanted(self, replica: HostedReplica) -> Wanted:
        registration = replica.registration
        return Wanted(
            topic_id=replica.topic_id,
            directory_id=registration.directory_of(self._broker_id) or LOST_DIR,
            is_new=replica.is_new,
            is_in_isr=self._broker_id in registration.isr,
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
