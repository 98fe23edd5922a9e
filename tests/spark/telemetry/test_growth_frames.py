"""Growth and skew of topics, brokers and directories."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from kraftjbod.spark.tables.schemas import GROWTH, SKEW
from kraftjbod.spark.telemetry.growth_frames import growth, skew
from tests.spark.samples import log_dir, log_dir_frame, origin, replica, replica_frame

Sample = tuple[Any, Any]


def dir_sample(seconds: float, broker_id: int, path: str, size: int, **changes: Any) -> Sample:
    who = {key: changes.pop(key) for key in ("incarnation",) if key in changes}
    return origin(seconds, broker_id=broker_id, **who), log_dir(path, replica_bytes=size, **changes)


DIRS = [
    dir_sample(0, 1, "/a", 1000, appended_bytes_total=5000),
    dir_sample(50, 1, "/a", 1400, appended_bytes_total=5400),
    # The broker restarted and has written 200 bytes since.
    dir_sample(100, 1, "/a", 1600, appended_bytes_total=200, incarnation="second"),
    dir_sample(0, 1, "/b", 0, replicas=0),
    dir_sample(100, 1, "/b", 0, replicas=0, incarnation="second"),
    dir_sample(100, 2, "/a", 400, replicas=1),
    dir_sample(0, 2, "/dead", 9000),
    dir_sample(100, 2, "/dead", 0, state="offline"),
]


def of(
    seconds: float, broker_id: int, topic: str, size: int, written: int = 0, **changes: Any
) -> Sample:
    return origin(seconds, broker_id=broker_id), replica(
        topic, size_bytes=size, appended_bytes_total=written, **changes
    )


REPLICAS = [
    *(of(10 * n, 1, "steady", 100 + 10 * n, 10 * n) for n in range(11)),
    *(of(10 * n, 2, "steady", 90 + 10 * n, 10 * n) for n in range(11)),
    # A move to another directory; the future copy is no replica yet.
    *(of(10 * n, 1, "steady", 5, path="/b", is_future=True) for n in range(3, 6)),
    # From broker 1 to broker 2.
    *(of(10 * n, 1, "moved", 500) for n in range(6)),
    *(of(10 * n, 2, "moved", min(500, 200 * (n - 3))) for n in range(4, 11)),
    *(of(10 * n, 1, "deleted", 70) for n in range(4)),
    *(of(10 * n, 1, "recreated", 70) for n in range(4)),
    *(of(10 * n, 1, "recreated", 20 * (n - 6), topic_id="second") for n in range(6, 11)),
    # The round is read up to here, with one duplicate record.
    of(100, 2, "moved", 500),
    of(50, 2, "steady", 140, 50),
    of(90, 2, "half-read", 8),
]


def test_growth_is_per_topic_broker_and_directory(spark: SparkSession) -> None:
    dirs, replicas = log_dir_frame(spark, DIRS), replica_frame(spark, REPLICAS)
    expected = [
        ("topic", "steady", 390, 2, 2.0, 2.0),
        ("topic", "moved", 500, 1, 0.0, 0.0),
        ("topic", "recreated", 80, 1, (80 - 70) / 100, 0.0),
        ("topic", "half-read", 8, 1, None, None),
        ("broker", "1", 1600, 3, 6.0, 6.0),
        ("broker", "2", 400, 1, None, None),
        ("directory", "1:/a", 1600, 3, 6.0, 6.0),
        ("directory", "1:/b", 0, 0, 0.0, 0.0),
        ("directory", "2:/a", 400, 1, None, None),
    ]
    assertDataFrameEqual(growth(dirs, replicas, 60), spark.createDataFrame(expected, GROWTH))


def test_growth_of_one_round_has_sizes_without_rates(spark: SparkSession) -> None:
    dirs = log_dir_frame(spark, [dir_sample(0, 1, "/a", 100)])
    replicas = replica_frame(spark, [of(0, 1, "t", 60), of(1, 1, "u", 40)])
    topics = growth(dirs, replicas, 60).where(F.col("scope") == "topic")
    expected = [("topic", "t", 60, 1, None, None), ("topic", "u", 40, 1, None, None)]
    assertDataFrameEqual(topics, spark.createDataFrame(expected, GROWTH))


def test_skew_is_per_broker_cluster_and_topic(spark: SparkSession) -> None:
    dirs, replicas = log_dir_frame(spark, DIRS), replica_frame(spark, REPLICAS)
    expected = [
        ("broker", "1", 2, 800.0, 1600, 0, 2.0),
        ("broker", "2", 1, 400.0, 400, 400, 1.0),
        ("cluster", "cluster", 2, 1000.0, 1600, 400, 1.6),
        ("topic", "steady", 2, 195.0, 200, 190, 200 / 195),
        ("topic", "moved", 1, 500.0, 500, 500, 1.0),
        ("topic", "recreated", 1, 80.0, 80, 80, 1.0),
        ("topic", "half-read", 1, 8.0, 8, 8, 1.0),
    ]
    assertDataFrameEqual(skew(dirs, replicas, 60), spark.createDataFrame(expected, SKEW))


def test_skew_of_empty_directories_is_1(spark: SparkSession) -> None:
    dirs = log_dir_frame(spark, [dir_sample(0, 1, "/a", 0), dir_sample(0, 1, "/b", 0)])
    expected = [("broker", "1", 2, 0.0, 0, 0, 1.0), ("cluster", "cluster", 1, 0.0, 0, 0, 1.0)]
    assertDataFrameEqual(
        skew(dirs, replica_frame(spark, []), 60), spark.createDataFrame(expected, SKEW)
    )
