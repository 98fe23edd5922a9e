"""LOOP. ``StorageTelemetryGatherer``: the present state of this broker's directories and replicas.

All values are in memory; no disk is accessed, so a bad disk delays nothing. The sizes of logs are
added in slices, with event loop iterations in between.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from kraftjbod.broker.cluster.assignments_manager import AssignmentsManager
from kraftjbod.broker.directories.log_dir_monitor import LogDirMonitor
from kraftjbod.broker.moves.alter_log_dirs_manager import ReplicaAlterLogDirsManager
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.broker.telemetry.sample_emitter import Gathered
from kraftjbod.broker.telemetry.storage_telemetry_samples import LogDirContents, log_dir_sample
from kraftjbod.protocol.records import Record
from kraftjbod.protocol.telemetry.storage_telemetry import (
    LogDirSample,
    Origin,
    ReplicaSample,
    encode,
    record_key,
)
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.moves.future_replica import FutureReplica

Subject = LogDir | HostedReplica | FutureReplica
Sample = LogDirSample | ReplicaSample

#: Number of logs whose sizes are added in one slice: less than a millisecond.
_SUMMED_AT_ONCE: Final = 1_000


class StorageTelemetryGatherer:
    """Samples directories and replicas.

    ``gather`` returns the subjects of a round, ``samples`` the present values of some subjects.
    """

    def __init__(
        self,
        *,
        logs: LogManager,
        replicas: HostedReplicas,
        moves: ReplicaAlterLogDirsManager,
        assignments: AssignmentsManager,
        monitor: LogDirMonitor,
    ) -> None:
        self._logs = logs
        self._replicas = replicas
        self._moves = moves
        self._assignments = assignments
        self._monitor = monitor
        #: Contents of the directories at the last :meth:`gather`.
        self._contents: dict[LogDir, LogDirContents] = {}

    async def gather(self, *, whole: bool) -> Gathered[Subject]:
        """Return the directories, and in a whole round also the replicas with a log and the future
        copies."""
        self._contents = await self._contents_by_dir()
        subjects: list[Subject] = [*self._logs.dirs()]
        if whole:
            subjects += [replica for replica in self._replicas if replica.handle is not None]
            subjects += self._logs.futures()
        return Gathered(subjects)

    def records(self, origin: Origin, subjects: Sequence[Subject]) -> Iterator[Record]:
        for sample in self.samples(subjects):
            yield Record(
                key=record_key(origin, sample),
                value=encode(origin, sample),
                timestamp_ms=origin.time_ms,
            )

    def close(self) -> None:
        """Do nothing: there is no resource to release."""

    def samples(self, subjects: Sequence[Subject]) -> list[Sample]:
        """Return the samples of ``subjects``, without those that were replaced since ``gather()``.

        Call it with few subjects at a time, to keep the event loop responsive.
        """
        return [made for subject in subjects if (made := self._sample(subject)) is not None]

    async def _contents_by_dir(self) -> dict[LogDir, LogDirContents]:
        found: dict[LogDir, LogDirContents] = defaultdict(LogDirContents)
        copies: list[LogHandle | FutureReplica] = [*self._logs.handles(), *self._logs.futures()]
        for at in range(0, len(copies), _SUMMED_AT_ONCE):
            for copy in copies[at : at + _SUMMED_AT_ONCE]:
                contents = found[copy.log_dir]
                contents.replica_bytes += copy.size_bytes
                contents.replicas += not isinstance(copy, FutureReplica)
            await asyncio.sleep(0)
        for move in self._moves.moves():
            found[move.source].moves_out += 1
            target = found[move.target]
            target.moves_in += 1
            handle = self._logs.get(move.topic_partition)
            future = self._logs.future(move.topic_partition)
            if handle is not None:
                copied_bytes = 0 if future is None else future.size_bytes
                target.moves_remaining_bytes += max(0, handle.size_bytes - copied_bytes)
        return found

    def _sample(self, subject: Subject) -> Sample | None:
        match subject:
            case LogDir():
                return self._log_dir(subject)
            case HostedReplica():
                return _replica(subject) if self._replicas.is_current(subject) else None
            case FutureReplica():
                return self._future(subject)
            case _:
                assert_never(subject)

    def _log_dir(self, log_dir: LogDir) -> LogDirSample:
        monitor = self._monitor
        return log_dir_sample(
            log_dir,
            self._contents.get(log_dir, LogDirContents()),
            growth_bytes_per_s=monitor.disk_growth_bytes_per_second(log_dir),
            log_growth_bytes_per_s=monitor.growth_bytes_per_second(log_dir),
            latency_ms=monitor.latency_ms(log_dir),
            is_slow=monitor.is_slow(log_dir),
            queued_assignments=self._assignments.queued_into(log_dir.directory_id),
        )

    def _future(self, future: FutureReplica) -> ReplicaSample | None:
        replica = self._replicas.get(future.topic_partition)
        if replica is None or self._logs.future(future.topic_partition) is not future:
            return None
        return ReplicaSample(
            directory_id=str(future.log_dir.directory_id),
            path=future.log_dir.path,
            topic=future.topic_partition.topic,
            topic_id=str(future.topic_id),
            partition=future.topic_partition.partition,
            is_future=True,
            is_leader=False,
            size_bytes=future.size_bytes,
            log_start_offset=future.claimed_start_offset,
            log_end_offset=future.log_end_offset,
            appended_bytes_total=0,
            fetched_bytes_total=0,
            brokers=replica.registration.replicas,
        )


def _replica(replica: HostedReplica) -> ReplicaSample | None:
    handle = replica.handle
    if handle is None:
        return None
    return ReplicaSample(
        directory_id=str(handle.log_dir.directory_id),
        path=handle.log_dir.path,
        topic=replica.topic_partition.topic,
        topic_id=str(replica.topic_id),
        partition=replica.topic_partition.partition,
        is_future=False,
        is_leader=replica.partition is not None and replica.partition.is_leader,
        size_bytes=handle.size_bytes,
        log_start_offset=handle.log_start_offset,
        log_end_offset=handle.log_end_offset,
        appended_bytes_total=replica.appended_bytes,
        fetched_bytes_total=replica.fetched_bytes,
        brokers=replica.registration.replicas,
    )
