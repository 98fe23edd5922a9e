"""Freed disk space: deleted topics, old segments, and stray replicas."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import confluent_kafka
import pytest
from kafka import TopicPartition

from tests.integration import checker, clients
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients]


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(
        brokers=2,
        dirs=2,
        config={
            "log.retention.check.interval.ms": "200",
            "log.segment.delete.delay.ms": "200",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        },
    )


def _found(cluster: Cluster, broker: int, prefix: str) -> list[Path]:
    """Return directories on a broker's disks whose names begin with ``prefix``."""
    return [
        Path(cluster.local.dir_path(broker, number), name)
        for number in (1, 2)
        for name in os.listdir(cluster.local.dir_path(broker, number))
        if name.startswith(prefix)
    ]


def _is_gone(cluster: Cluster, broker: int, prefix: str) -> bool:
    return not _found(cluster, broker, prefix)


def _write(cluster: Cluster, topic: str, megabytes: int) -> None:
    clients.write_confluent(
        cluster.bootstrap, topic, [os.urandom(100_000)] * (10 * megabytes), linger_ms=0
    )


def _size(cluster: Cluster, topic: str) -> int:
    return sum(
        size
        for broker in cluster.brokers
        for found in cluster.directories(broker).values()
        for name, size in found.sizes.items()
        if name == f"{topic}-0"
    )


def _first_offset(cluster: Cluster, topic: str) -> int:
    with cluster.admin() as admin:
        partition = TopicPartition(topic, 0)
        return int(admin.list_partition_offsets({partition: -2})[partition].offset)


def test_deleted_topic_frees_its_disk_space(cluster: Cluster) -> None:
    cluster.create_topic("deleted", partitions=4, replication_factor=2)
    _write(cluster, "deleted", 2)
    assert len(_found(cluster, 1, "deleted-")) == 4
    with cluster.admin() as admin:
        admin.delete_topics(["deleted"])
    for broker in cluster.brokers:
        cluster.wait("the files to go", functools.partial(_is_gone, cluster, broker, "deleted-"))
        assert all(
            not name.startswith("deleted-")
            for found in cluster.directories(broker).values()
            for name in found.sizes
        )


def test_retention_bytes_deletes_old_segments(cluster: Cluster) -> None:
    cluster.create_topic(
        "by-size", replication_factor=2, segment_bytes=500_000, retention_bytes=1_000_000
    )
    _write(cluster, "by-size", 4)
    cluster.wait("old segments to go", lambda: _size(cluster, "by-size") <= 2 * 1_600_000)
    first = _first_offset(cluster, "by-size")
    assert first > 0
    left = list(checker.read(cluster.bootstrap, "by-size", 0))
    assert [offset for offset, _ in left] == list(range(left[0][0], 40))


def test_retention_ms_deletes_old_records_of_the_active_segment(cluster: Cluster) -> None:
    """Records with very old timestamps expire at once; the active segment is rolled for them."""
    cluster.create_topic("by-time", replication_factor=2, retention_ms=60_000)
    producer = confluent_kafka.Producer(clients.quiet(cluster.bootstrap))
    for _ in range(3):
        producer.produce("by-time", value=b"old", partition=0, timestamp=1_000_000)
    assert producer.flush(clients.TIMEOUT_S) == 0
    cluster.wait("the old to go", lambda: _first_offset(cluster, "by-time") == 3)
    assert clients.write_confluent(cluster.bootstrap, "by-time", [b"new"]) == [3]
    assert clients.read_kafka_python(cluster.bootstrap, "by-time", 1) == [b"new"]


def test_replicas_of_topic_deleted_during_broker_outage_become_stray(cluster: Cluster) -> None:
    """A returning broker finds replicas that metadata does not know: stray, not served."""
    cluster.create_topic("stray", partitions=2, replication_factor=2)
    clients.write_confluent(cluster.bootstrap, "stray", [b"v"])
    daemon = cluster.brokers[2]
    cluster.stop_daemon(daemon)
    with cluster.admin(1) as admin:
        admin.delete_topics(["stray"])
    cluster.start_daemon(daemon)
    cluster.wait("replicas to be renamed", lambda: _all_stray(cluster))
    assert len(_found(cluster, 2, "stray-")) == 2
    assert all(
        not name.startswith("stray-")
        for found in cluster.directories(2).values()
        for name in found.sizes
    )


def _all_stray(cluster: Cluster) -> bool:
    return all(path.name.endswith("-stray") for path in _found(cluster, 2, "stray-"))
