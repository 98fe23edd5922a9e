"""LOOP. ``StrayRetention``: strays that nobody can need any more go, after
``log.stray.retention.ms``.

A stray is purged only if all of this is so:

* the metadata that set it aside is the metadata that is followed now, and does not name the
  replica, or names it and another copy of it is served: its topic was deleted, maybe while its
  directory was offline, or it moved away;
* that long ago, by the time that its mark names, and this process has known it for a while: a
  clock that jumped by a year has not aged it.

One that a full disk did not let be marked before a crash is marked when it is found, if its name
says that it was the present metadata.
What a crash left of a replica's making, and holds no record, goes once it was known for a while.
A stray of another life, one that does not say whose records it holds, and one from before there
were marks stay until a person removes them: they may be all that there is.
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
    """One coroutine, :meth:`run`; ``retention_ms`` -1 keeps everything."""

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

    async def run(self) -> None:
        """Check now and then, until cancelled."""
        while self._retention_ms >= 0:
            await asyncio.sleep(self._check_interval_ms / 1000)
            await self.purge_due()

    async def purge_due(self) -> None:
        """Remove what is due; a directory that does not let go of it is asked again next time."""
        log_id = self._cache.state.metadata_log_id
        if log_id is not None:
            self._logs.strays.owe_lost_marks(log_id)
        await self._logs.strays.write_owed_marks()
        if log_id is not None:
            await self._discard_what_was_kept()
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

    async def _discard_what_was_kept(self) -> None:
        """Copies on their way out that might have been needed, and their topics are deleted."""
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
