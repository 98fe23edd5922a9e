"""Rows per second into topics: our sink beside Spark's official connector, the same frame, one run.

One broker, acks=all, idempotent producers; two partitions, two tasks. The frame is in Spark's
memory before the measurement; a write ends when Spark reports it. zstd halves the size of the
values. The connector is measured with its defaults and with the batch settings of our sink.
MB are 10**6 bytes of values.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.spark.connector.source import register
from tests.bench.figures import Report, cpu_s, running_cluster
from tests.bench.spark.own_java import own_java
from tests.integration.cluster import Cluster
from tests.spark.official_connector import ConnectorUnreachable, add_connector

BYTES: Final = {100: 100_000_000, 1000: 400_000_000}
TASKS: Final = 2
_WARM_UP_ROWS: Final = 50_000
#: Java's producer sends 16 KiB at once and does not wait; ours a megabyte, after 20 ms.
_OUR_BATCHES: Final = {"kafka.batch.size": "1000000", "kafka.linger.ms": "20"}
SINKS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "our sink": ("kraftjbod", {}),
    "the connector": ("kafka", {}),
    "the connector, our batches": ("kafka", _OUR_BATCHES),
}


@contextmanager
def bench_session() -> Iterator[tuple[SparkSession, bool]]:
    """A session with two threads, and whether it has the official connector."""
    with own_java("3g", master=f"local[{TASKS}]", shuffle_partitions=TASKS) as spark:
        register(spark)
        has_connector = True
        try:
            add_connector(spark)
        except ConnectorUnreachable as e:
            print(f"without the official connector: {e}")
            has_connector = False
        yield spark, has_connector


def sinks(report: Report) -> None:
    """100 B and 1 KB, none and zstd."""
    with running_cluster(brokers=1, dirs=3) as local, bench_session() as (spark, has_connector):
        names = [name for name, (kind, _) in SINKS.items() if has_connector or kind != "kafka"]
        for size in BYTES:
            rows = BYTES[size] // size
            frame = values(spark, size, rows).cache()
            assert frame.count() == rows
            few = frame.limit(_WARM_UP_ROWS)
            for compression in ("none", "zstd"):
                for name in names:
                    _write(few, local, name, compression)
                for name in names:
                    _measure(report, frame, local, name, size, compression)
            frame.unpersist()


def values(spark: SparkSession, size: int, rows: int) -> DataFrame:
    """Hexadecimal digits of hashes, so that no two values are alike."""
    hashes = ", ".join(f"sha2(concat('{n}', id), 256)" for n in range(size // 64 + 1))
    return spark.range(0, rows, 1, TASKS).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key",
        f"CAST(substr(concat({hashes}), 1, {size}) AS BINARY) AS value",
    )


def _measure(
    report: Report,
    frame: DataFrame,
    local: ClusterProcesses,
    name: str,
    size: int,
    compression: str,
) -> None:
    brokers = list(local.brokers.values())
    load, cpu = os.getloadavg()[0], cpu_s(brokers)
    seconds, rows = _write(frame, local, name, compression)
    cpu = cpu_s(brokers) - cpu
    report.add(
        f"{name}, {size} B, {compression}",
        rows * size / seconds / 1e6,
        "MB/s",
        how=f"{rows / seconds:,.0f} rows/s; the broker used {cpu / seconds:.0%} of one CPU; "
        f"load {load:.1f} before",
    )


def _write(
    frame: DataFrame, local: ClusterProcesses, name: str, compression: str
) -> tuple[float, int]:
    """Write to a new topic and delete it. Return the seconds and the number of written rows."""
    kind, options = SINKS[name]
    cluster = Cluster(local)
    topic = f"sink-{time.monotonic_ns()}"
    cluster.create_topic(topic, partitions=TASKS)
    began = time.perf_counter()
    frame.write.format(kind).mode("append").options(
        **{
            "kafka.bootstrap.servers": cluster.bootstrap,
            "kafka.compression.type": compression,
            "topic": topic,
            **options,
        }
    ).save()
    seconds = time.perf_counter() - began
    found = (
        frame.sparkSession.read.format("kraftjbod")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", topic)
        .option("columns", "partition")
        .load()
        .count()
    )
    assert found == frame.count(), f"{found} rows of {frame.count()} are in {topic}"
    with cluster.admin() as admin:
        admin.delete_topics([topic])
    return seconds, found
