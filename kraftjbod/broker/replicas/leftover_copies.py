"""LOOP. ``LeftoverCopies``: decides about copies that only the metadata can tell apart.

It runs after the logs are loaded and before a replica is hosted, and again for each directory that
is attached while the broker runs. Several current copies are also resolved when replica_maker.py
would create the replica:

* Of several current copies of one replica, the copy in the directory that the metadata names is
  served, else the longest. If the metadata names an offline directory, no copy is served.
* A copy that was being deleted, of a replica without a current copy, is restored if its directory
  is the one in the metadata and the replica is in sync. If the metadata has the replica here in any
  other way, the copy is kept aside, because it may be the only copy. replica_maker.py restores it
  when the replica would be created, and stray_retention.py deletes it when another copy makes it
  superfluous. Without such a replica it is deleted.
* A stray of a replica that the metadata has here is restored if there is no other copy. If the
  replica counts as in sync, the stray must have been set aside by metadata without the topic: that
  was older metadata, so no record was committed without the stray since. Otherwise the stray is
  restored once the replica does not count as in sync, so that it only has to catch up.
"""

from __future__ import annotations

from collections.abc import Callable

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import (
    MIGRATING_DIR,
    UNASSIGNED_DIR,
    BrokerId,
    TopicIdPartition,
    TopicPartition,
)
from kraftjbod.core.telemetry import get_logger
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas.dir_loading import Stray
from kraftjbod.storage.replicas.stray_mark import StrayReason
from kraftjbod.storage.replicas.swap_recovery import Orphan


class LeftoverCopies:
    def __init__(self, *, broker_id: BrokerId, logs: LogManager, cache: MetadataCache) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._cache = cache
        self._log = get_logger(component="leftover_copies")

    async def resolve(self, is_taken: Callable[[TopicPartition], bool] = lambda _: False) -> None:
        """Choose the copy to serve for each replica with several copies, and restore, keep or
        delete strays and copies whose deletion was interrupted. Failures are logged.

        :param is_taken: returns whether a replica is served or being created. No copy replaces such
            a replica, and its deleted copies of the same topic stay as they are.
        """
        await self._resolve_duplicates()
        for stray in self._logs.strays.all():
            tp = stray.topic_partition
            if tp is None or stray.topic_id is None or is_taken(tp):
                continue
            try:
                await self._resolve_stray(TopicIdPartition(stray.topic_id, tp.partition), tp)
            except OperatingError as e:
                self._log.warning("stray_not_taken_back", partition=str(tp), reason=str(e))
        for orphan in self._logs.orphans:
            if is_taken(orphan.topic_partition) and self._is_of_topic(orphan):
                continue
            try:
                await self._resolve_orphan(orphan)
            except OperatingError as e:
                self._log.warning(
                    "deleted_replica_not_restored",
                    partition=str(orphan.topic_partition),
                    reason=str(e),
                )

    async def _resolve_duplicates(self) -> None:
        for topic_partition in list(self._logs.duplicates):
            # A directory may have failed during the previous step and taken its copies offline.
            if topic_partition in self._logs.duplicates:
                await self.resolve_duplicate(topic_partition)

    async def resolve_duplicate(self, topic_partition: TopicPartition) -> None:
        """Serve one of several current copies of a replica and delete the others. No effect if the
        metadata names an offline directory.

        ``topic_partition`` must be in :attr:`LogManager.duplicates`. The copy may belong to another
        topic of that name, if no copy belongs to the present topic.
        """
        copies = self._logs.duplicates[topic_partition]
        topic = self._cache.state.topic(topic_partition.topic)
        registration = self._cache.state.partition_named(topic_partition)
        named = None if registration is None else registration.directory_of(self._broker_id)
        # A copy of an earlier topic with the same name does not count.
        ours = [h for h in copies if topic is not None and h.topic_id == topic.topic_id]
        winner = max(
            ours or copies,
            key=lambda h: (h.log_dir.directory_id == named, h.log_end_offset),
        )
        if named not in {log_dir.directory_id for log_dir in self._logs.offline_dirs()}:
            await self._logs.resolve(topic_partition, winner)

    async def _resolve_orphan(self, orphan: Orphan) -> None:
        tp = orphan.topic_partition
        registration = self._cache.state.partition_named(tp)
        named = None if registration is None else registration.directory_of(self._broker_id)
        if not self._is_of_topic(orphan) or registration is None or named is None:
            await self._logs.discard_deleted(orphan)
            return
        has_copy = self._logs.get(tp) is not None or tp in self._logs.duplicates
        is_named = named == orphan.log_dir.directory_id
        if is_named and registration.counts_on(self._broker_id) and not has_copy:
            self._log.warning("deleted_replica_restored", partition=str(tp), path=orphan.directory)
            await self._logs.restore_deleted(orphan)
        else:
            self._log.warning("deleted_replica_kept", partition=str(tp), path=orphan.directory)

    def _is_of_topic(self, orphan: Orphan) -> bool:
        """Return whether the copy belongs to the present topic of its name, not to an earlier
        one."""
        topic = self._cache.state.topic(orphan.topic_partition.topic)
        return topic is not None and topic.topic_id == orphan.topic_id

    # --- strays ----------------------------------------------------------------------------------

    async def _resolve_stray(self, key: TopicIdPartition, tp: TopicPartition) -> None:
        topic, registration = self._cache.state.topics.get(key.topic_id), None
        if topic is not None and topic.name == tp.topic:
            registration = topic.partitions.get(key.partition)
        if registration is None or registration.directory_of(self._broker_id) is None:
            return
        if tp in self._logs.duplicates or self._logs.future(tp) is not None:
            return
        if self._logs.orphans_of(key):
            return  # The creation of the replica chooses one of them.
        current = self._logs.get(tp)
        if current is not None and current.topic_id == key.topic_id:
            return
        stray = self._that_may_return(key, tp, registration)
        if stray is None:
            return
        if current is not None:
            # It belongs to an earlier topic of that name.
            log_id = self._cache.state.metadata_log_id
            await self._logs.rename_stray(tp, StrayReason.TOPIC_UNKNOWN, log_id)
        self._log.warning("stray_taken_back", partition=str(tp), path=stray.directory)
        await self._logs.strays.take_back(stray)

    def _that_may_return(
        self, key: TopicIdPartition, tp: TopicPartition, registration: PartitionRegistration
    ) -> Stray | None:
        strays = self._logs.strays.strays_of(key)
        named = registration.directory_of(self._broker_id)
        if registration.counts_on(self._broker_id):
            is_only = len(strays) == 1 and not self._logs.strays.unreadable(tp)
            if not is_only or not _has_all_committed_records(strays[0], registration):
                return None
            # The controller may have failed before it received the directory of the created
            # replica.
            is_undecided = named in (UNASSIGNED_DIR, MIGRATING_DIR)
            return strays[0] if is_undecided or strays[0].log_dir.directory_id == named else None
        online = {log_dir.directory_id for log_dir in self._logs.online_dirs()}
        if named not in online and self._logs.offline_dirs():
            return None  # The named copy may be in a directory that returns.
        return max(strays, key=lambda s: (s.log_dir.directory_id == named, s.size_bytes))


def _has_all_committed_records(stray: Stray, registration: PartitionRegistration) -> bool:
    """Return whether the stray has all committed records of a replica that counts as in sync."""
    if stray.mark is None:
        # It was set aside before marks existed. No other leader has been elected since the epoch of
        # its last record.
        return stray.last_epoch == registration.leader_epoch
    return stray.mark.reason is StrayReason.TOPIC_UNKNOWN
