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

It also deletes ``-delete`` copies that a start or a directory that was attached kept because their
replica had no other copy (leftover_copies.py). They are deleted without a delay once their topic is
deleted, their replica left the broker, or another copy that is served makes them superfluous: it is
in sync with a leader on another broker, or its log has all their records. That a copy is served
proves nothing, because it may have been created empty. A copy with records that the leader in
another directory of this broker lacks becomes a stray.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import (
    MIGRATING_DIR,
    NO_LEADER,
    UNASSIGNED_DIR,
    BrokerId,
    TopicIdPartition,
)
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas.dir_loading import Stray
from kraftjbod.storage.replicas.swap_recovery import Orphan

_KNOWN_FOR_MS: Final = 3_600_000


class StrayRetention:
    """Deletes strays, which are log copies that the metadata does not want in their directory,
    after ``retention_ms`` if they are not needed. Deletes kept ``-delete`` copies that are not
    needed any more.

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
        """Call :meth:`purge_due` at intervals, until cancelled."""
        while True:
            await asyncio.sleep(self._check_interval_ms / 1000)
            await self.purge_due()

    async def purge_due(self) -> None:
        """Write missing marks, delete the due strays, and delete kept ``-delete`` copies that are
        not needed any more. A failed deletion is logged, and repeated by the next call.
        """
        await self._delete_retained_copies()
        if self._retention_ms < 0:
            return
        log_id = self._cache.state.metadata_log_id
        if log_id is not None:
            self._logs.strays.queue_lost_marks(log_id)
        await self._logs.strays.write_queued_marks()
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
        for orphan in self._logs.orphans:
            try:
                await self._decide(orphan)
            except OperatingError as e:
                self._not_purged(orphan.directory, e)

    async def _decide(self, orphan: Orphan) -> None:
        """Keep a ``-delete`` copy, discard it, or make it a stray.

        :raises OperatingError: as :meth:`LogManager.restore_deleted`.
        """
        if self._is_retained(orphan):
            return
        if self._leads(orphan) and not await self._logs.is_covered(orphan):
            await self._logs.keep_as_stray(orphan, self._cache.state.metadata_log_id)
        else:
            await self._logs.discard_deleted(orphan)

    def _leads(self, orphan: Orphan) -> bool:
        """Return whether this broker leads the copy's partition: its served copy may have been
        created empty, after an unclean election or as the only replica."""
        registration = self._cache.state.partition(orphan.key)
        return registration is not None and registration.leader == self._broker_id

    def _is_retained(self, orphan: Orphan) -> bool:
        """Return whether it is undecided if a kept ``-delete`` copy is needed.

        While the metadata names an offline directory, another copy here may be an old one that
        waits for that directory. A follower has the committed records once it is in sync.
        """
        state, tp = self._cache.state, orphan.topic_partition
        if orphan.topic_id not in state.topics:
            return state.metadata_log_id is None
        registration = state.partition(TopicIdPartition(orphan.topic_id, tp.partition))
        named = None if registration is None else registration.directory_of(self._broker_id)
        if registration is None or named is None:
            return False
        other = self._logs.get(tp)
        if other is None or other.topic_id != orphan.topic_id:
            return True
        online = {log_dir.directory_id for log_dir in self._logs.online_dirs()}
        if named not in online and named not in (UNASSIGNED_DIR, MIGRATING_DIR):
            return True
        return registration.leader == NO_LEADER or self._broker_id not in registration.isr

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
