"""The Spark source beside Spark's official connector: same topic, same query, same session.

Two task slots and one broker on the same machine, three partitions, the topic in the page cache.
The query uses each value (the sum of their lengths) and each offset, because the connector could
skip unused columns in a plain count. Each source reads once to warm up, then both read in turns;
the median is reported. CPU is that of Java and the Python workers per million rows. Unlike the
rate, it hardly depends on other load of the machine.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any, Final

import confluent_kafka
import psutil
from pyspark.sql import SparkSession

from kraftjbod.local.cluster_process import ClusterProcesses
from tests.bench.figures import Report, cpu_s, running_cluster
from tests.bench.spark.spark_sink import bench_session
from tests.integration.cluster import Cluster

_Formats = dict[str, tuple[str, dict[str, str]]]

PARTITIONS: Final = 3
ROWS: Final = {100: 900_000, 1000: 240_000}
CODECS: Final = ("none", "zstd")
_ROUNDS: Final = 3
_VALUES: Final = 1000
_AT_ONCE: Final = 10_000
_FLUSH_EVERY: Final = 20
OURS: Final[_Formats] = {
    "our source": ("kraftjbod", {}),
    "our source, the two columns": ("kraftjbod", {"columns": "value,offset"}),
}
THEIRS: Final[_Formats] = {"the connector": ("kafka", {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """One run of the query."""

    seconds: float
    cpu_s: float
    broker_cpu_s: float


def beside_the_connector(report: Report) -> None:
    with bench_session() as (spark, has_connector):
        formats = {**OURS, **(THEIRS if has_connector else {})}
        with running_cluster(brokers=1, dirs=3) as local:
            for size, rows in ROWS.items():
                for codec in CODECS:
                    topic = f"source-{size}-{codec}"
                    _fill(local, topic, size, rows, codec)
                    _compare(report, spark, local, topic, formats, size=size, codec=codec)


def _compare(
    report: Report,
    spark: SparkSession,
    local: ClusterProcesses,
    topic: str,
    formats: _Formats,
    *,
    size: int,
    codec: str,
) -> None:
    reads: dict[str, list[_Read]] = {name: [] for name in formats}
    for round_number in range(_ROUNDS + 1):
        for name, (kind, options) in formats.items():
            found = _read(spark, local, topic, kind, options, size)
            if round_number:
                reads[name].append(found)
    rows = ROWS[size]
    for name, own in reads.items():
        seconds = statistics.median(read.seconds for read in own)
        spent = statistics.median(read.cpu_s for read in own)
        broker = statistics.median(read.broker_cpu_s for read in own)
        report.add(
            f"Spark reads {size} B, {codec}: {name}",
            rows / seconds,
            "rows/s",
            how=f"{rows * size / seconds / 1e6:,.0f} MB/s; CPU {spent / rows * 1e6:.1f} s, broker "
            f"{broker / rows * 1e6:.1f} s per million rows; load {os.getloadavg()[0]:.1f}",
        )


def _read(
    spark: SparkSession,
    local: ClusterProcesses,
    topic: str,
    kind: str,
    options: dict[str, str],
    size: int,
) -> _Read:
    servers = {"kafka.bootstrap.servers": local.bootstrap_servers}
    brokers = list(local.brokers.values())
    cpu, broker, began = _spark_cpu_s(), cpu_s(brokers), time.perf_counter()
    frame = spark.read.format(kind).options(**servers, subscribe=topic, **options).load()
    (found,) = frame.selectExpr("count(value)", "sum(length(value))", "max(offset)").collect()
    seconds = time.perf_counter() - began
    rows = ROWS[size]
    assert tuple(found) == (rows, rows * size, rows // PARTITIONS - 1), found
    return _Read(seconds=seconds, cpu_s=_spark_cpu_s() - cpu, broker_cpu_s=cpu_s(brokers) - broker)


def _spark_cpu_s() -> float:
    """Return the CPU seconds of Java and its Python processes, ended ones included."""
    spent = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if not any("kraftjbod.daemon" in part for part in process.cmdline()):
                times: Any = process.cpu_times()
                spent += times.user + times.system + times.children_user + times.children_system
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return spent


def _fill(local: ClusterProcesses, topic: str, size: int, rows: int, codec: str) -> None:
    """Values of hexadecimal text, so that a codec has something to do and halves them."""
    Cluster(local).create_topic(topic, partitions=PARTITIONS)
    rng = random.Random(size)
    values = [rng.randbytes(size // 2).hex().encode() for _ in range(_VALUES)]
    producer: Any = confluent_kafka.Producer(
        {
            "bootstrap.servers": local.bootstrap_servers,
            "compression.type": codec,
            "linger.ms": 20,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 500_000,
        }
    )
    for number in range(rows // _AT_ONCE):
        batch = [{"value": values[n % _VALUES]} for n in range(_AT_ONCE)]
        assert producer.produce_batch(topic, batch, partition=number % PARTITIONS) == _AT_ONCE
        if number % _FLUSH_EVERY == 0:
            assert producer.flush(120) == 0
    assert producer.flush(120) == 0
