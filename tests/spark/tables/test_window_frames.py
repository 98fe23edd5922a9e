"""Windows over samples: no sample is lost or counted twice at their edges."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from kraftjbod.spark.tables.schemas import LOG_DIR_SAMPLES, LOG_DIR_WINDOWS
from kraftjbod.spark.tables.window_frames import log_dir_windows, quantile
from tests.spark.samples import GIB, START_MS, at, log_dir, log_dir_frame, origin

Sample = tuple[Any, Any]


def appended(seconds: float, total: int, path: str = "/d1", **changes: Any) -> Sample:
    """A sample with all counters computed from one number."""
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


def on_broker(broker_id: int, said: list[Sample]) -> list[Sample]:
    return [(dataclasses.replace(who, broker_id=broker_id), sample) for who, sample in said]


OFFLINE: Final = log_dir(
    state="offline", since_ms=5, total_bytes=0, free_bytes=0, io_bounds_ms=(), io_counts=()
)
#: Samples of a directory, and the expected windows: start, appended bytes per second, samples.
#: Each case is another directory, and one test summarizes all.
CASES: Final[dict[str, tuple[list[Sample], list[tuple[Any, ...]]]]] = {
    # 400 bytes in 40 s; then 600 over the edge and 400 more, in 60 s.
    "growth over an edge counts once, in the later window": (
        [appended(10, 0), appended(50, 400), appended(70, 1000), appended(110, 1400)],
        [(0, 10.0, 2), (60, 1000 / 60, 2)],
    ),
    "one sample has no rate": ([appended(10, 500)], [(0, None, 1)]),
    "after a window without samples the counters start again": (
        [appended(10, 0), appended(130, 9000), appended(140, 9100)],
        [(0, None, 1), (120, 10.0, 2)],
    ),
    "another incarnation has grown by its whole counter": (
        [appended(0, 1000), appended(10, 2000), appended(20, 300, incarnation="second")],
        [(0, (1000 + 300) / 20, 3)],
    ),
    "and so has a directory that came back": (
        [appended(0, 1000), appended(10, 2000), appended(20, 300, since_ms=99)],
        [(0, (1000 + 300) / 20, 3)],
    ),
    "and so has a directory whose counter decreased": (
        [appended(0, 1000), appended(10, 2000), appended(20, 300)],
        [(0, (1000 + 300) / 20, 3)],
    ),
    "a restarted counter may be greater than before": (
        [appended(0, 1000), appended(10, 4000, incarnation="second")],
        [(0, 400.0, 2)],
    ),
    "offline, nothing is shown and nothing lost": (
        [appended(0, 1000), appended(10, 2000), (origin(20), OFFLINE)],
        [(0, 50.0, 3)],
    ),
    "a sample that came twice counts once": (
        [appended(0, 0), appended(10, 100), appended(10, 100), appended(20, 200)],
        [(0, 10.0, 3)],
    ),
    "the same path on two brokers is two directories": (
        [
            *(appended(0, 0), appended(10, 100)),
            *on_broker(2, [appended(0, 0), appended(10, 500)]),
        ],
        [(0, 10.0, 2), (0, 50.0, 2)],
    ),
    "two lost disks with one id are two directories": (
        [
            *(appended(0, 0), appended(10, 100)),
            *(appended(0, 0, "/other"), appended(10, 500, "/other")),
        ],
        [(0, 10.0, 2), (0, 50.0, 2)],
    ),
}


@pytest.fixture(scope="module")
def windows(spark: SparkSession) -> dict[str, list[tuple[Any, ...]]]:
    said = [
        (who, dataclasses.replace(sample, directory_id=case))
        for case, (samples, _) in CASES.items()
        for who, sample in samples
    ]
    reported: dict[str, list[tuple[Any, ...]]] = {}
    for row in log_dir_windows(log_dir_frame(spark, said), 60).collect():
        start = (row["window_start"].astimezone(at(0).tzinfo) - at(0)).total_seconds()
        reported.setdefault(row["directory_id"], []).append(
            (start, row["append_bytes_per_s"], row["samples"])
        )
    return reported


@pytest.mark.parametrize("case", CASES)
def test_windows_have_rates_of_samples(
    windows: dict[str, list[tuple[Any, ...]]], case: str
) -> None:
    assert sorted(windows[case]) == CASES[case][1]


def test_window_has_usage_rates_and_latency(spark: SparkSession) -> None:
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


def test_window_of_offline_directory_has_latency_of_earlier_operations(spark: SparkSession) -> None:
    said = [appended(0, 1000), appended(10, 2000), (origin(20), OFFLINE)]
    windows = log_dir_windows(log_dir_frame(spark, said), 60)
    assert [tuple(row) for row in windows.select("state", "p99_latency_ms").collect()] == [
        ("offline", 0.99)
    ]


def test_window_with_new_buckets_uses_only_the_newest(spark: SparkSession) -> None:
    """Another version of a broker can have other buckets: only the newest are shown."""
    before = {"io_bounds_ms": (1,), "io_total": 50, "io_counts": (50, 0)}
    after = {"io_bounds_ms": (100, 200), "io_total": 7, "io_counts": (0, 7, 0)}
    said = [
        (origin(0), log_dir(**before)),
        (origin(10, incarnation="second"), log_dir(**after)),
        (origin(20, incarnation="second"), OFFLINE),
    ]
    windows = log_dir_windows(log_dir_frame(spark, said), 60)
    [(rate, latency)] = windows.select("io_per_s", "p99_latency_ms").collect()
    assert (rate, latency) == (7 / 20, pytest.approx(199))


# --- against the definition, pair by pair ---------------------------------------------------------


def by_pairs(series: Sequence[Sample], window_s: int) -> dict[int, tuple[Any, ...]]:
    """Windows of one directory's ordered series, computed by the definition in the docstring."""
    reported: dict[int, tuple[Any, ...]] = {}
    times = [(who.time_ms - START_MS) / 1000 for who, _ in series]
    for start in sorted({int(second // window_s) * window_s for second in times}):
        grown, seconds, samples = [0, 0], 0.0, set()
        for index, second in enumerate(times):
            if not start <= second < start + window_s:
                continue
            samples.add(second)
            if index == 0 or times[index - 1] < start - window_s or times[index - 1] == second:
                continue
            (who, now), (who_before, before) = series[index], series[index - 1]
            is_restarted = (
                who.incarnation != who_before.incarnation
                or now.since_ms != before.since_ms
                or now.io_total < before.io_total
            )
            shown = (now.appended_bytes_total, now.io_total)
            was = (0, 0) if is_restarted else (before.appended_bytes_total, before.io_total)
            grown = [sum_ + n - m for sum_, n, m in zip(grown, shown, was, strict=True)]
            seconds += second - times[index - 1]
        rates = (grown[0] / seconds, grown[1] / seconds) if seconds else (None, None)
        reported[start] = (*rates, len(samples))
    return reported


def any_series(chance: random.Random) -> list[Sample]:
    """A series with restarts, restored disks, gaps, and duplicate records."""
    second, life, since_ms, total = chance.uniform(0, 30), 0, START_MS, 0
    series: list[Sample] = []
    for _ in range(chance.randrange(1, 40)):
        match chance.randrange(12):
            case 0:
                life, total = life + 1, 0
            case 1:
                since_ms, total = since_ms + 1, 0
            case 2:
                second += chance.uniform(20, 200)
        total += chance.randrange(1, 1000)
        sample = log_dir(
            since_ms=since_ms, appended_bytes_total=3 * total, io_total=total, io_counts=(total, 0)
        )
        series += [(origin(round(second, 1), incarnation=str(life)), sample)] * chance.choice(
            [1, 1, 2]
        )
        second += chance.uniform(1, 25)
    return series


def test_windows_of_random_series_equal_pairwise_computation(spark: SparkSession) -> None:
    chance = random.Random(5)
    all_series = [any_series(chance) for _ in range(80)]
    said = [
        (dataclasses.replace(who, broker_id=number), sample)
        for number, series in enumerate(all_series)
        for who, sample in series
    ]
    reported: dict[int, dict[int, tuple[Any, ...]]] = {
        number: {} for number in range(len(all_series))
    }
    columns = ("append_bytes_per_s", "io_per_s", "samples")
    start = F.col("window_start").cast("long") - START_MS // 1000
    windows = log_dir_windows(log_dir_frame(spark, said), 30)
    for number, second, *values in windows.select("broker_id", start, *columns).collect():
        reported[number][second] = tuple(values)
    for number, series in enumerate(all_series):
        expected = by_pairs(series, 30)
        assert reported[number].keys() == expected.keys(), number
        for second, values in expected.items():
            assert reported[number][second] == pytest.approx(values), (number, second)


QUANTILES: Final = {
    (100, 0, 0): 0.99,
    (0, 100, 0): 1.99,
    (98, 2, 0): 1.5,
    (1, 0, 99): 2.0,
    (0, 0, 0): None,
    (50, 0, 50): 2.0,
}


def test_quantile_lies_within_its_bucket(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(list(counts), [1, 2]) for counts in QUANTILES], "counts array<long>, bounds array<long>"
    )
    rows = frame.select("counts", quantile(F.col("counts"), F.col("bounds"), 0.99)).collect()
    assert {tuple(row[0]): row[1] for row in rows} == pytest.approx(QUANTILES)


def test_window_stream_closes_windows_after_the_watermark_and_continues_after_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The windows equal those of a batch; a record too late for its window is in none."""

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
