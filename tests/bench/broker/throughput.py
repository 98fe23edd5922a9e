"""Produce and consume by librdkafka, MB/s, one broker and three.

One client process beside the daemons on the same machine; three partitions; records of one size
without keys; a warm-up first. MB are 10**6 bytes of values, as librdkafka counts them.
A producer's time ends when all records are acknowledged, a consumer's when all have arrived. The
brokers' CPU time shows whether the client or the broker was the bottleneck.
"""

from __future__ import annotations

import time
from typing import Final

from kraftjbod.local.cluster_process import ClusterProcesses
from tests.bench.figures import Machine, Report, cpu_s, rss_mb, running_cluster
from tests.bench.rdkafka import BatchProducer, CountingConsumer
from tests.integration.cluster import Cluster

PARTITIONS: Final = 3
BYTES: Final = 400_000_000
_WARM_UP_BYTES: Final = 20_000_000
_PRODUCER: Final = {
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 500_000,
}
_CONSUMER: Final = {
    "fetch.message.max.bytes": 1_000_000,
    "queued.max.messages.kbytes": 100_000,
    "queued.min.messages": 1_000_000,
    "check.crcs": "false",
}


def one_broker(report: Report) -> None:
    """Measure a single broker with acks=1 and one replica."""
    with running_cluster(brokers=1, dirs=3) as local:
        beside = Machine.measure(local.run_dir)
        for size in (1000, 100):
            _produce_and_consume(report, local, size, acks="1", replicas=1, beside=beside)
        _report_memory(report, local, "after one broker's load")


def three_brokers(report: Report) -> None:
    """acks=all, RF 3, min.insync.replicas 2."""
    with running_cluster(brokers=3, dirs=3) as local:
        beside = Machine.measure(local.run_dir)
        for size in (1000, 100):
            _produce_and_consume(report, local, size, acks="all", replicas=3, beside=beside)
        _report_memory(report, local, "after three brokers' load")


def _produce_and_consume(
    report: Report, local: ClusterProcesses, size: int, *, acks: str, replicas: int, beside: Machine
) -> None:
    topic = f"bench-{size}"
    Cluster(local).create_topic(
        topic,
        partitions=PARTITIONS,
        replication_factor=replicas,
        min_insync_replicas=min(2, replicas),
    )
    servers = {"bootstrap.servers": local.bootstrap_servers}
    value = bytes(range(256)) * (size // 256 + 1)
    # A third of the bytes for small records, whose cost depends on their number.
    total = BYTES if size >= 1000 else BYTES // 2
    brokers = list(local.brokers.values())
    with BatchProducer(topic, {**servers, **_PRODUCER, "acks": acks}) as producer:
        warmed = _produce(producer, value[:size], _WARM_UP_BYTES // size // PARTITIONS)
        started, cpu = time.perf_counter(), cpu_s(brokers)
        produced = _produce(producer, value[:size], total // size // PARTITIONS)
        seconds, cpu = time.perf_counter() - started, cpu_s(brokers) - cpu
        ends = sum(producer.end_offset(partition) for partition in range(PARTITIONS))
        assert ends == warmed + produced, f"{ends} records arrived of {warmed + produced}"
    name = f"{size} B, acks={acks}, {replicas} broker{'s' if replicas > 1 else ''}"
    how = f"{produced / seconds:,.0f} records/s; brokers used {cpu / seconds:.0%} of one CPU"
    report.add(
        f"produce {name}", produced * size / seconds / 1e6, "MB/s", beside=str(beside), how=how
    )
    _consume(servers, topic, ends // 4)
    cpu = cpu_s(brokers)
    came, seconds = _consume(servers, topic, ends)
    cpu = cpu_s(brokers) - cpu
    how = f"{came / seconds:,.0f} records/s; brokers used {cpu / seconds:.0%} of one CPU"
    report.add(f"consume {name}", came * size / seconds / 1e6, "MB/s", beside=str(beside), how=how)


def _produce(producer: BatchProducer, value: bytes, count_each: int) -> int:
    """Produce to all partitions in turn, a few thousand records at a time."""
    left = count_each
    while left:
        some = min(left, 5000)
        for partition in range(PARTITIONS):
            producer.produce(partition, value, some, at_once=5000)
        left -= some
    producer.flush()
    return count_each * PARTITIONS


def _consume(servers: dict[str, str], topic: str, count: int) -> tuple[int, float]:
    with CountingConsumer(topic, {**servers, **_CONSUMER}) as consumer:
        return consumer.consume(PARTITIONS, count)


def _report_memory(report: Report, local: ClusterProcesses, when: str) -> None:
    for daemon in local.daemons:
        report.add(f"RSS of {daemon.files.name}", rss_mb(daemon), "MB", how=when)
