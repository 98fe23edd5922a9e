"""Batches of every replica of a real cluster, sound and damaged."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from pyspark.sql import SparkSession

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.protocol.record_batch import batches, compute_crc
from kraftjbod.spark.audit.log_ranges import ClusterLogs, describe_logs
from kraftjbod.spark.audit.replica_batches import (
    ReplicaReader,
    ranges_frame,
    read_replica_batches,
    replica_ranges,
    tasks_for,
)
from kraftjbod.spark.audit.replica_frames import replica_differences
from kraftjbod.spark.tables.schemas import REPLICA_BATCHES, REPLICA_RANGES
from tests.integration import raw
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

BATCHES, PER_BATCH = 12, 5
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=3, dirs=2)


def make_topic(cluster: Cluster, brokers: tuple[int, ...] = (1, 2, 3)) -> str:
    """Create a topic that the first broker leads."""
    name = f"audited-{next(_numbers)}"
    cluster.create_topic(name, assignments={0: brokers})
    for number in range(BATCHES):
        values = [b"%06d" % (number * PER_BATCH + i) + b"." * 94 for i in range(PER_BATCH)]
        code, _ = raw.produce(cluster.brokers[brokers[0]].address, name, raw.batch(values))
        assert code == 0
    return name


def log_of(cluster: Cluster, broker: int, topic: str) -> Path:
    (path,) = [p for p, held in cluster.replicas_by_dir(broker, topic).items() if held == [0]]
    return Path(path, f"{topic}-0", f"{0:020}.log")


def change(path: Path, number: int, *, keeps_crc: bool) -> None:
    """Invert a byte of batch ``number``; its CRC then differs, or is adapted."""
    log = bytearray(path.read_bytes())
    at, header = list(batches(log))[number]
    log[at + 100] ^= 0xFF
    crc = header.crc if keeps_crc else compute_crc(log, at, header.size_bytes)
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), log[at + 100 : at + 101], at + 100)
        os.pwrite(file.fileno(), crc.to_bytes(4, "big"), at + 17)


def logs_of(cluster: Cluster, *topics: str) -> ClusterLogs:
    async def look() -> ClusterLogs:
        async with ClusterClient(cluster.bootstrap) as client:
            return await describe_logs(client, topics)

    return asyncio.run(look())


def read(cluster: Cluster, row: tuple[Any, ...], *, patience_s: float = 30.0) -> Any:
    """Return all rows of one range: base offset, last offset, finding."""
    found: list[dict[str, Any]] = []

    async def read_all() -> None:
        async with ClusterClient(cluster.bootstrap) as client:
            named = dict(zip(REPLICA_RANGES.fieldNames(), row, strict=True))
            reader = ReplicaReader(client, named, patience_s=patience_s)
            while not reader.is_done:
                found.extend(await reader.step())

    asyncio.run(read_all())
    assert {one.keys() <= set(REPLICA_BATCHES.fieldNames()) for one in found} <= {True}
    return [(one["base_offset"], one["last_offset"], one.get("finding")) for one in found]


def sound(*numbers: int) -> list[tuple[int, int, None]]:
    return [(n * PER_BATCH, n * PER_BATCH + PER_BATCH - 1, None) for n in numbers]


def test_read_replica_batches_reads_each_replica_from_its_own_broker(
    cluster: Cluster, spark: SparkSession
) -> None:
    topic = make_topic(cluster)
    logs = logs_of(cluster, topic)
    assert logs.ranges == ((topic, 0, 0, BATCHES * PER_BATCH, False),)
    assert logs.unseen == ()
    assert {(r.broker_id, r.is_leader) for r in logs.replicas} == {
        (1, True),
        (2, False),
        (3, False),
    }
    paths = {r.broker_id: r.path for r in logs.replicas}
    assert paths == {b: str(log_of(cluster, b, topic).parent.parent) for b in (1, 2, 3)}
    # Ranges that begin and end within batches: each batch belongs to the range of its first offset.
    ranges = ranges_frame(spark, replica_ranges(logs, range_offsets=7))
    rows = read_replica_batches(ranges, cluster.bootstrap, tasks=tasks_for(spark, 99)).collect()
    for broker in (1, 2, 3):
        own = sorted(row for row in rows if row.broker_id == broker)
        assert [(r.base_offset, r.last_offset, r.finding) for r in own] == sound(*range(BATCHES))
        assert {(r.record_count, r.producer_id, r.is_control) for r in own} == {
            (PER_BATCH, -1, False)
        }
    assert len({(row.base_offset, row.crc) for row in rows}) == BATCHES


def test_read_of_damaged_batch_reports_it_and_continues_by_another_replica(
    cluster: Cluster,
) -> None:
    topic = make_topic(cluster)
    for broker, number in ((1, 3), (2, 5)):
        change(log_of(cluster, broker, topic), number, keeps_crc=True)
    rows = replica_ranges(logs_of(cluster, topic))
    for broker, number in ((1, 3), (2, 5)):
        (own,) = [row for row in rows if row[2] == broker]
        first = number * PER_BATCH
        damaged = (first, first + PER_BATCH - 1, "damaged")
        behind = sound(*range(number + 1, BATCHES))
        assert read(cluster, own) == [*sound(*range(number)), damaged, *behind]


def test_read_of_damaged_batch_without_another_replica_finds_its_end_by_trial(
    cluster: Cluster,
) -> None:
    topic = make_topic(cluster, brokers=(1,))
    path = log_of(cluster, 1, topic)
    at, _ = list(batches(path.read_bytes()))[3]
    with path.open("r+b") as file:
        # The format version: nothing after it can be read.
        os.pwrite(file.fileno(), b"\x09", at + 16)
    (row,) = replica_ranges(logs_of(cluster, topic))
    found = read(cluster, row)
    # The broker continues after the damage at the next entry of an index.
    (begin, last, finding), behind = found[3], (found[3][1] + 1) // PER_BATCH
    assert (begin, finding) == (15, "damaged") and 19 <= last < 59
    assert found == [*sound(0, 1, 2), found[3], *sound(*range(behind, BATCHES))]


def test_replica_differences_find_batch_changed_with_its_crc(
    cluster: Cluster, spark: SparkSession
) -> None:
    topic = make_topic(cluster)
    change(log_of(cluster, 3, topic), 7, keeps_crc=False)
    ranges = ranges_frame(spark, replica_ranges(logs_of(cluster, topic)))
    read_all = read_replica_batches(ranges, cluster.bootstrap, tasks=2)
    (found,) = replica_differences(read_all, ranges).collect()
    assert (found.difference, found.partition, found.offset, found.broker_id) == (
        "replica_differs",
        0,
        35,
        3,
    )
    assert str(log_of(cluster, 3, topic).parent.parent) in found.detail


def test_read_from_stopped_broker_reports_unread_replicas(cluster: Cluster) -> None:
    topic = make_topic(cluster)
    rows = replica_ranges(logs_of(cluster, topic))
    cluster.stop_daemon(cluster.brokers[2])
    try:
        (own,) = [row for row in rows if row[2] == 2]
        assert read(cluster, own, patience_s=0.5) == [(0, 59, "unread")]
        logs = logs_of(cluster, topic)
        assert logs.unseen == ("broker 2: 1 replicas are offline",)
        assert {replica.broker_id for replica in logs.replicas} == {1, 3}
        assert {replica.path is None for replica in logs.replicas} == {False}
    finally:
        cluster.start_daemon(cluster.brokers[2])


def test_read_of_deleted_records_reports_them_unread_and_of_short_log_nothing(
    cluster: Cluster,
) -> None:
    topic = make_topic(cluster)
    (*place, start, end), *_ = replica_ranges(logs_of(cluster, topic))
    assert (start, end) == (0, 60)
    # More than the log has: its replica is in sync, so the missing part is a difference.
    assert read(cluster, (*place, 55, 65), patience_s=0.5) == sound(11)
    with cluster.admin() as admin:
        admin.delete_records({TopicPartition(topic, 0): 20})
    assert read(cluster, (*place, 0, 30)) == [(0, 19, "unread"), *sound(4, 5)]
