"""Questions and orders about a cluster: topics, their configuration, log directories, offsets.

One function per request; each turns error codes into :class:`OperatingError` and leaves trying
again to :meth:`ClusterClient.retry`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kraftjbod.cli.cluster_client import ClusterClient, kafka_error
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.kafka_codec import message

EARLIEST: Final = -2
LATEST: Final = -1

_TOPIC_RESOURCE: Final = 2
_DYNAMIC_TOPIC_CONFIG: Final = 1


async def create_topic(
    client: ClusterClient,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    assignment: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create one topic; -1 leaves a number to the cluster.

    :param assignment: broker ids by partition, instead of the two numbers.
    :raises OperatingError: TOPIC_ALREADY_EXISTS and what else the cluster has against it.
    """
    request = message("CreateTopicsRequest")
    topic = request.CreatableTopic(
        name=name,
        num_partitions=-1 if assignment else partitions,
        replication_factor=-1 if assignment else replication_factor,
        assignments=[
            request.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in (assignment or {}).items()
        ],
        configs=[
            request.CreatableTopicConfig(name=key, value=value)
            for key, value in (configs or {}).items()
        ],
    )
    response = await client.request_controller(
        request(topics=[topic], timeout_ms=client.request_timeout_ms)
    )
    for result in response.topics:
        _require_ok(result, f"topic {result.name}")


async def delete_topic(client: ClusterClient, name: str) -> None:
    """:raises OperatingError: UNKNOWN_TOPIC_OR_PARTITION and others."""
    request = message("DeleteTopicsRequest")
    # The name's place moved in version 6; the codec sends the one that the version has.
    body = request(topic_names=[name], timeout_ms=client.request_timeout_ms)
    body.topics = [request.DeleteTopicState(name=name)]
    response = await client.request_controller(body)
    for result in response.responses:
        _require_ok(result, f"topic {result.name}")


async def create_partitions(client: ClusterClient, topic: str, count: int) -> None:
    """Let ``topic`` have ``count`` partitions, more than it has now."""
    request = message("CreatePartitionsRequest")
    response = await client.request_controller(
        request(
            topics=[request.CreatePartitionsTopic(name=topic, count=count, assignments=None)],
            timeout_ms=client.request_timeout_ms,
        )
    )
    for result in response.results:
        _require_ok(result, f"topic {result.name}")


async def topic_configs(
    client: ClusterClient, topics: Iterable[str]
) -> dict[str, dict[str, str | None]]:
    """Each topic's own configuration, without what it inherits."""
    request = message("DescribeConfigsRequest")
    resources = [
        request.DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=None
        )
        for topic in topics
    ]
    response = await client.request_any(request(resources=resources))
    configs = {}
    for result in response.results:
        _require_ok(result, f"topic {result.resource_name}")
        configs[result.resource_name] = {
            entry.name: entry.value
            for entry in result.configs
            if entry.config_source == _DYNAMIC_TOPIC_CONFIG
        }
    return configs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSize:
    """One replica in a log directory; ``offset_lag`` in records behind the leader's end."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirDescription:
    """One log directory; byte figures are -1 where the broker does not tell them."""

    path: str
    error_code: int
    total_bytes: int
    usable_bytes: int
    replicas: tuple[ReplicaSize, ...]


async def describe_log_dirs(client: ClusterClient, broker_id: int) -> list[LogDirDescription]:
    """Every log directory of one broker, in the broker's order."""
    response = await client.request(broker_id, message("DescribeLogDirsRequest")(topics=None))
    _require_ok(response, f"log directories of broker {broker_id}")
    return [
        LogDirDescription(
            path=result.log_dir,
            error_code=result.error_code,
            total_bytes=result.total_bytes,
            usable_bytes=result.usable_bytes,
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
        )
        for result in response.results
    ]


async def list_offsets(
    client: ClusterClient, topic: str, partitions: Iterable[int], timestamp: int
) -> dict[int, int]:
    """Offset by partition for ``timestamp``: milliseconds, :data:`EARLIEST` or :data:`LATEST`.

    -1 where no record is as young as that.
    The client's metadata must know the topic.
    """
    by_leader: dict[int, list[int]] = defaultdict(list)
    for partition in partitions:
        by_leader[client.metadata.leader(topic, partition)].append(partition)
    answers = await asyncio.gather(
        *(_offsets_at(client, node, topic, own, timestamp) for node, own in by_leader.items())
    )
    return {partition: offset for answer in answers for partition, offset in answer.items()}


async def _offsets_at(
    client: ClusterClient, node_id: int, topic: str, partitions: list[int], timestamp: int
) -> dict[int, int]:
    request = message("ListOffsetsRequest")
    wanted = [
        request.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index in partitions
    ]
    response = await client.request(
        node_id,
        request(replica_id=-1, topics=[request.ListOffsetsTopic(name=topic, partitions=wanted)]),
    )
    offsets = {}
    for entry in response.topics[0].partitions:
        _require_ok(entry, f"{topic}-{entry.partition_index}")
        offsets[entry.partition_index] = entry.offset
    return offsets


def _require_ok(result: Any, what: str) -> None:
    if result.error_code != ErrorCode.NONE:
        raise kafka_error(result.error_code, what, getattr(result, "error_message", None))
