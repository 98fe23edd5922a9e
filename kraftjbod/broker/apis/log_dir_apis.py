"""LOOP. AlterReplicaLogDirs and DescribeLogDirs: the directories of this broker and their replicas.

* A requested move is checked here, per partition and in Kafka's order. alter_log_dirs_manager.py
  runs it, which continues long after the response.
* The replica's present directory, or ``any``, cancels its move, even if the directory is cordoned.
  So a directory that is being drained can be kept in use.
* A saturated or stalled directory (KIP-928) accepts no replicas: KAFKA_STORAGE_ERROR. It is
  described without an error, with its state.
* A replica that is not here yet will be created in the requested directory. The response is
  REPLICA_NOT_AVAILABLE nevertheless, as Kafka's tools expect.
* Sizes and offsets are published figures of the logs; free space is the last measurement of the
  directory's thread. No request touches a disk, so a bad disk cannot delay the response.
* An offline directory is described with KAFKA_STORAGE_ERROR and its id, and for clients that know
  the field, with the number of its replicas in the metadata.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Final, NamedTuple

from kraftjbod.broker.cluster.assignments_manager import AssignmentsManager
from kraftjbod.broker.directories.log_dir_monitor import LogDirMonitor
from kraftjbod.broker.directories.scrubs import Scrubs
from kraftjbod.broker.moves.alter_log_dirs_manager import ReplicaAlterLogDirsManager
from kraftjbod.broker.replicas.directory_reconcile import WaitOutOfSync
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.broker.replicas.replica_manager import ReplicaManager
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, KafkaStorageError, OperatingError
from kraftjbod.core.ids import ANY_DIRECTORY, ZERO_UUID, BrokerId, TopicPartition, Uuid
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST, MAX_LOGGED_PER_REQUEST
from kraftjbod.core.telemetry import get_logger, shortened
from kraftjbod.protocol.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from kraftjbod.storage.dir_names import future_dir_name
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.moves.future_replica import FutureReplica
from kraftjbod.storage.replicas.dir_loading import Stray

_TopicResult = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
_PartitionResult = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult

_Result = DescribeLogDirsResponse.DescribeLogDirsResult
_Stray = DescribeLogDirsResponse.DescribeLogDirsStray
_Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
_Partition = DescribeLogDirsResponse.DescribeLogDirsPartition

_UNKNOWN_LAG: Final = -1
#: A century; a longer forecast counts as none.
_MAX_SECONDS: Final = 100 * 365 * 86_400
_SOME_ID: Final = Uuid(bytes(16))
_TOO_MANY_MOVES: Final = OperatingError(
    f"one request may be about {MAX_ITEMS_PER_REQUEST} replicas; ask for this one again",
    code=ErrorCode.INVALID_REQUEST,
)


class _Copy(NamedTuple):
    """A current or future copy of a replica, as DescribeLogDirs reports it."""

    topic_partition: TopicPartition
    size_bytes: int
    lag: int
    is_future: bool


class LogDirApis:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        logs: LogManager,
        replicas: HostedReplicas,
        replica_manager: ReplicaManager,
        moves: ReplicaAlterLogDirsManager,
        assignments: AssignmentsManager,
        monitor: LogDirMonitor,
        scrubs: Scrubs,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._replicas = replicas
        self._replica_manager = replica_manager
        self._moves = moves
        self._assignments = assignments
        self._monitor = monitor
        self._scrubs = scrubs
        self._log = get_logger(component="log_dir_apis")

    # --- AlterReplicaLogDirs ---------------------------------------------------------------------

    async def alter_replica_log_dirs(
        self, request: AlterReplicaLogDirsRequest, _context: RequestContext
    ) -> AlterReplicaLogDirsResponse:
        results: dict[str, list[_PartitionResult]] = defaultdict(list)
        requested_moves = (
            (TopicPartition(topic.name, index), requested_dir.path)
            for requested_dir in request.dirs
            for topic in requested_dir.topics
            for index in topic.partitions
        )
        count = logged = 0
        async for topic_partition, path in in_slices(requested_moves):
            count += 1
            refusal: OperatingError | None = _TOO_MANY_MOVES
            if count <= MAX_ITEMS_PER_REQUEST:
                refusal = await self._alter(
                    topic_partition, path, is_reported=logged < MAX_LOGGED_PER_REQUEST
                )
            result = _PartitionResult(
                partition_index=topic_partition.partition, error_code=ErrorCode.NONE
            )
            if refusal is not None:
                logged += 1
                result.error_code, result.error_message = refusal.code, refusal.message
            results[topic_partition.topic].append(result)
        return AlterReplicaLogDirsResponse(
            results=[
                _TopicResult(topic_name=name, partitions=parts) for name, parts in results.items()
            ]
        )

    async def _alter(
        self, topic_partition: TopicPartition, where: str, *, is_reported: bool
    ) -> OperatingError | None:
        """Start or cancel a move. Return the error if the request is refused, else None.

        :param where: path or ``dirid:<uuid>`` of a directory, or ``any``.
        """
        # A swap takes milliseconds; until its end the replica's directory is undecided.
        await self._moves.swap_over(topic_partition)
        try:
            self._move(topic_partition, where)
        except OperatingError as e:
            if is_reported:
                self._log.info(
                    "replica_move_refused",
                    partition=shortened(str(topic_partition)),
                    log_dir=shortened(where),
                    code=e.code.name,
                    reason=e.message,
                )
            return e
        return None

    def _move(self, topic_partition: TopicPartition, where: str) -> None:
        """Start or cancel a move, as AlterReplicaLogDirs requests.

        :param where: path or ``dirid:<uuid>`` of a directory, or ``any``.
        :raises OperatingError: INVALID_TOPIC_EXCEPTION, LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR or
            REPLICA_NOT_AVAILABLE.
        """
        future_dir_name(topic_partition, _SOME_ID)
        target = None if where == ANY_DIRECTORY else self._online_dir(where)
        replica = self._replicas.get(topic_partition)
        if target is not None and target.is_cordoned and not _is_in(replica, target):
            raise OperatingError(
                f"{target.path} is cordoned and takes no new replicas (KIP-1066)",
                code=ErrorCode.KAFKA_STORAGE_ERROR,
            )
        if target is not None and target.is_impaired and not _is_in(replica, target):
            raise target.impaired_error()
        if replica is not None and replica.is_offline:
            raise KafkaStorageError(f"the log directory of {topic_partition} is offline")
        if replica is None or replica.handle is None:
            self._replica_manager.prefer_directory(
                topic_partition, None if target is None else target.directory_id
            )
            raise OperatingError(
                f"{topic_partition} is not on this broker yet; where it shall be made is noted",
                code=ErrorCode.REPLICA_NOT_AVAILABLE,
            )
        if target is None:
            self._moves.cancel(topic_partition)
        else:
            self._moves.start(replica, target)

    def _online_dir(self, where: str) -> LogDir:
        """Return the online directory with this absolute path or ``dirid:<uuid>``.

        :raises KafkaStorageError: the directory is offline.
        :raises OperatingError: LOG_DIR_NOT_FOUND.
        """
        for log_dir in self._logs.dirs():
            if where in (log_dir.path, log_dir.directory_id.reference):
                if not log_dir.is_online:
                    raise log_dir.offline_error()
                return log_dir
        raise OperatingError(
            f"{where} is none of this broker's log.dirs, which are "
            f"{', '.join(log_dir.path for log_dir in self._logs.dirs())}",
            code=ErrorCode.LOG_DIR_NOT_FOUND,
        )

    # --- DescribeLogDirs -------------------------------------------------------------------------

    async def describe_log_dirs(
        self, request: DescribeLogDirsRequest, _context: RequestContext
    ) -> DescribeLogDirsResponse:
        wanted = _wanted(request)
        by_dir: dict[LogDir, list[_Copy]] = defaultdict(list)
        for handle in self._logs.handles():
            copy = _Copy(handle.topic_partition, handle.size_bytes, self._lag(handle), False)
            by_dir[handle.log_dir].append(copy)
        for future in self._logs.futures():
            lag = self._future_lag(future)
            copy = _Copy(future.topic_partition, future.size_bytes, lag, True)
            by_dir[future.log_dir].append(copy)
        for move in self._moves.moves():
            # A requested move without files yet must not look finished.
            tp = move.topic_partition
            current = self._logs.get(tp)
            if current is not None and self._logs.future(tp) is None:
                by_dir[move.target].append(_Copy(tp, 0, current.log_end_offset, True))
        assigned = Counter(
            replica.registration.directory_of(self._broker_id) for replica in self._replicas
        )
        response = DescribeLogDirsResponse(
            broker_id=self._broker_id,
            lost_replicas=sorted(
                str(replica.topic_partition)
                for replica in self._replicas
                if isinstance(replica.waits_because_of, WaitOutOfSync)
            ),
            results=[
                *[await self._describe(d, by_dir[d], wanted) for d in self._logs.online_dirs()],
                *(
                    self._describe_offline(d, assigned[d.directory_id])
                    for d in self._logs.offline_dirs()
                ),
            ],
        )
        if request.include_strays:
            strays: dict[str, list[_Stray]] = defaultdict(list)
            for stray in self._logs.strays.all():
                strays[stray.log_dir.path].append(_describe_stray(stray))
            for result in response.results:
                result.strays = strays[result.log_dir]
        return response

    def _describe_offline(self, log_dir: LogDir, assigned: int) -> _Result:
        return _Result(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR,
            log_dir=log_dir.path,
            directory_id=log_dir.directory_id,
            state=log_dir.state.value,
            queued_assignments=self._assignments.queued_into(log_dir.directory_id),
            is_cordoned=log_dir.is_cordoned,
            reason=log_dir.offline_reason,
            assigned_replicas=assigned,
        )

    async def _describe(
        self, log_dir: LogDir, copies: list[_Copy], wanted: Collection[TopicPartition] | None
    ) -> _Result:
        by_topic: dict[str, list[_Copy]] = defaultdict(list)
        for copy in copies:
            if wanted is None or copy.topic_partition in wanted:
                by_topic[copy.topic_partition.topic].append(copy)
        described = _Result(
            log_dir=log_dir.path,
            topics=[
                _Topic(
                    name=topic,
                    partitions=[
                        _Partition(
                            partition_index=copy.topic_partition.partition,
                            partition_size=copy.size_bytes,
                            offset_lag=copy.lag,
                            is_future_key=copy.is_future,
                        )
                        for copy in sorted(parts)
                    ],
                )
                async for topic, parts in in_slices(sorted(by_topic.items()))
            ],
            total_bytes=log_dir.space.total_bytes,
            usable_bytes=log_dir.space.usable_bytes,
            directory_id=log_dir.directory_id,
            state=log_dir.state.value,
            queued_assignments=self._assignments.queued_into(log_dir.directory_id),
            is_cordoned=log_dir.is_cordoned,
            reserve_bytes=log_dir.reserve_bytes,
            growth_bytes_per_second=round(self._monitor.disk_growth_bytes_per_second(log_dir)),
            log_growth_bytes_per_second=round(self._monitor.growth_bytes_per_second(log_dir)),
            reason=log_dir.impaired_reason,
            latency_ms=self._monitor.latency_ms(log_dir),
            is_slow=self._monitor.is_slow(log_dir),
        )
        seconds = self._monitor.seconds_until_full(log_dir)
        if seconds is not None:
            described.seconds_until_full = round(min(seconds, _MAX_SECONDS))
        scrub = self._scrubs.by_dir.get(log_dir)
        if scrub is not None:
            described.last_scrub_ms = scrub.state.completed_ms
            described.scrub_errors = scrub.state.damages
        return described

    def _future_lag(self, future: FutureReplica) -> int:
        """Return the number of offsets that the future copy lacks; -1 if unknown."""
        handle = self._logs.get(future.topic_partition)
        return _UNKNOWN_LAG if handle is None else future.lag_of(handle)

    def _lag(self, handle: LogHandle) -> int:
        """Return the number of committed offsets that the current copy lacks; -1 if unknown."""
        replica = self._replicas.get(handle.topic_partition)
        if replica is None or replica.partition is None:
            return _UNKNOWN_LAG
        return max(0, replica.partition.high_watermark - handle.log_end_offset)


def _describe_stray(stray: Stray) -> _Stray:
    tp, mark = stray.topic_partition, stray.mark
    return _Stray(
        topic_name="" if tp is None else tp.topic,
        partition_index=-1 if tp is None else tp.partition,
        topic_id=stray.topic_id or ZERO_UUID,
        size=stray.size_bytes,
        set_aside_ms=-1 if mark is None else mark.set_aside_ms,
        reason="" if mark is None else mark.reason.value,
        directory=stray.directory.rpartition("/")[2],
    )


def _is_in(replica: HostedReplica | None, log_dir: LogDir) -> bool:
    return replica is not None and replica.handle is not None and replica.handle.log_dir is log_dir


def _wanted(request: DescribeLogDirsRequest) -> Collection[TopicPartition] | None:
    """Return the partitions that the request names; None for all."""
    if request.topics is None:
        return None
    return {
        TopicPartition(topic.topic, index) for topic in request.topics for index in topic.partitions
    }
