"""The topic that the tour creates for a planner: all replicas in full first directories."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.tour.uneven_topic import PARTITIONS, TOPIC, make_uneven_topic
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


def test_uneven_topic_places_all_replicas_in_first_directories(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()

    async def make() -> int:
        async with ClusterClient(cluster.bootstrap) as client:
            await client.retry(client.refresh_metadata)
            return await make_uneven_topic(client, cluster.local, size_bytes=6_000_000)

    assert asyncio.run(make()) > PARTITIONS
    for broker_id in cluster.brokers:
        first, *others = (d for _, d in sorted(cluster.directories(broker_id).items()))
        own = {name: size for name, size in first.sizes.items() if name.startswith(TOPIC)}
        assert len(own) == PARTITIONS
        assert sum(own.values()) > 6_000_000
        assert [name for d in others for name in d.sizes if name.startswith(TOPIC)] == []
