"""WIRE. Offsets of the audited logs and places of their replicas, as the cluster reports them.

The driver asks once, and all readers stop at the log ends of that time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kraftjbod.cli.clients.cluster_admin import EARLIEST, LATEST, list_offsets
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import ConfigResource, ResourceType, describe_configs
from kraftjbod.cli.clients.replica_admin import describe_log_dirs
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import NO_LEADER
from kraftjbod.spark.audit.audit_sieve import LogRange

#: Number of brokers asked for their directories in parallel.
_ASKED_AT_ONCE: Final = 16
_CLEANUP_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"


class ReplicaPlace(NamedTuple):
    """An in-sync replica; ``path`` is None if the broker does not report its directory."""

    topic: str
    partition: int
    broker_id: int
    path: str | None
    is_leader: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLogs:
    """The offset ranges and the in-sync replicas of the audited topics.

    ``unseen`` has a sentence per broker about its replicas that are not in ``replicas``.
    """

    ranges: tuple[LogRange, ...]
    replicas: tuple[ReplicaPlace, ...]
    unseen: tuple[str, ...]


async def describe_logs(client: ClusterClient, topics: Sequence[str]) -> ClusterLogs:
    """Return the offset ranges and the in-sync replicas of the partitions of ``topics``.

    A partition without a leader has no replicas in the result. ``unseen`` describes the replicas
    that are offline or not in sync.

    :raises OperatingError: a topic does not exist, or no broker responds.
    """
    await client.retry(lambda: client.refresh_metadata(topics))
    for topic in topics:
        client.metadata.topic(topic)
    compacted = await _compacted(client, topics)
    ranges = [
        LogRange(topic, partition, *offsets, topic in compacted)
        for topic in topics
        for partition, offsets in (await _offsets(client, topic)).items()
    ]
    paths = await _paths(client, frozenset(topics))
    return ClusterLogs(
        ranges=tuple(ranges),
        replicas=tuple(_in_sync(client, topics, paths)),
        unseen=tuple(_unseen(client, topics)),
    )


async def log_starts(
    client: ClusterClient, ranges: Iterable[LogRange]
) -> dict[tuple[str, int], int]:
    """Return the current log start offset by topic and partition, of the partitions of ``ranges``
    that have a leader. Retention may have advanced it since ``ranges`` were read.

    :raises OperatingError: a topic does not exist, or no broker responds.
    """
    starts = {}
    for topic in sorted({one.topic for one in ranges}):
        for partition, (start, _) in (await _offsets(client, topic)).items():
            if start is not None:
                starts[topic, partition] = start
    return starts


async def _offsets(client: ClusterClient, topic: str) -> dict[int, tuple[int | None, int | None]]:
    """Return start and end of each partition; None for both without a leader after all attempts."""

    async def ask() -> dict[int, tuple[int | None, int | None]]:
        partitions = client.metadata.topic(topic).partitions
        starts = await list_offsets(client, topic, partitions, EARLIEST)
        ends = await list_offsets(client, topic, partitions, LATEST)
        return {index: (starts[index], ends[index]) for index in partitions}

    async def ask_of_led() -> dict[int, tuple[int | None, int | None]]:
        partitions = client.metadata.topic(topic).partitions
        led = [index for index, one in partitions.items() if one.leader != NO_LEADER]
        starts = await list_offsets(client, topic, led, EARLIEST)
        ends = await list_offsets(client, topic, led, LATEST)
        return {index: (starts.get(index), ends.get(index)) for index in partitions}

    try:
        return await client.retry(ask, topics=[topic])
    except OperatingError:
        metadata = await client.refresh_metadata([topic])
        if all(one.leader != NO_LEADER for one in metadata.topic(topic).partitions.values()):
            raise
        return await client.retry(ask_of_led, topics=[topic])


async def _compacted(client: ClusterClient, topics: Iterable[str]) -> frozenset[str]:
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    described = await client.retry(lambda: describe_configs(client, resources))
    return frozenset(
        resource.name
        for resource, entries in described.items()
        if _CLEANUP_POLICY in entries and _COMPACT in (entries[_CLEANUP_POLICY].value or "")
    )


async def _paths(client: ClusterClient, topics: frozenset[str]) -> dict[tuple[int, str, int], str]:
    """Return the directory of each replica by broker, topic and partition.

    Replicas of brokers that do not respond are missing.
    """
    gate = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def ask(broker_id: int) -> dict[tuple[int, str, int], str]:
        async with gate:
            try:
                described = await describe_log_dirs(client, broker_id)
            except OperatingError:
                return {}  # The directories of this broker's replicas stay unknown.
        return {
            (broker_id, replica.topic, replica.partition): log_dir.path
            for log_dir in described
            for replica in log_dir.replicas
            if replica.topic in topics and not replica.is_future
        }

    await client.retry(client.refresh_metadata)
    asked = await asyncio.gather(*(ask(broker_id) for broker_id in client.metadata.brokers))
    return {place: path for answer in asked for place, path in answer.items()}


def _in_sync(
    client: ClusterClient, topics: Iterable[str], paths: dict[tuple[int, str, int], str]
) -> Iterator[ReplicaPlace]:
    for topic in topics:
        for partition, described in client.metadata.topic(topic).partitions.items():
            for broker_id in described.isr:
                path = paths.get((broker_id, topic, partition))
                is_leader = broker_id == described.leader
                if described.leader != NO_LEADER:
                    yield ReplicaPlace(topic, partition, broker_id, path, is_leader)


def _unseen(client: ClusterClient, topics: Iterable[str]) -> Iterator[str]:
    """Yield one sentence per broker and reason about replicas that are not audited."""
    counted: Counter[tuple[int, str]] = Counter()
    for topic in topics:
        for described in client.metadata.topic(topic).partitions.values():
            for broker_id in described.replicas:
                if broker_id in described.offline_replicas:
                    counted[broker_id, "offline"] += 1
                elif broker_id not in described.isr:
                    counted[broker_id, "not in sync"] += 1
    for (broker_id, reason), count in sorted(counted.items()):
        yield f"broker {broker_id}: {count} replicas are {reason}"
