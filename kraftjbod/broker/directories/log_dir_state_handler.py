"""LOOP. ``LogDirStateHandler``: reacts to changes of log directory states on this broker.

It takes each changed directory from the channel, reads its *present* state, and runs one method
from top to bottom:

* :meth:`_offline`: stop fetching into the directory, cancel moves from and to it, take its replicas
  offline, drop its logs, publish the lost leaderships, report it.
* :meth:`_impaired` (SATURATED and STALLED, KIP-928): stop fetching into the directory. Cancel moves
  into a full one, to free space, or withdraw the reported moves of a hung one. Report it. Its
  replicas keep their logs, which can be read, and the directory refuses other operations itself.
* :meth:`_recovered`: follow again, create the logs that waited for free space, report it.

A broker with only impaired directories keeps running: retention, deletions and moves free space.
The broker stops when the last directory that is not OFFLINE, or the one with the broker's own
metadata, fails. It also stops after an unexpected exception in the handling of a directory.
"""

from __future__ import annotations

import asyncio
from typing import assert_never

from kraftjbod.broker.cluster.assignments_manager import AssignmentsManager
from kraftjbod.broker.cluster.lifecycle.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.following.replica_fetcher_manager import ReplicaFetcherManager
from kraftjbod.broker.metadata.metadata_publisher import BrokerMetadataPublisher
from kraftjbod.broker.moves.alter_log_dirs_manager import ReplicaAlterLogDirsManager
from kraftjbod.broker.replicas.leaderships import Leaderships
from kraftjbod.broker.replicas.replica_manager import ReplicaManager
from kraftjbod.core.errors import KafkaStorageError, LastLogDirLostError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.manager.log_manager import LogManager


class LogDirStateHandler:
    """Reacts to each log directory that fails, becomes impaired or recovers: it stops or restarts
    fetches, cancels moves, changes roles and reports the state to the controller.

    :meth:`run_handler` runs for the broker's lifetime.
    """

    def __init__(
        self,
        *,
        channel: LogDirFailureChannel,
        fetchers: ReplicaFetcherManager,
        moves: ReplicaAlterLogDirsManager,
        replicas: ReplicaManager,
        assignments: AssignmentsManager,
        publisher: BrokerMetadataPublisher,
        logs: LogManager,
        lifecycle: BrokerLifecycleManager,
        metadata_dir: str,
        leaderships: Leaderships,
    ) -> None:
        self._channel = channel
        self._fetchers = fetchers
        self._moves = moves
        self._replicas = replicas
        self._assignments = assignments
        self._publisher = publisher
        self._logs = logs
        self._lifecycle = lifecycle
        self._metadata_dir = metadata_dir
        self._leaderships = leaderships
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._log = get_logger(component="log_dir_state_handler")

    async def run_handler(self) -> None:
        """Handle changed directories until cancelled. After an unexpected error, :meth:`lost`
        raises.
        """
        while True:
            log_dir = await self._channel.take()
            try:
                self._handle(log_dir)
            except Exception as e:
                # Stopping is better than leading partitions that the broker cannot serve.
                self._log.error("log_dir_failure_unhandled", path=log_dir.path, exc_info=e)
                self._stop_broker(
                    KafkaStorageError(
                        f"that {log_dir.path} is {log_dir.state.value} could not be handled"
                    )
                )

    async def lost(self) -> None:
        """Wait until the broker must stop. Never returns normally.

        :raises LastLogDirLostError: no directory is left.
        :raises KafkaStorageError: the metadata directory failed, or a state could not be handled.
        """
        await asyncio.shield(self._fatal)

    def _handle(self, log_dir: LogDir) -> None:
        match log_dir.state:
            case LogDirState.OFFLINE:
                self._offline(log_dir)
            case LogDirState.SATURATED | LogDirState.STALLED:
                self._impaired(log_dir)
            case LogDirState.ONLINE:
                self._recovered(log_dir)
            case _:
                assert_never(log_dir.state)

    def _offline(self, log_dir: LogDir) -> None:
        self._fetchers.stop_in(log_dir)
        self._moves.cancel_in(log_dir)
        partitions = self._replicas.mark_offline(log_dir)
        self._logs.drop(log_dir)
        self._leaderships.publish()
        self._log.error("log_dir_replicas_offline", path=log_dir.path, replicas=len(partitions))
        if log_dir.path == self._metadata_dir:
            self._stop_broker(
                KafkaStorageError(f"the metadata directory {log_dir.path} is offline")
            )
        elif not self._logs.online_dirs():
            self._stop_broker(
                LastLogDirLostError(f"the last log directory {log_dir.path} is offline")
            )
        else:
            directory_id = log_dir.directory_id
            lost = {replica.topic_partition for replica in partitions}
            self._lifecycle.report_offline(
                directory_id,
                leads=lambda: self._replicas.leads_in(directory_id, lost),
                has_unreported_replicas=lambda: self._assignments.queued_into(directory_id) > 0,
            )
            # A replica that waited for free space there must be reconciled again.
            self._publisher.reconcile_again()

    def _impaired(self, log_dir: LogDir) -> None:
        self._fetchers.stop_in(log_dir)
        if log_dir.state is LogDirState.SATURATED:
            self._moves.cancel_into(log_dir)
        else:
            self._moves.take_back_in(log_dir)
        replicas = self._replicas.note_dir_state(log_dir)
        self._log.warning(
            "log_dir_replicas_impaired",
            path=log_dir.path,
            state=log_dir.state.value,
            replicas=len(replicas),
        )
        self._lifecycle.report_impaired(log_dir.directory_id, log_dir.state)

    def _recovered(self, log_dir: LogDir) -> None:
        replicas = self._replicas.note_dir_state(log_dir)
        self._fetchers.follow(replica for replica in replicas if replica.should_follow)
        self._publisher.reconcile_again()
        self._log.info("log_dir_replicas_recovered", path=log_dir.path, replicas=len(replicas))
        self._lifecycle.report_recovered(log_dir.directory_id)

    def _stop_broker(self, error: KafkaStorageError) -> None:
        if not self._fatal.done():
            self._fatal.set_exception(error)
