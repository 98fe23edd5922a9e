"""``LeftoverCopies``: what to make of copies that cannot be told apart without the metadata.

After the logs are loaded and before anything is hosted, and again for each directory that comes
while the broker runs:

* of several current copies of one replica the one that metadata names is served, or else the
  longest; none of them where metadata names a directory that is offline;
* a copy on its way out, of a replica without a current one, comes back if it is what metadata
  means: its directory is named and the replica is in sync. It stays aside while metadata names
  a directory that is not here, because it may be all there is, and goes if nobody needs it.
"""

from __future__ import annotations

from collections.abc import Callable

from kraftjbod.broker.metadata_cache import MetadataCache
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log_manager import LogManager
from kraftjbod.storage.swap_recovery import Orphan


class LeftoverCopies:
    def __init__(self, *, broker_id: BrokerId, logs: LogManager, cache: MetadataCache) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._cache = cache
        self._log = get_logger(component="leftover_copies")

    async def resolve(self, is_taken: Callable[[TopicPartition], bool] = lambda _: False) -> None:
        """Choose; a directory that dies over this is judged by itself.

        ``is_taken`` says of a replica that it is served, or being made: nothing takes its place.
        """
        await self._resolve_duplicates()
        for orphan in self._logs.orphans:
            if is_taken(orphan.topic_partition):
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
        offline = {log_dir.directory_id for log_dir in self._logs.offline_dirs()}
        for topic_partition, copies in list(self._logs.duplicates.items()):
            registration = self._cache.state.partition_named(topic_partition)
            named = None if registration is None else registration.directory_of(self._broker_id)
            winner = max(copies, key=lambda h: (h.log_dir.directory_id == named, h.log_end_offset))
            if named not in offline:
                await self._logs.resolve(topic_partition, winner)

    async def _resolve_orphan(self, orphan: Orphan) -> None:
        tp = orphan.topic_partition
        topic = self._cache.state.topic(tp.topic)
        registration = self._cache.state.partition_named(tp)
        is_meant = topic is not None and topic.topic_id == orphan.topic_id
        if not is_meant or registration is None or self._broker_id not in registration.isr:
            self._logs.discard_deleted(orphan)
            return
        named = registration.directory_of(self._broker_id)
        if named == orphan.log_dir.directory_id:
            self._log.warning("deleted_replica_restored", partition=str(tp), path=orphan.directory)
            await self._logs.restore_deleted(orphan)
        elif named in {log_dir.directory_id for log_dir in self._logs.online_dirs()}:
            self._logs.discard_deleted(orphan)
        else:
            self._log.warning("deleted_replica_kept", partition=str(tp), path=orphan.directory)
