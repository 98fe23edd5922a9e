"""The newest samples of telemetry as directories and replicas."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.testing import assertDataFrameEqual

from kraftjbod.spark.plan import snapshot_frames
from kraftjbod.spark.tables.schemas import LOG_DIR_SAMPLES, REPLICA_SAMPLES

START_S = 1_800_000_000


def samples(spark: SparkSession, schema: StructType, *rows: dict[str, Any]) -> DataFrame:
    """``at`` is seconds after the start."""
    full = []
    for row in rows:
        time = datetime.fromtimestamp(START_S + row["at"], tz=UTC)
        found = {"incarnation": "i", "broker_id": 1, **row, "time": time}
        full.append(tuple(found.get(name) for name in schema.fieldNames()))
    return spark.createDataFrame(full, schema)


def log_dir(at: int, path: str, **more: Any) -> dict[str, Any]:
    given = {"state": "online", "is_cordoned": False, "total_bytes": 100, "free_bytes": 50}
    return {"at": at, "path": path, **given, **more}


def replica(at: int, partition: int, appended: int, **more: Any) -> dict[str, Any]:
    given = {"topic": "t", "path": "/a", "is_future": False, "is_leader": True, "size_bytes": 10}
    return {
        "at": at,
        "partition": partition,
        "appended_bytes_total": appended,
        "brokers": [1],
        **given,
        **more,
    }


def same(frame: DataFrame, rows: list[tuple[Any, ...]]) -> None:
    assertDataFrameEqual(frame, frame.sparkSession.createDataFrame(rows, frame.schema))


def test_log_dirs_are_the_newest_samples_of_present_directories(spark: SparkSession) -> None:
    found = samples(
        spark,
        LOG_DIR_SAMPLES,
        log_dir(0, "/a", free_bytes=60),
        log_dir(300, "/a"),
        log_dir(0, "/pulled"),
        log_dir(295, "/b", state="offline", total_bytes=0, free_bytes=0),
        log_dir(0, "/a", broker_id=2, rack="r"),
    )
    same(
        snapshot_frames.log_dirs(found),
        [
            (1, None, "/a", None, "online", False, 100, 50),
            (1, None, "/b", None, "offline", False, 0, 0),
            (2, "r", "/a", None, "online", False, 100, 50),
        ],
    )


def test_replicas_have_rates_of_the_newest_two_samples(spark: SparkSession) -> None:
    found = samples(
        spark,
        REPLICA_SAMPLES,
        replica(0, 0, 0),
        replica(60, 0, 5_000),
        replica(120, 0, 11_000, path="/b", size_bytes=20),
        replica(120, 1, 9_000),
        replica(60, 2, 9_000, incarnation="before"),
        replica(120, 2, 1_000),
        replica(0, 3, 1_000),
        replica(60, 4, 9_000),
        replica(120, 4, 100),
        replica(120, 0, 0, is_future=True, is_leader=False, path="/c"),
    )
    same(
        snapshot_frames.replicas(found),
        [
            ("t", 0, 1, "/b", 20, 100.0, True, False, [1]),
            ("t", 0, 1, "/c", 10, 0.0, False, True, [1]),
            ("t", 1, 1, "/a", 10, 0.0, True, False, [1]),
            ("t", 2, 1, "/a", 10, 0.0, True, False, [1]),
            ("t", 4, 1, "/a", 10, 0.0, True, False, [1]),
        ],
    )


def test_ages_of_brokers_are_those_of_their_newest_samples(spark: SparkSession) -> None:
    found = samples(
        spark, LOG_DIR_SAMPLES, log_dir(0, "/a"), log_dir(50, "/a"), log_dir(10, "/a", broker_id=2)
    )
    same(snapshot_frames.ages(found, START_S + 60.0), [(1, 10.0), (2, 50.0)])


def test_recent_excludes_old_samples(spark: SparkSession) -> None:
    found = samples(spark, LOG_DIR_SAMPLES, log_dir(0, "/a"), log_dir(500, "/a"))
    kept = snapshot_frames.recent(found, START_S + 700.0, 100)
    assert [row.time.timestamp() for row in kept.collect()] == [START_S + 500]
