"""LOOP. ``ReplicaMaker``: creates the log of a replica that is new to this broker.

* The log is created in the directory that a request named before, else in the directory in the
  metadata, else in the directory with the most free space. Each attempt reconciles the replica
  again.
* A stray or a kept ``-delete`` copy of the replica is restored instead of an empty log: it has at
  least as many records. If no other replica is known to have all committed records, the copy
  is restored in any online directory, also in an impaired or cordoned one.
* A replica with several current copies gets one of them. They were kept aside while the metadata
  named an offline directory, which was forgotten since.
* A name has one log: the creation waits while a log of the same name is being removed or created.
* If a directory fails during the creation, another one is tried. An impaired (KIP-928) or cordoned
  (KIP-1066) directory takes no new log. Without a usable directory the replica is held back until
  it is reconciled again, and no task waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.broker.partitions.replica_states import ReplicaEvent
from kraftjbod.broker.replicas.directory_reconcile import Action, AdoptFuture, Create, CreateChosen
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.broker.replicas.leftover_copies import LeftoverCopies
from kraftjbod.broker.replicas.replica_removals import ReplicaRemovals
from kraftjbod.core.errors import LogDirImpairedError, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId, TopicPartition
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas.dir_loading import Stray
from kraftjbod.storage.replicas.requested_moves import RequestedMoves
from kraftjbod.storage.replicas.swap_recovery import Orphan

#: Limit of directories requested for replicas that do not exist yet.
MAX_PREFERRED_DIRECTORIES: Final = 10_000


class ReplicaMaker:
    """Creates the logs of new replicas.

    ``next_step`` returns the action for a replica without a log. ``stay_offline`` is called if no
    log may be created at present.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        replicas: HostedReplicas,
        removals: ReplicaRemovals,
        leftovers: LeftoverCopies,
        logs: LogManager,
        topic_configs: TopicConfigs,
        requested_moves: RequestedMoves,
        backoff: ExponentialBackoff,
        next_step: Callable[[HostedReplica], Action],
        stay_offline: Callable[[HostedReplica, Action], None],
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._removals = removals
        self._leftovers = leftovers
        self._logs = logs
        self._topic_configs = topic_configs
        self._requested_moves = requested_moves
        self._backoff = backoff
        self._next_step = next_step
        self._stay_offline = stay_offline
        #: Logs being created. A creation for a new topic of the same name waits for the event.
        self._making: dict[TopicPartition, asyncio.Event] = {}
        #: Requested directories of replicas that do not exist here yet.
        self._preferred_dirs: dict[TopicPartition, DirectoryId] = {}
        self._log = get_logger(component="replica_maker")

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        """Return whether a log of that name is being created."""
        return topic_partition in self._making

    def prefer_directory(
        self, topic_partition: TopicPartition, directory_id: DirectoryId | None
    ) -> None:
        """Note the directory in which to create a replica that does not exist here yet. None
        removes the note. Beyond ``MAX_PREFERRED_DIRECTORIES`` notes the oldest is dropped.
        """
        self._preferred_dirs.pop(topic_partition, None)
        if directory_id is not None:
            self._preferred_dirs[topic_partition] = directory_id
            while len(self._preferred_dirs) > MAX_PREFERRED_DIRECTORIES:
                del self._preferred_dirs[next(iter(self._preferred_dirs))]

    async def make(self, replica: HostedReplica) -> LogHandle | None:
        """Create the log of the replica; retry if a directory fails meanwhile.

        Return None if the replica is not hosted any more, must wait for a directory, or has a log.
        """
        failures = 0
        topic_partition = replica.topic_partition
        while self._replicas.is_current(replica) and replica.handle is None:
            other = self._removals.under_way(topic_partition) or self._making.get(topic_partition)
            if other is not None:
                await other.wait()
                continue
            step = self._next_step(replica)
            if not isinstance(step, Create | CreateChosen | AdoptFuture):
                self._stay_offline(replica, step)
                return None
            self._making[topic_partition] = asyncio.Event()
            try:
                handle = await self._make(replica, step)
            except LogDirImpairedError as e:
                handle = None
                if self._is_still_impaired(e.directory_id):
                    self._hold_back(replica, e)
                    return None
            except OperatingError as e:
                handle = None
                self._log.warning(
                    "replica_creation_failed", partition=str(topic_partition), reason=str(e)
                )
            finally:
                self._making.pop(topic_partition).set()
            if handle is not None:
                return handle
            if self._replicas.is_current(replica):
                failures += 1
                await asyncio.sleep(self._backoff.wait_ms(failures) / 1000)
        return None

    async def _make(
        self, replica: HostedReplica, step: Create | CreateChosen | AdoptFuture
    ) -> LogHandle | None:
        """Create the log. Return None if the log or the replica is gone afterwards.

        :raises OperatingError: the creation failed.
        """
        topic_partition = replica.topic_partition
        # From now on the replica may have records outside the source of its move.
        await self._requested_moves.forget(replica.key)
        if topic_partition in self._logs.duplicates:
            await self._leftovers.resolve_duplicate(topic_partition)
        if (found := self._logs.get(topic_partition)) is not None:
            handle = found
        elif (kept := self._kept_instead(replica, step)) is not None:
            handle = await self._restore(kept)
        elif isinstance(step, AdoptFuture):
            self._log.warning("future_replica_adopted", partition=str(topic_partition))
            handle = await self._logs.adopt_future(topic_partition)
        else:
            handle = await self._logs.create(
                topic_partition,
                replica.topic_id,
                self._directory_for(topic_partition, step),
                self._topic_configs.get(topic_partition.topic),
            )
        if handle.topic_id != replica.topic_id:
            # All copies belonged to an earlier topic of that name.
            await self._removals.remove(topic_partition, is_wanted_nowhere=True)
            return None
        if not self._replicas.is_current(replica):
            await self._removals.remove(topic_partition, is_wanted_nowhere=False)
            return None
        if not handle.log_dir.is_online:
            return None
        self._preferred_dirs.pop(topic_partition, None)
        return handle

    def _directory_for(
        self, topic_partition: TopicPartition, step: Create | CreateChosen
    ) -> DirectoryId | None:
        """Return the directory for a new log: the requested one, else the one in the metadata.

        None if the log manager should choose, also if the directory in the metadata was cordoned
        since (KIP-1066).
        """
        preferred, online = self._preferred_dirs.get(topic_partition), self._logs.online_dirs()
        cordoned = {log_dir.directory_id for log_dir in online if log_dir.is_cordoned}
        taking = {log_dir.directory_id for log_dir in online if not log_dir.is_impaired} - cordoned
        if preferred in taking:
            return preferred
        named = step.directory_id if isinstance(step, Create) else None
        return None if named in cordoned else named

    async def _restore(self, kept: Stray | Orphan) -> LogHandle:
        partition, path = str(kept.topic_partition), kept.directory
        if isinstance(kept, Stray):
            self._log.warning("replica_made_of_stray", partition=partition, path=path)
            return await self._logs.strays.take_back(kept)
        self._log.warning("replica_made_of_deleted_copy", partition=partition, path=path)
        return await self._logs.restore_deleted(kept)

    def _kept_instead(
        self, replica: HostedReplica, step: Create | CreateChosen | AdoptFuture
    ) -> Stray | Orphan | None:
        """Return the copy to restore instead of an empty log or of a future copy; None if there is
        no suitable one.

        Of several copies, the one with the newest leader epoch has the most committed records.
        """
        copies: list[Stray | Orphan] = [
            *self._logs.strays.strays_of(replica.key),
            *self._logs.orphans_of(replica.key),
        ]
        if replica.registration.counts_on(self._broker_id):
            # The copy may have the only records. The request for a directory, a cordon and an
            # impairment matter less.
            fit = [copy for copy in copies if copy.log_dir.is_online]
        elif isinstance(step, AdoptFuture):
            return None
        else:
            wanted = self._directory_for(replica.topic_partition, step)
            fit = [
                copy
                for copy in copies
                if copy.log_dir.is_online
                and not copy.log_dir.is_impaired
                and (copy.log_dir.directory_id == wanted or wanted is None)
                and (wanted is not None or not copy.log_dir.is_cordoned)
            ]
        best = max(fit, key=_progress, default=None)
        future = self._logs.future(replica.topic_partition)
        if best is None or not isinstance(step, AdoptFuture) or future is None:
            return best
        return best if best.size_bytes > future.size_bytes else None

    def _is_still_impaired(self, directory_id: bytes | None) -> bool:
        """Return whether a new log must wait for that directory to recover; None stands for any
        directory."""
        online = self._logs.online_dirs()
        if directory_id is None:
            return all(log_dir.is_impaired or log_dir.is_cordoned for log_dir in online)
        return any(
            log_dir.is_impaired and log_dir.directory_id == directory_id for log_dir in online
        )

    def _hold_back(self, replica: HostedReplica, error: LogDirImpairedError) -> None:
        replica.note(ReplicaEvent.REFUSED)
        self._log.warning(
            "replica_awaits_impaired_dir",
            partition=str(replica.topic_partition),
            reason=str(error),
        )


def _progress(copy: Stray | Orphan) -> tuple[int, int]:
    return (-1 if copy.last_epoch is None else copy.last_epoch, copy.size_bytes)
