"""LOOP. ``ReplicaRemovals``: removes logs that the metadata does not want on this broker.

* One removal per name is in progress at a time, and a new log of that name waits for it.
* A removal that fails with its directory is only logged: the copy is handled when the directory
  returns.
"""

from __future__ import annotations

import asyncio

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.errors import OperatingError, OverloadedError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas.stray_mark import StrayReason


class ReplicaRemovals:
    """Removes logs from the disks, either by deletion or by setting them aside as strays.

    Call ``begin_removal`` at once, then ``delete`` or ``set_aside`` in a separate task.
    """

    def __init__(
        self, *, logs: LogManager, cache: MetadataCache, backoff: ExponentialBackoff
    ) -> None:
        self._logs = logs
        self._cache = cache
        self._backoff = backoff
        #: Logs being removed; the event is set when the removal has ended.
        self._leaving: dict[TopicPartition, asyncio.Event] = {}
        self._log = get_logger(component="replica_removals")

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._leaving

    def begin_removal(self, topic_partition: TopicPartition) -> None:
        """Treat the copies of the replica as deleted from now on, although their removal from the
        disks comes later."""
        self._leaving[topic_partition] = asyncio.Event()

    def under_way(self, topic_partition: TopicPartition) -> asyncio.Event | None:
        """Return an event that is set when the removal of the replica's log ends; None if no
        removal is in progress.
        """
        return self._leaving.get(topic_partition)

    async def delete(self, topic_partition: TopicPartition) -> None:
        """Delete the current and the future copy of a replica whose topic was deleted, or that
        moved away. Follows :meth:`begin_removal`. Errors are logged.
        """
        try:
            is_building = self._logs.future(topic_partition) is not None
            if self._logs.get(topic_partition) is not None or not is_building:
                await self.remove(topic_partition, is_wanted_nowhere=False)
            await self.drop_future(topic_partition)
        finally:
            self._leaving.pop(topic_partition).set()

    async def set_aside(self, topic_partition: TopicPartition) -> None:
        """Make the log a stray, which is kept but not served. Follows :meth:`begin_removal`. Errors
        are logged.
        """
        self._log.warning("stray_replica_set_aside", partition=str(topic_partition))
        try:
            await self.remove(topic_partition, is_wanted_nowhere=True)
        finally:
            self._leaving.pop(topic_partition).set()

    async def drop_future(self, topic_partition: TopicPartition) -> None:
        """Remove the future copy of a move, if there is one. Retries while its directory is busy.
        Any other error is logged, and the copy may remain.
        """
        future, failures = self._logs.future(topic_partition), 0
        while future is not None and self._logs.future(topic_partition) is future:
            try:
                await self._logs.drop_future(topic_partition)
            except OverloadedError:
                failures += 1
                await asyncio.sleep(self._backoff.wait_ms(failures) / 1000)
            except OperatingError as e:
                self._log.warning(
                    "future_replica_not_removed", partition=str(topic_partition), reason=str(e)
                )
                return

    async def remove(self, topic_partition: TopicPartition, *, is_wanted_nowhere: bool) -> None:
        """Remove the log. Retries while its directory is busy or stalled; other errors are logged.

        :param is_wanted_nowhere: keep the log as a stray instead of deleting it.
        """
        failures = 0
        while True:
            try:
                if is_wanted_nowhere:
                    await self._keep(topic_partition)
                else:
                    await self._logs.delete(topic_partition)
            except OverloadedError:
                failures += 1
                await asyncio.sleep(self._backoff.wait_ms(failures) / 1000)
                continue
            except OperatingError as e:
                self._log.warning(
                    "replica_removal_failed", partition=str(topic_partition), reason=str(e)
                )
            return

    async def _keep(self, topic_partition: TopicPartition) -> None:
        """Make the log a stray that records the reason and the metadata log id.

        :raises OperatingError: as ``LogManager.rename_stray``.
        """
        state, handle = self._cache.state, self._logs.get(topic_partition)
        is_known = handle is not None and handle.topic_id in state.topics
        reason = StrayReason.NOT_A_REPLICA if is_known else StrayReason.TOPIC_UNKNOWN
        await self._logs.rename_stray(topic_partition, reason, state.metadata_log_id)
