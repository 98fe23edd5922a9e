"""``LogDirFailureHandler``: what happens on this broker when a log directory dies.

Takes each dead directory from the failure channel, once, and works through :meth:`_handle` from
the top to the bottom: stop fetching into it, stop moving from and to it, stop serving from it,
forget its logs, report it.

* The handler never dies: what goes wrong with one directory is told, counted and followed by the
  next one; a broker that cannot handle a dead directory stops.
* The last directory, or the one with the broker's own metadata, cannot be lost: the broker stops.
"""

from __future__ import annotations

import asyncio

from kraftjbod.broker.alter_log_dirs_manager import ReplicaAlterLogDirsManager
from kraftjbod.broker.assignments_manager import AssignmentsManager
from kraftjbod.broker.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.replica_fetcher_manager import ReplicaFetcherManager
from kraftjbod.broker.replica_manager import ReplicaManager
from kraftjbod.core.errors import KafkaStorageError
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_manager import LogManager


class LogDirFailureHandler:
    """One coroutine, :meth:`run`, for the life of the broker."""

    def __init__(
        self,
        *,
        channel: LogDirFailureChannel,
        fetchers: ReplicaFetcherManager,
        moves: ReplicaAlterLogDirsManager,
        replicas: ReplicaManager,
        assignments: AssignmentsManager,
        logs: LogManager,
        lifecycle: BrokerLifecycleManager,
        metadata_dir: str,
    ) -> None:
        self._channel = channel
        self._fetchers = fetchers
        self._moves = moves
        self._replicas = replicas
        self._assignments = assignments
        self._logs = logs
        self._lifecycle = lifecycle
        self._metadata_dir = metadata_dir
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._log = get_logger(component="log_dir_failure_handler")

    async def run(self) -> None:
        """Handle dead directories until cancelled."""
        while True:
            log_dir = await self._channel.take()
            if log_dir.is_online:
                continue
            try:
                self._handle(log_dir)
            except Exception as e:
                # Better no broker than one that goes on leading partitions it cannot serve.
                self._log.error("log_dir_failure_unhandled", path=log_dir.path, exc_info=e)
                self._stop_broker(f"the failure of {log_dir.path} could not be handled")

    async def lost(self) -> None:
        """Return never; raise once the broker cannot go on.

        :raises KafkaStorageError: no directory is left, or the metadata directory is gone.
        """
        await asyncio.shield(self._fatal)

    def _handle(self, log_dir: LogDir) -> None:
        self._fetchers.stop_in(log_dir)
        self._moves.cancel_in(log_dir)
        partitions = self._replicas.mark_offline(log_dir)
        self._logs.drop(log_dir)
        self._log.error("log_dir_replicas_offline", path=log_dir.path, replicas=len(partitions))
        if log_dir.path == self._metadata_dir:
            self._stop_broker(f"the metadata directory {log_dir.path} is offline")
        elif not self._logs.online_dirs():
            self._stop_broker(f"the last log directory {log_dir.path} is offline")
        else:
            directory_id = log_dir.directory_id
            self._lifecycle.report_offline(
                directory_id,
                leads=lambda: self._replicas.leads_any(partitions),
                has_untold_replicas=lambda: self._assignments.queued_into(directory_id) > 0,
            )

    def _stop_broker(self, reason: str) -> None:
        if not self._fatal.done():
            self._fatal.set_exception(KafkaStorageError(reason))
