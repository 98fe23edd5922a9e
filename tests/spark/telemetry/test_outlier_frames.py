"""Directories that are worse than their peers, and findings without a comparison."""

from __future__ import annotations

from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from kraftjbod.spark.tables.schemas import LOG_DIR_OUTLIERS
from kraftjbod.spark.tables.window_frames import log_dir_windows
from kraftjbod.spark.telemetry.outlier_frames import log_dir_outliers, with_peers
from tests.spark.samples import at, log_dir, log_dir_frame, origin

Sample = tuple[Any, Any]


def found(spark: SparkSession, said: list[Sample], expected: list[tuple[Any, ...]]) -> None:
    """Compares findings of ``said`` in windows of a minute; ids are derived from paths."""
    samples = log_dir_frame(spark, said).localCheckpoint()
    rows = [
        (broker, f"id-of-{path}", path, finding, since, value, peers)
        for broker, path, finding, since, value, peers in expected
    ]
    assertDataFrameEqual(
        log_dir_outliers(samples, log_dir_windows(samples, 60), 60),
        spark.createDataFrame(rows, LOG_DIR_OUTLIERS),
    )


def every_minute(path: str, latencies: list[int], broker_id: int = 1) -> list[Sample]:
    return [
        (origin(60 * n + 5, broker_id=broker_id), log_dir(path, latency_ms=float(latency)))
        for n, latency in enumerate(latencies)
    ]


def test_outliers_find_directory_slow_against_all_others(spark: SparkSession) -> None:
    """Also if both disks of a broker are slow, which no broker can detect."""
    said = [
        *every_minute("/slow", [2, 300, 400, 500, 600], broker_id=1),
        *every_minute("/slow-too", [80, 80, 80, 90, 100], broker_id=1),
        *every_minute("/short", [2, 2, 2, 300, 300], broker_id=2),
        *every_minute("/was-slow", [300, 300, 300, 300, 2], broker_id=2),
        *every_minute("/under-the-floor", [2, 49, 49, 49, 49], broker_id=2),
        *(one for n in range(6) for one in every_minute(f"/{n}", [2, 2, 2, 2, 3], broker_id=3)),
    ]
    found(
        spark,
        said,
        [
            (1, "/slow", "slow", at(60), 600.0, 3.0),
            (1, "/slow-too", "slow", at(0), 100.0, 3.0),
        ],
    )


def test_outliers_compare_single_directory_with_the_floor(spark: SparkSession) -> None:
    said = every_minute("/a", [499, 500, 500, 500])
    found(spark, said, [(1, "/a", "slow", at(60), 500.0, None)])


def test_outliers_find_errors_states_and_silence(spark: SparkSession) -> None:
    def sampled(seconds: float, path: str, **changes: Any) -> Sample:
        return origin(seconds, broker_id=changes.pop("broker_id", 1)), log_dir(path, **changes)

    said = [
        # One error two hours ago, and two since.
        *(
            sampled(seconds, "/errors", io_errors_total=errors)
            for seconds, errors in ((-7200, 0), (-7190, 5), (0, 5), (70, 5), (130, 6), (190, 7))
        ),
        *(
            sampled(s, "/old-errors", io_errors_total=e)
            for s, e in ((-7200, 0), (-7190, 5), (190, 5))
        ),
        *(
            sampled(seconds, "/dying", state=state)
            for seconds, state in ((0, "stalled"), (10, "online"), (20, "stalled"), (30, "offline"))
        ),
        sampled(190, "/dying", state="offline"),
        *(sampled(s, "/full", state="saturated") for s in (100, 190)),
        *(
            sampled(s, "/was-full", state=state)
            for s, state in ((100, "saturated"), (190, "online"))
        ),
        *(sampled(s, "/healthy") for s in (0, 190)),
        sampled(0, "/given-up", state="offline"),
        *(sampled(s, "/of-a-dead-broker", broker_id=2) for s in (-10, 0)),
    ]
    found(
        spark,
        said,
        [
            (1, "/errors", "errors", at(120), 2.0, 0.0),
            (1, "/dying", "offline", at(30), None, None),
            (1, "/full", "saturated", at(100), None, None),
            (2, "/of-a-dead-broker", "silent", at(0), None, None),
        ],
    )


def test_with_peers_has_the_median_of_all_others(spark: SparkSession) -> None:
    groups = {"a": [5], "b": [1, 9], "c": [7, 1, 3], "d": [4, 4, 4, 1], "e": [9, 2, 2, 8, 5]}
    rows = [
        (name, 1, f"/{n}", float(value))
        for name, values in groups.items()
        for n, value in enumerate(values)
    ]
    schema = "name string, broker_id int, path string, value double"
    expected = []
    for name, broker_id, path, value in rows:
        others = [float(v) for n, v in enumerate(groups[name]) if path != f"/{n}"]
        expected.append((name, broker_id, path, value, median(others) if others else None))
    assertDataFrameEqual(
        with_peers(spark.createDataFrame(rows, schema), "value", ("name",)),
        spark.createDataFrame(expected, f"{schema}, peers double"),
    )
