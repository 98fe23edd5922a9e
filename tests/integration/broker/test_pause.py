"""A paused broker closes no connection, so that clients may wait long for its responses."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.protocol.records import Record
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

TOPIC = "pause"


def test_producer_leaves_paused_broker_for_the_new_leader(
    make_cluster: MakeCluster,
) -> None:
    """The request timeout is ten minutes, and the new leader is elected after four seconds."""
    cluster = make_cluster(brokers=3, dirs=1, config={"broker.session.timeout.ms": "4000"})
    cluster.create_topic(TOPIC, partitions=1, replication_factor=3, min_insync_replicas=2)
    asyncio.run(_produce(cluster))


async def _produce(cluster: Cluster) -> None:
    async with ClusterClient(cluster.bootstrap) as client:
        await client.retry(client.refresh_metadata)
        producer = Producer(client, TOPIC, request_timeout_ms=600_000)
        assert await producer.send(0, [_record(b"before")]) == 0
        leader = client.metadata.leader(TOPIC, 0)
        pid = cluster.brokers[leader].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(200):
                assert await producer.send(0, [_record(b"while it is paused")]) == 1
        finally:
            os.kill(pid, signal.SIGCONT)
        assert client.metadata.leader(TOPIC, 0) != leader
        await asyncio.to_thread(cluster.wait_whole, TOPIC)
        assert await producer.send(0, [_record(b"after")]) == 2


def _record(value: bytes) -> Record:
    return Record(value=value)
