"""WIRE. Finds partitions that refuse writes because too few of their replicas are in sync."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import (
    ConfigEntry,
    ConfigResource,
    ResourceType,
    describe_configs,
)
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.topic_config import MIN_INSYNC_REPLICAS


class ShortPartition(NamedTuple):
    """A partition whose producers with ``acks=all`` get NOT_ENOUGH_REPLICAS.

    ``in_sync`` and ``replicas`` are numbers of replicas. ``needed`` is the partition's
    ``min.insync.replicas``, at most ``replicas``, as in ``Partition.is_under_min_isr``.
    """

    topic_partition: TopicPartition
    in_sync: int
    replicas: int
    needed: int

    def __str__(self) -> str:
        return (
            f"{self.topic_partition} has {self.in_sync} of {self.replicas} replicas in sync and "
            f"needs {self.needed} (min.insync.replicas): writes with acks=all are refused with "
            "NOT_ENOUGH_REPLICAS"
        )


async def short_partitions(client: ClusterClient) -> list[ShortPartition]:
    """Return the partitions of all topics that refuse writes with ``acks=all``, according to one
    broker.

    :raises OperatingError: no broker responds.
    """
    metadata = await client.refresh_metadata()
    suspects = {
        topic.name: topic
        for topic in metadata.topics.values()
        if any(len(part.isr) < len(part.replicas) for part in topic.partitions.values())
    }
    if not suspects:
        return []
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in suspects]
    configs = await describe_configs(client, resources)
    needed = {one.name: min_insync_replicas(entries) for one, entries in configs.items()}
    found = [
        ShortPartition(
            TopicPartition(name, part.partition),
            in_sync=len(part.isr),
            replicas=len(part.replicas),
            needed=min(needed[name], len(part.replicas)),
        )
        for name, topic in sorted(suspects.items())
        for part in topic.partitions.values()
    ]
    return [one for one in found if one.in_sync < one.needed]


def min_insync_replicas(entries: Mapping[str, ConfigEntry]) -> int:
    """Return ``min.insync.replicas`` of a topic; Kafka's default 1 if it is not reported."""
    entry = entries.get(MIN_INSYNC_REPLICAS)
    return int(entry.value) if entry is not None and entry.value is not None else 1
