"""LOOP. ``LeftoverCopies``: what to make of copies that cannot be told apart without the metadata.

After the logs are loaded and before anything is hosted, and again for each directory that comes
while the broker runs:

* of several current copies of one replica the one that metadata names is served, or else the
  longest; none of them where metadata names a directory that is offline;
* a copy on its way out, of a replica without a current one, comes back if it is what metadata
  means: its directory is named and the replica is in sync. It stays aside while metadata names
  a directory that is not here, because it may be all there is, and goes if nobody needs it;
* a stray of a topic and partition that metadata has a replica of here comes back, if there is no
  other copy. As one that is in sync only if it was set aside by metadata that did not know the
  topic: that was not this metadata, so nothing was committed without it since. Otherwise it comes
  back once it does not count as in sync, for a follower has to catch up and nothing else.
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
        """Choose; a directory that dies over this is judged by itself.

        ``is_taken`` says of a replica that it is served, or being made: nothing takes its place,
        and what is on its way out and of its topic stays.
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
            # A directory may have died over the last one, and its copies with it.
            if topic_partition in self._logs.duplicates:
                await self._resolve_duplicate(topic_partition)

    async def _resolve_duplicate(self, topic_partition: TopicPartition) -> None:
        copies = self._logs.duplicates[topic_partition]
        topic = self._cache.state.topic(topic_partition.topic)
        registration = self._cache.state.partition_named(topic_partition)
        named = None if registration is None else registration.directory_of(self._broker_id)
        # One of an earlier topic of that name is not a copy, whatever it is or where.
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
        if (
            not self._is_of_topic(orphan)
            or registration is None
            or not registration.counts_on(self._broker_id)
        ):
            await self._logs.discard_deleted(orphan)
            return
        named = registration.directory_of(self._broker_id)
        if named == orphan.log_dir.directory_id:
            self._log.warning("deleted_replica_restored", partition=str(tp), path=orphan.directory)
            await self._logs.restore_deleted(orphan)
        elif named in {log_dir.directory_id for log_dir in self._logs.online_dirs()}:
            await self._logs.discard_deleted(orphan)
        else:
            self._log.warning("deleted_replica_kept", partition=str(tp), path=orphan.directory)

    def _is_of_topic(self, orphan: Orphan) -> bool:
        """And not of an earlier one of that name."""
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
        if any(orphan.topic_partition == tp for orphan in self._logs.orphans):
            return
        current = self._logs.get(tp)
        if current is not None and current.topic_id == key.topic_id:
            return
        stray = self._that_may_return(key, tp, registration)
        if stray is None:
            return
        if current is not None:
            # Of a topic of that name in a life that is not this one.
            log_id = self._cache.state.metadata_log_id
            await self._logs.rename_stray(tp, StrayReason.TOPIC_UNKNOWN, log_id)
        self._log.warning("stray_taken_back", partition=str(tp), path=stray.directory)
        await self._logs.strays.take_back(stray)

    def _that_may_return(
        self, key: TopicIdPartition, tp: TopicPartition, registration: PartitionRegistration
    ) -> Stray | None:
        strays = self._logs.strays.of(key)
        named = registration.directory_of(self._broker_id)
        if registration.counts_on(self._broker_id):
            is_only = len(strays) == 1 and not self._logs.strays.unreadable(tp)
            if not is_only or not _lacks_nothing(strays[0], registration):
                return None
            # The controller may have gone before it heard where the replica had been made.
            is_undecided = named in (UNASSIGNED_DIR, MIGRATING_DIR)
            return strays[0] if is_undecided or strays[0].log_dir.directory_id == named else None
        online = {log_dir.directory_id for log_dir in self._logs.online_dirs()}
        if named not in online and self._logs.offline_dirs():
            return None  # The copy that is meant may be in a directory that comes back.
        return max(strays, key=lambda s: (s.log_dir.directory_id == named, s.size_bytes))


def _lacks_nothing(stray: Stray, registration: PartitionRegistration) -> bool:
    """Whether the stray of a replica that counts as in sync is what counts."""
    if stray.mark is None:
        # From before marks. In the epoch of its last record, nobody else has led since.
        return stray.last_epoch == registration.leader_epoch
    return stray.mark.reason is StrayReason.TOPIC_UNKNOWN
