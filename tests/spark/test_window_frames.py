"""Windows over samples: nothing is lost at their edges and nothing counts twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from kraftjbod.spark.tables import LOG_DIR_SAMPLES, LOG_DIR_WINDOWS
from kraftjbod.spark.window_frames import log_dir_windows, quantile
from tests.spark.samples import GIB, at, log_dir, log_dir_frame, origin

Sample = tuple[Any, Any]


def appended(seconds: float, total: int, path: str = "/d1", **changes: Any) -> Sample:
    """A sample whose counters are all made from one number."""
    of_origin = {key: changes.pop(key) for key in ("incarnation", "broker_id") if key in changes}
    sample = log_dir(
        path,
        appended_bytes_total=total,
        fetched_bytes_total=2 * total,
        io_total=total // 10,
        io_counts=(total // 10, 0, 0, 0, 0),
        **changes,
    )
    return origin(seconds, **of_origin), sample


def rates(spark: SparkSession, said: list[Sample], window_s: int = 60) -> list[tuple[Any, ...]]:
    windows = log_dir_windows(log_dir_frame(spark, said), window_s)
    columns = ("window_start", "append_bytes_per_s", "samples")
    rows = windows.select("path", *columns).orderBy("path", "window_start").collect()
    return [
        (row["path"], (row["window_start"] - at(0)).total_seconds(), *row[2:])
        for row in (tuple_utc(row) for row in rows)
    ]


def tuple_utc(row: Any) -> Any:
    """Collected timestamps come without a zone, in this process's own."""
    values = row.asDict()
    values["window_start"] = values["window_start"].astimezone(at(0).tzinfo)
    return type(row)(**values)


def test_a_window_tells_usage_rates_and_latency(spark: SparkSession) -> None:
    said = [
        (origin(0), log_dir(io_counts=(10, 0, 0, 0, 0), io_total=10)),
        (
            origin(50, rack="r1"),
            log_dir(
                state="saturated",
                is_cordoned=True,
                free_bytes=1 * GIB,
                replica_bytes=99 * GIB,
                appended_bytes_total=5000,
                fetched_bytes_total=500,
                io_total=110,
                io_errors_total=2,
                io_counts=(10, 50, 50, 0, 0),
            ),
        ),
    ]
    windows = log_dir_windows(log_dir_frame(spark, said), 60)
    expected = (
        *(at(0), at(60), 1, "r1", "id-of-/d1", "/d1", "saturated", True),
        *(100 * GIB, 1 * GIB, 99 * GIB, 100.0, 10.0, 2.0, 2, 3.96, 2),
    )
    assertDataFrameEqual(windows, spark.createDataFrame([expected], LOG_DIR_WINDOWS))


def test_growth_over_a_windows_edge_counts_once_in_the_later_window(spark: SparkSession) -> None:
    said = [appended(10, 0), appended(50, 400), appended(70, 1000), appended(110, 1400)]
    # 400 bytes in 40 s; then 600 over the edge and 400 more, in 60 s.
    assert rates(spark, said) == [("/d1", 0.0, 10.0, 2), ("/d1", 60.0, 1000 / 60, 2)]


def test_one_sample_has_no_rate(spark: SparkSession) -> None:
    assert rates(spark, [appended(10, 500)]) == [("/d1", 0.0, None, 1)]


def test_after_a_windows_silence_a_directory_begins_anew(spark: SparkSession) -> None:
    said = [appended(10, 0), appended(130, 9000), appended(140, 9100)]
    assert rates(spark, said) == [("/d1", 0.0, None, 1), ("/d1", 120.0, 10.0, 2)]


@pytest.mark.parametrize(
    "changes", [{"incarnation": "second"}, {"since_ms": 99}, {}], ids=["broker", "dir", "less"]
)
def test_a_counter_that_began_anew_has_grown_by_what_it_shows(
    spark: SparkSession, changes: dict[str, Any]
) -> None:
    said = [appended(0, 1000), appended(10, 2000), appended(20, 300, **changes)]
    assert rates(spark, said) == [("/d1", 0.0, (1000 + 300) / 20, 3)]


def test_a_counter_that_began_anew_may_show_more_than_before(spark: SparkSession) -> None:
    said = [appended(0, 1000), appended(10, 4000, incarnation="second")]
    assert rates(spark, said) == [("/d1", 0.0, 400.0, 2)]


def test_an_offline_directory_shows_nothing_and_loses_nothing(spark: SparkSession) -> None:
    gone = log_dir(
        state="offline", since_ms=5, total_bytes=0, free_bytes=0, io_bounds_ms=(), io_counts=()
    )
    said = [appended(0, 1000), appended(10, 2000), (origin(20), gone)]
    assert rates(spark, said) == [("/d1", 0.0, 50.0, 3)]
    windows = log_dir_windows(log_dir_frame(spark, said), 60)
    assert [tuple(row) for row in windows.select("state", "p99_latency_ms").collect()] == [
        ("offline", 0.99)
    ]


def test_a_sample_that_came_twice_counts_once(spark: SparkSession) -> None:
    said = [appended(0, 0), appended(10, 100), appended(10, 100), appended(20, 200)]
    assert rates(spark, said) == [("/d1", 0.0, 10.0, 3)]


def test_directories_of_several_brokers_do_not_mix(spark: SparkSession) -> None:
    said = [
        *(
            appended(0, 0, path=path, broker_id=broker)
            for path in ("/a", "/b")
            for broker in (1, 2)
        ),
        *(appended(10, 100, path="/a", broker_id=broker) for broker in (1, 2)),
    ]
    assert rates(spark, said) == [
        *[("/a", 0.0, 10.0, 2)] * 2,
        *[("/b", 0.0, None, 1)] * 2,
    ]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([100, 0, 0], 0.99),
        ([0, 100, 0], 1.99),
        ([98, 2, 0], 1.5),
        ([1, 0, 99], 2.0),
        ([0, 0, 0], None),
        ([50, 0, 50], 2.0),
    ],
)
def test_quantiles_lie_within_buckets(
    spark: SparkSession, counts: list[int], expected: float | None
) -> None:
    frame = spark.createDataFrame([(counts, [1, 2])], "counts array<long>, bounds array<long>")
    [[value]] = frame.select(quantile(F.col("counts"), F.col("bounds"), 0.99)).collect()
    assert value == (None if expected is None else pytest.approx(expected))


def test_streams_close_windows_when_the_watermark_has_passed_and_go_on_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The same windows as in batch; a record that is too late for its window is in none."""

    def arrive(*said: Sample) -> None:
        log_dir_frame(spark, list(said)).write.mode("append").parquet(str(tmp_path / "in"))

    def run() -> DataFrame:
        samples = spark.readStream.schema(LOG_DIR_SAMPLES).parquet(str(tmp_path / "in"))
        windows = log_dir_windows(samples.withWatermark("time", "30 seconds"), 60)
        query = (
            windows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        return spark.read.schema(LOG_DIR_WINDOWS).parquet(str(tmp_path / "out"))

    in_time = [appended(10, 0), appended(50, 400), appended(70, 1000)]
    arrive(*in_time)
    assert run().isEmpty(), "the window may still get samples"
    later = [appended(110, 1400), appended(160, 2000), appended(215, 2500)]
    arrive(*later)
    closed = log_dir_windows(log_dir_frame(spark, in_time + later), 60)
    expected = closed.where(F.col("window_end") <= F.lit(at(185))).localCheckpoint()
    assertDataFrameEqual(run(), expected)
    arrive(appended(55, 450), appended(100, 1300))
    assertDataFrameEqual(run(), expected)
