"""LOOP. ``StrayRetention``: deletes strays that are not needed after ``log.stray.retention.ms``.

A stray is purged only under all of these conditions:

* The metadata log that set it aside is the present metadata log. The metadata either lacks the
  replica (its topic was deleted, perhaps while its directory was offline, or the replica moved
  away), or has it while another copy is served.
* The time in its mark is older than the retention time, and this process has known the stray for a
  while, so that a jump of the clock does not age it.

A stray that could not be marked before a crash because the disk was full is marked when it is
found, if its name says that the present metadata set it aside. The remains of an interrupted
creation, without records, are deleted once they were known for a while. Strays of another metadata
log, with an unknown topic id, or from before marks stay until an operator deletes them: they may be
the only copies.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import BrokerId, TopicIdPartition
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas.dir_loading import Stray

_KNOWN_FOR_MS: Final = 3_600_000


class StrayRetention:
    """Deletes strays, which are log copies that the metadata does not want in their directory,
    after ``retention_ms`` if they are not needed.

    ``retention_ms`` -1 keeps all strays. :meth:`run_retention` runs for the broker's lifetime.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        logs: LogManager,
        cache: MetadataCache,
        clock: Clock,
        retention_ms: int,
        check_interval_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._cache = cache
        self._clock = clock
        self._retention_ms = retention_ms
        self._check_interval_ms = check_interval_ms
        self._log = get_logger(component="stray_retention")

    async def run_retention(self) -> None:
        """Call :meth:`purge_due` at intervals, until cancelled. Return at once if all strays are
        kept.
        """
        while self._retention_ms >= 0:
            await asyncio.sleep(self._check_interval_ms / 1000)
            await self.purge_due()

    async def purge_due(self) -> None:
        """Write missing marks, delete the due strays, and delete kept copies of replicas whose
        topics no longer exist. A failed deletion is logged, and repeated by the next call.
        """
        log_id = self._cache.state.metadata_log_id
        if log_id is not None:
            self._logs.strays.queue_lost_marks(log_id)
        await self._logs.strays.write_queued_marks()
        if log_id is not None:
            await self._delete_retained_copies()
        for stray in self._logs.strays.all():
            if not self._is_due(stray) or self._is_needed(stray):
                continue
            try:
                await self._logs.strays.remove(stray)
            except OperatingError as e:
                self._not_purged(stray.directory, e)
            else:
                self._log.info(
                    "stray_purged", directory=stray.directory, size_bytes=stray.size_bytes
                )

    async def _delete_retained_copies(self) -> None:
        """Delete the copies of deleted replicas that were kept, if their topics were deleted
        since."""
        for orphan in self._logs.orphans:
            if orphan.topic_id in self._cache.state.topics:
                continue
            try:
                await self._logs.discard_deleted(orphan)
            except OperatingError as e:
                self._not_purged(orphan.directory, e)

    def _not_purged(self, directory: str, error: OperatingError) -> None:
        self._log.info("stray_not_purged", directory=directory, reason=error.message)

    def _is_due(self, stray: Stray) -> bool:
        known_ms = self._clock.now_ms() - stray.known_since_ms
        least_known_ms = min(self._retention_ms, _KNOWN_FOR_MS)
        if stray.holds_nothing:
            return known_ms >= least_known_ms
        mark, log_id = stray.mark, self._cache.state.metadata_log_id
        if mark is None or log_id is None or mark.metadata_log_id != log_id:
            return False
        aged_ms = self._clock.wall_ms() - mark.set_aside_ms
        return aged_ms >= self._retention_ms and known_ms >= least_known_ms

    def _is_needed(self, stray: Stray) -> bool:
        if stray.holds_nothing:
            return False
        tp = stray.topic_partition
        if tp is None or stray.topic_id is None:
            return stray.topic_id is None
        registration = self._cache.state.partition(TopicIdPartition(stray.topic_id, tp.partition))
        if registration is None or registration.directory_of(self._broker_id) is None:
            return False
        served = self._logs.get(tp)
        return served is None or served.topic_id != stray.topic_id
