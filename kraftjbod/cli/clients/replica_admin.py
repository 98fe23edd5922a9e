"""WIRE. Requests about the locations of replicas: log directories, moves, reassignments.

The rules are those of cluster_admin.py. A request about many partitions does not raise for a single
partition, but returns the errors.

The functions work with any Kafka cluster. Values that only kraftjbod reports are None elsewhere.
Other clusters ignore target directories: see :func:`alter_partition_reassignments`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from kraftjbod.cli.clients.cluster_admin import WITH_FENCED_BROKERS, require_ok
from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import ZERO_UUID, DirectoryId, TopicId, TopicPartition
from kraftjbod.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ListPartitionReassignmentsRequest,
)

N = TypeVar("N", int, float)
_ReassignablePartition = AlterPartitionReassignmentsRequest.ReassignablePartition
_Outcome = (
    AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
    | AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
)

#: A growth rate that was not reported.
MIN_LONG: Final = -(2**63)

#: AlterPartitionReassignments: the first version that can forbid a change of the factor.
_WITH_FIXED_REPLICATION_FACTOR: Final = 1

Refusals = dict[TopicPartition, OperatingError]
"""The errors of refused partitions; all other requested partitions were accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSize:
    """One copy of a replica in a log directory.

    ``offset_lag`` counts the records that are missing: for a current copy up to the high watermark,
    for a future copy up to the current copy. An unknown lag is -1.
    """

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayReplica:
    """A copy of a replica that a broker keeps and does not serve; unknown values are None.

    ``directory`` is its name in the log directory. ``set_aside_ms`` is wall-clock ms.
    """

    topic: str | None
    partition: int | None
    topic_id: TopicId | None
    size_bytes: int
    set_aside_ms: int | None
    reason: str | None
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirDescription:
    """One log directory. ``total_bytes`` and ``usable_bytes`` are -1 if they are not reported.

    Only kraftjbod reports the fields with a default, which is their value if they are not reported.
    ``state`` is "online", "saturated", "stalled" or "offline"; in :class:`RegisteredBroker` it is
    "down" or "offline". ``queued_assignments`` counts replicas whose directory the controller does
    not know yet. Times are wall-clock ms.
    ``last_scrub_ms`` is also None if no scrub was completed.
    """

    path: str
    error_code: int
    total_bytes: int
    usable_bytes: int
    is_cordoned: bool
    """False also if the cluster does not support cordoning."""
    replicas: tuple[ReplicaSize, ...]
    directory_id: DirectoryId | None = None
    state: str | None = None
    queued_assignments: int | None = None
    reserve_bytes: int | None = None
    growth_bytes_per_second: int | None = None
    """Growth of the directory's logs."""
    disk_growth_bytes_per_second: int | None = None
    """Growth of the used space on its file system."""
    seconds_until_full: int | None = None
    """Estimated from the faster growth; None also if the used space does not grow."""
    reason: str | None = None
    """The reason why the directory is not online."""
    assigned_replicas: int | None = None
    """Number of replicas that the metadata assigns to the directory, if it cannot be read."""
    latency_ms: float | None = None
    is_slow: bool = False
    last_scrub_ms: int | None = None
    scrub_errors: int | None = None
    strays: tuple[StrayReplica, ...] = ()
    """Empty unless requested."""


async def describe_log_dirs(
    client: ClusterClient, broker_id: int, *, include_strays: bool = False
) -> list[LogDirDescription]:
    """Return every log directory of one broker, in the broker's order.

    :param include_strays: whether to list stray replicas.
    :raises OperatingError: the broker does not respond, or reports an error.
    """
    response = await client.request(
        broker_id,
        DescribeLogDirsRequest(topics=None, include_strays=include_strays),
    )
    require_ok(response, f"log directories of broker {broker_id}")
    return [_log_dir(result) for result in response.results]


async def lost_replicas(client: ClusterClient, broker_id: int) -> list[str]:
    """Return ``topic-partition`` of the replicas of one broker that are lost with its disks and
    were the last in-sync replicas of their partitions. Kafka's brokers report none.

    :raises OperatingError: the broker does not respond, or reports an error.
    """
    response = await client.request(broker_id, DescribeLogDirsRequest(topics=[]))
    require_ok(response, f"log directories of broker {broker_id}")
    return list(response.lost_replicas)


async def describe_own_log_dirs(
    client: ClusterClient,
) -> tuple[int | None, list[LogDirDescription]]:
    """Return the id and the log directories of the broker that responds, without replicas.

    The id is None from Kafka's brokers.

    :raises OperatingError: no broker responds, or the broker reports an error.
    """
    response = await client.request_from_any_broker(DescribeLogDirsRequest(topics=[]))
    require_ok(response, "log directories")
    return _unless_negative(response.broker_id), [_log_dir(result) for result in response.results]


def _log_dir(result: DescribeLogDirsResponse.DescribeLogDirsResult) -> LogDirDescription:
    is_named = result.directory_id != ZERO_UUID
    return LogDirDescription(
        path=result.log_dir,
        error_code=result.error_code,
        total_bytes=result.total_bytes,
        usable_bytes=result.usable_bytes,
        is_cordoned=result.is_cordoned,
        replicas=tuple(
            ReplicaSize(
                topic=topic.name,
                partition=replica.partition_index,
                size_bytes=replica.partition_size,
                offset_lag=replica.offset_lag,
                is_future=replica.is_future_key,
            )
            for topic in result.topics
            for replica in topic.partitions
        ),
        directory_id=DirectoryId(result.directory_id) if is_named else None,
        state=result.state or None,
        queued_assignments=_unless_negative(result.queued_assignments),
        reserve_bytes=_unless_negative(result.reserve_bytes),
        growth_bytes_per_second=_unless_least(result.log_growth_bytes_per_second),
        disk_growth_bytes_per_second=_unless_least(result.growth_bytes_per_second),
        seconds_until_full=_unless_negative(result.seconds_until_full),
        reason=result.reason or None,
        assigned_replicas=_unless_negative(result.assigned_replicas),
        latency_ms=_unless_negative(result.latency_ms),
        is_slow=result.is_slow,
        last_scrub_ms=_unless_negative(result.last_scrub_ms),
        scrub_errors=_unless_negative(result.scrub_errors),
        strays=tuple(
            StrayReplica(
                topic=stray.topic_name or None,
                partition=_unless_negative(stray.partition_index),
                topic_id=None if stray.topic_id == ZERO_UUID else TopicId(stray.topic_id),
                size_bytes=stray.size,
                set_aside_ms=_unless_negative(stray.set_aside_ms),
                reason=stray.reason or None,
                directory=stray.directory,
            )
            for stray in result.strays
        ),
    )


class RegisteredBroker(NamedTuple):
    """A registered broker, running or not, and its directories according to the metadata."""

    is_fenced: bool
    log_dirs: list[LogDirDescription]


async def registered_brokers(client: ClusterClient) -> dict[int, RegisteredBroker]:
    """Return all registered brokers, running or not; empty if the cluster does not report them.

    :raises OperatingError: no broker responds, or the request is refused.
    """
    request = DescribeClusterRequest(include_fenced_brokers=True, include_log_dirs=True)
    try:
        response = await client.request_from_any_broker(request, min_version=WITH_FENCED_BROKERS)
    except OperatingError as e:
        if e.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise
    require_ok(response, "cluster")
    return {
        broker.broker_id: RegisteredBroker(
            broker.is_fenced, list(map(_registered, broker.log_dirs))
        )
        for broker in response.brokers
    }


def _registered(log_dir: DescribeClusterResponse.DescribeClusterLogDir) -> LogDirDescription:
    lost = ", and the directory was lost before" if log_dir.is_offline else ""
    return LogDirDescription(
        path=log_dir.path or "?",
        error_code=ErrorCode.BROKER_NOT_AVAILABLE,
        total_bytes=-1,
        usable_bytes=-1,
        is_cordoned=log_dir.is_cordoned,
        replicas=(),
        directory_id=DirectoryId(log_dir.directory_id),
        state="offline" if log_dir.is_offline else "down",
        reason=f"the broker is down{lost}",
        assigned_replicas=log_dir.replicas,
    )


def _unless_least(reported: int) -> int | None:
    return None if reported == MIN_LONG else reported


def _unless_negative(reported: N) -> N | None:
    return reported if reported >= 0 else None


async def alter_replica_log_dirs(
    client: ClusterClient, broker_id: int, moves: Mapping[str, Iterable[TopicPartition]]
) -> Refusals:
    """Move replicas of one broker to other directories (KIP-113); return the errors.

    A started move continues automatically. :func:`describe_log_dirs` shows its progress. The error
    REPLICA_NOT_AVAILABLE means that the broker does not have the replica yet and remembers the
    directory.

    :param moves: replicas by the absolute path of their new directory. kraftjbod also accepts
        ``"dirid:<uuid>"``, and ``"any"``, which ends a move. On any cluster, the current directory
        of a replica ends its move.
    """
    dirs = [
        AlterReplicaLogDirsRequest.AlterReplicaLogDir(
            path=path,
            topics=[
                AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(
                    name=topic, partitions=partitions
                )
                for topic, partitions in _by_topic(replicas).items()
            ],
        )
        for path, replicas in moves.items()
    ]
    response = await client.request(broker_id, AlterReplicaLogDirsRequest(dirs=dirs))
    refusals: Refusals = {}
    for topic in response.results:
        refusals |= _refused(topic.topic_name, topic.partitions)
    return refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """The requested replicas of a partition; None in ``replicas`` cancels its reassignment.

    ``target_dirs`` is empty or parallel to ``replicas``, and applies to new replicas: ``"any"``, an
    absolute path, or ``"dirid:<uuid>"``.
    """

    topic_partition: TopicPartition
    replicas: Sequence[int] | None
    target_dirs: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingReassignment:
    """A partition being reassigned; ``replicas`` includes the added and the removed ones."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    def document(self) -> dict[str, Any]:
        return {"replicas": self.replicas, "adding": self.adding, "removing": self.removing}


async def alter_partition_reassignments(
    client: ClusterClient,
    reassignments: Iterable[Reassignment],
    *,
    allow_replication_factor_change: bool = True,
) -> Refusals:
    """Start or cancel moves of replicas between brokers (KIP-455).

    Kafka's brokers silently ignore ``Reassignment.target_dirs``. Callers therefore call
    :func:`alter_replica_log_dirs` afterwards with the same directories. That call has no effect on
    a cluster that used ``target_dirs``.

    :returns: the errors of refused partitions.
    :raises OperatingError: the request as a whole failed; UNSUPPORTED_VERSION: the cluster cannot
        forbid a change of the replication factor.
    """
    by_topic: dict[str, list[_ReassignablePartition]] = defaultdict(list)
    for reassignment in reassignments:
        by_topic[reassignment.topic_partition.topic].append(
            _ReassignablePartition(
                partition_index=reassignment.topic_partition.partition,
                replicas=None if reassignment.replicas is None else list(reassignment.replicas),
                target_directories=list(reassignment.target_dirs),
            )
        )
    topics = [
        AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=partitions)
        for topic, partitions in by_topic.items()
    ]
    response = await client.request_controller(
        AlterPartitionReassignmentsRequest(
            timeout_ms=client.request_timeout_ms,
            allow_replication_factor_change=allow_replication_factor_change,
            topics=topics,
        ),
        min_version=0 if allow_replication_factor_change else _WITH_FIXED_REPLICATION_FACTOR,
    )
    require_ok(response, "reassignment")
    refusals: Refusals = {}
    for answer in response.responses:
        refusals |= _refused(answer.name, answer.partitions)
    return refusals


async def list_partition_reassignments(
    client: ClusterClient, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, OngoingReassignment]:
    """Return the ongoing reassignments by partition.

    :param partitions: only these partitions; None for all.
    :raises OperatingError: the controller does not respond, or reports an error.
    """
    topics = None
    if partitions is not None:
        topics = [
            ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(
                name=topic, partition_indexes=indexes
            )
            for topic, indexes in _by_topic(partitions).items()
        ]
    response = await client.request_controller(
        ListPartitionReassignmentsRequest(timeout_ms=client.request_timeout_ms, topics=topics)
    )
    require_ok(response, "reassignments")
    return {
        TopicPartition(topic.name, partition.partition_index): OngoingReassignment(
            replicas=tuple(partition.replicas),
            adding=tuple(partition.adding_replicas),
            removing=tuple(partition.removing_replicas),
        )
        for topic in response.topics
        for partition in topic.partitions
    }


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for key in partitions:
        by_topic[key.topic].append(key.partition)
    return by_topic


def _refused(topic: str, results: Iterable[_Outcome]) -> Refusals:
    keyed = {TopicPartition(topic, result.partition_index): result for result in results}
    return {
        key: kafka_error(result.error_code, str(key), getattr(result, "error_message", None))
        for key, result in keyed.items()
        if result.error_code != ErrorCode.NONE
    }
