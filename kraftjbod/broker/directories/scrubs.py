"""LOOP. ``Scrubs``: runs one scrub per log directory and passes on the damage that it finds.

* A poll starts a scrub for each new directory and stops that of each removed directory.
* damaged_replicas.py handles a damaged leader. A damaged follower restarts its fetching: it leaves
  the ISR, truncates its log before the damage, and fetches the rest again.
* A directory is busy while its writes and flushes take ``log.dir.slow.min.ms`` or longer. Its scrub
  then pauses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.following.replica_fetcher_manager import ReplicaFetcherManager
from kraftjbod.broker.replicas.damaged_replicas import DamagedReplicas
from kraftjbod.broker.replicas.hosted_replicas import HostedReplicas
from kraftjbod.core.loop.timing import Clock
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.scrubbing.scrub import Scrub

_POLL_INTERVAL_S: Final = 1.0


class Scrubs:
    """Scrubs each log directory in the background: reads the stored records and checks them for
    damage.

    :meth:`run_scrubs` runs for the broker's lifetime. No scrub runs while ``log.dir.scrub.enable``
    is off.
    """

    def __init__(
        self,
        *,
        logs: LogManager,
        replicas: HostedReplicas,
        damaged: DamagedReplicas,
        fetchers: ReplicaFetcherManager,
        clock: Clock,
        is_enabled: bool,
        interval_ms: int,
        max_bytes_per_second: int,
        busy_ms: int,
    ) -> None:
        self._logs = logs
        self._replicas = replicas
        self._damaged = damaged
        self._fetchers = fetchers
        self._clock = clock
        self._is_enabled = is_enabled
        self._interval_ms = interval_ms
        self._max_bytes_per_second = max_bytes_per_second
        self._busy_ms = busy_ms
        self._scrubs: dict[LogDir, Scrub] = {}
        self._running: dict[LogDir, asyncio.Task[None]] = {}

    @property
    def by_dir(self) -> Mapping[LogDir, Scrub]:
        return self._scrubs

    async def run_scrubs(self) -> None:
        """Scrub every online directory, until cancelled. Return at once if scrubs are disabled."""
        tasks = BackgroundTasks()
        try:
            while self._is_enabled:
                self._poll(tasks)
                await asyncio.sleep(_POLL_INTERVAL_S)
        finally:
            self._scrubs, self._running = {}, {}
            await tasks.close()

    def _poll(self, tasks: BackgroundTasks) -> None:
        present = [log_dir for log_dir in self._logs.dirs() if log_dir.is_online]
        for log_dir in [log_dir for log_dir in self._scrubs if log_dir not in present]:
            del self._scrubs[log_dir]
            self._running.pop(log_dir).cancel()
        for log_dir in [log_dir for log_dir in present if log_dir not in self._scrubs]:
            scrub = self._scrubs[log_dir] = self._make(log_dir)
            self._running[log_dir] = tasks.start(scrub.run_passes(), f"scrub-{log_dir.path}")

    def _make(self, log_dir: LogDir) -> Scrub:
        return Scrub(
            log_dir,
            clock=self._clock,
            replicas=lambda: [h.topic_partition for h in self._logs.handles_in(log_dir)],
            get=self._logs.get,
            is_moving=lambda tp: self._logs.future(tp) is not None,
            is_busy=lambda: log_dir.statistics.latency_ms >= self._busy_ms,
            on_damage=self._found,
            interval_ms=self._interval_ms,
            max_bytes_per_second=self._max_bytes_per_second,
        )

    def _found(self, handle: LogHandle) -> None:
        replica = self._replicas.get(handle.topic_partition)
        if replica is None or replica.handle is not handle or replica.partition is None:
            return
        if replica.gate.is_closed or replica.is_assigned_by_move:
            return  # A scrub of its own directory checks the replacing copy.
        if replica.partition.is_leader:
            self._damaged.met(replica)
        elif replica.should_follow:
            self._fetchers.follow([replica])
