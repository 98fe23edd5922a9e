"""LOOP. ``ReplicaRemovals``: taking logs out of service that nobody wants here any more.

* Of one name there is one removal at a time, and what takes over the name waits for it.
* A removal that a dead directory spoils is only logged: what lies there is seen to when it comes
  back.
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
    """``begin`` at once, then one of ``delete`` and ``set_aside`` in a task of its own."""

    def __init__(
        self, *, logs: LogManager, cache: MetadataCache, backoff: ExponentialBackoff
    ) -> None:
        self._logs = logs
        self._cache = cache
        self._backoff = backoff
        #: Logs on their way out; set when they are.
        self._leaving: dict[TopicPartition, asyncio.Event] = {}
        self._log = get_logger(component="replica_removals")

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._leaving

    def begin(self, topic_partition: TopicPartition) -> None:
        """What is here under the name counts as gone from now on."""
        self._leaving[topic_partition] = asyncio.Event()

    def under_way(self, topic_partition: TopicPartition) -> asyncio.Event | None:
        """Set when the name is free; None if it is."""
        return self._leaving.get(topic_partition)

    async def delete(self, topic_partition: TopicPartition) -> None:
        """Its topic is gone, or the replica lives on another broker: both copies go."""
        try:
            is_building = self._logs.future(topic_partition) is not None
            if self._logs.get(topic_partition) is not None or not is_building:
                await self.remove(topic_partition, is_wanted_nowhere=False)
            await self.drop_future(topic_partition)
        finally:
            self._leaving.pop(topic_partition).set()

    async def set_aside(self, topic_partition: TopicPartition) -> None:
        """Rename a stray; it is kept, but never served."""
        self._log.warning("stray_replica_set_aside", partition=str(topic_partition))
        try:
            await self.remove(topic_partition, is_wanted_nowhere=True)
        finally:
            self._leaving.pop(topic_partition).set()

    async def drop_future(self, topic_partition: TopicPartition) -> None:
        """Remove the copy that a move was building, if there is one; its dir may be busy first."""
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
        """Take the log that is here out of service; once more where its dir is busy or stalled."""
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
        """As a stray, which remembers by which metadata it is one. Raises as ``rename_stray``."""
        state, handle = self._cache.state, self._logs.get(topic_partition)
        is_known = handle is not None and handle.topic_id in state.topics
        reason = StrayReason.NOT_A_REPLICA if is_known else StrayReason.TOPIC_UNKNOWN
        await self._logs.rename_stray(topic_partition, reason, state.metadata_log_id)
