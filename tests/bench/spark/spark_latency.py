"""From a producer through a streaming query to a consumer, with a trigger of one second.

The producer sends ten records a second with their times. The query copies them with source and
sink, and a consumer computes their ages. On average a record waits half a trigger interval before
its batch begins. A few records pass first, to warm up Java.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from itertools import pairwise
from statistics import median, quantiles
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from tests.bench.figures import Report, running_cluster
from tests.bench.spark.spark_sink import bench_session
from tests.integration.cluster import Cluster

RECORDS: Final = 300
_WARM_UPS: Final = 10
_PAUSE_S: Final = 0.1
_LONGEST_S: Final = 300.0
_FORMATS: Final = {"ours": "kraftjbod", "the connector": "kafka"}


def end_to_end(report: Report) -> None:
    """Our source and sink, then the connector's, on one broker."""
    with running_cluster(brokers=1, dirs=3) as local, bench_session() as (spark, has_connector):
        for name, kind in _FORMATS.items():
            if kind != "kafka" or has_connector:
                load = os.getloadavg()[0]
                latencies, batches = _copied(spark, Cluster(local), kind)
                cuts = quantiles(latencies, n=100)
                how = (
                    f"{len(latencies)} records; {len(batches)} batches, "
                    f"median {median(batches):.0f} ms; load {load:.1f} before"
                )
                for percent in (50, 99):
                    title = f"produce to consume, 1 s trigger, {name}, p{percent}"
                    report.add(title, cuts[percent - 1], "ms", how=how)


def _copied(spark: SparkSession, cluster: Cluster, kind: str) -> tuple[list[float], list[int]]:
    """Latencies of records in ms, and how long batches took in ms."""
    source, to = f"from-{kind}", f"to-{kind}"
    for topic in (source, to):
        cluster.create_topic(topic)
    servers = {"kafka.bootstrap.servers": cluster.bootstrap}
    with tempfile.TemporaryDirectory(prefix="kraftjbod-bench-") as checkpoint:
        query = (
            spark.readStream.format(kind)
            .options(**servers, subscribe=source, startingOffsets="earliest")
            .load()
            .select("key", "value")
            .writeStream.format(kind)
            .options(**servers, topic=to, checkpointLocation=checkpoint)
            .trigger(processingTime="1 second")
            .start()
        )
        try:
            latencies = _timed(cluster.bootstrap, source, to)
            batches = [
                int(progress.durationMs["triggerExecution"])
                for progress in query.recentProgress
                if progress.numInputRows
            ]
        finally:
            query.stop()
    return latencies, batches[_WARM_UPS:]


def _timed(bootstrap: str, source: str, to: str) -> list[float]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "fetch.wait.max.ms": 50}
    )
    consumer.assign([TopicPartition(to, 0, 0)])
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    try:
        for _ in range(_WARM_UPS):
            _produce(producer, source, 1)
            _consume(consumer, 1)
        sender = threading.Thread(target=_produce, args=(producer, source, RECORDS))
        sender.start()
        try:
            return _consume(consumer, RECORDS)
        finally:
            sender.join()
    finally:
        consumer.close()


def _produce(producer: Producer, topic: str, count: int) -> None:
    for _ in range(count):
        producer.produce(topic, str(time.time_ns()))
        producer.poll(0)
        time.sleep(_PAUSE_S)
    assert producer.flush(30) == 0


def _consume(consumer: Consumer, count: int) -> list[float]:
    """Return the age of each record at its arrival, in milliseconds."""
    deadline = time.monotonic() + _LONGEST_S
    found: list[tuple[int, float]] = []
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} records came"
        message = consumer.poll(1.0)
        value = None if message is None or message.error() else message.value()
        if value is not None:
            made = int(value)
            found.append((made, (time.time_ns() - made) / 1e6))
    assert all(one[0] < other[0] for one, other in pairwise(found)), "out of order, or doubled"
    return [latency for _, latency in found]
