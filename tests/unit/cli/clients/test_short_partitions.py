"""``cli/clients/short_partitions.py``, against a scripted broker behind a real listener."""

from __future__ import annotations

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.short_partitions import short_partitions
from kraftjbod.core.ids import TopicPartition
from tests.unit.cli.mini_broker import mini_broker


async def test_short_partitions_lists_partitions_below_min_insync_replicas() -> None:
    """The scripted broker has one of two replicas in sync."""
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        assert await short_partitions(client) == []
        broker.create("enough", 1, **{"min.insync.replicas": "1"})
        broker.create("short", 2, **{"min.insync.replicas": "2"})
        found = await short_partitions(client)
        assert [one.topic_partition for one in found] == [
            TopicPartition("short", 0),
            TopicPartition("short", 1),
        ]
        assert str(found[0]) == (
            "short-0 has 1 of 2 replicas in sync and needs 2 (min.insync.replicas): writes with "
            "acks=all are refused with NOT_ENOUGH_REPLICAS"
        )


async def test_short_partitions_limits_min_insync_replicas_to_the_replication_factor() -> None:
    """As a broker does: two replicas in sync out of two are enough for any min.insync.replicas."""
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        topic = broker.create("two", 2, **{"min.insync.replicas": "3"})
        topic.in_sync = {0}
        [found] = await short_partitions(client)
        assert found.topic_partition == TopicPartition("two", 1)
        assert (found.in_sync, found.replicas, found.needed) == (1, 2, 2)
