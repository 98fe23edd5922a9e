"""FRAME. Log directories that are slow or failing compared with others, as of the newest sample.

* ``slow``: the rule of brokers (storage/log_dirs/slow_dirs.py), but compared with all directories
  of the cluster, so that a broker with only slow disks is found too. In each of the last
  :data:`WINDOWS_TO_SLOW` windows the average latency was at least :data:`SLOW_FACTOR` times the
  median of the others, and at least :data:`SLOW_MIN_MS`. ``value`` and ``peers`` are those of the
  last window, in milliseconds. ``since`` is the start of these windows.
* ``errors``: operations failed within :data:`RECENT_S`, at least :data:`ERROR_FACTOR` times as
  many as the median of the others. ``value`` and ``peers`` are counts, ``since`` is the first one.
* ``saturated``, ``stalled``, ``offline``: the reported state, ``since`` the first sample with it.
* ``silent``: the broker reported nothing for :data:`WINDOWS_TO_SILENT` windows while others did.
  ``since`` is its last sample.

A directory can have several findings. A directory that its broker no longer reports has none.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window, WindowSpec

from kraftjbod.spark.tables.schemas import LOG_DIR_OUTLIERS
from kraftjbod.spark.telemetry.current_frames import current_dirs, seconds_before

#: The defaults of ``log.dir.slow.factor`` and ``log.dir.slow.min.ms``.
SLOW_FACTOR: Final = 10.0
SLOW_MIN_MS: Final = 50.0
WINDOWS_TO_SLOW: Final = 3
ERROR_FACTOR: Final = 10.0
RECENT_S: Final = 3600
WINDOWS_TO_SILENT: Final = 3

_PLACE: Final = ("broker_id", "path")


def log_dir_outliers(samples: DataFrame, windows: DataFrame, window_s: int) -> DataFrame:
    """Return the table ``log_dir_outliers``: directories that are slow, failing, saturated, stalled
    or offline now, or whose broker is silent.

    :param samples: rows of ``log_dir_samples``.
    :param windows: rows of ``log_dir_windows`` computed from ``samples``.
    :param window_s: length of these windows, in seconds.
    """
    current = current_dirs(samples, window_s)
    there = current.select(*_PLACE, "directory_id")
    findings = (
        _slow(samples, window_s).join(there, [*_PLACE]),
        _errors(windows).join(there, [*_PLACE]),
        _states(samples, current),
        _silent(current, window_s),
    )
    sampled = [_as_table(finding) for finding in findings]
    return reduce(DataFrame.unionByName, sampled)


def with_peers(frame: DataFrame, value: str, among: tuple[str, ...]) -> DataFrame:
    """Add the column ``peers``: the median of ``value`` over the other rows of the same ``among``.

    The median is null for a single row. The j-th value of the other rows is the j-th of all rows,
    or the next value if the row itself is among the first j.
    """
    group = Window.partitionBy(*among)
    ranked = (
        frame.withColumn("rank", F.row_number().over(group.orderBy(value, *_PLACE)))
        .withColumn("lower", F.floor(F.count("*").over(group) / 2))
        .withColumn("upper", F.floor((F.count("*").over(group) - 1) / 2) + 1)
    )
    middle = [_of_others(value, position, group) for position in ("lower", "upper")]
    return ranked.withColumn("peers", (middle[0] + middle[1]) / 2).drop("rank", "lower", "upper")


def _of_others(value: str, position: str, group: WindowSpec) -> Column:
    at, after = (
        F.max(F.when(F.col("rank") == F.col(position) + step, F.col(value))).over(group)
        for step in (0, 1)
    )
    return F.when(F.col("rank") <= F.col(position), after).otherwise(at)


def _slow(samples: DataFrame, window_s: int) -> DataFrame:
    window = F.window("time", f"{window_s} seconds")
    averages = (
        samples.where(F.col("state") != "offline")
        .groupBy(window.alias("window"), *_PLACE)
        .agg(F.avg("latency_ms").alias("value"))
        .withColumn("start", F.col("window.start"))
    )
    beside = with_peers(averages, "value", ("start",))
    usual = F.coalesce(F.col("peers"), F.lit(SLOW_MIN_MS))
    judged = beside.withColumn(
        "is_slow",
        F.col("value") >= F.greatest(F.lit(SLOW_MIN_MS), SLOW_FACTOR * usual),
    )
    of_dir = Window.partitionBy(*_PLACE)
    fast_at = F.coalesce(
        F.max(F.when(~F.col("is_slow"), F.col("start"))).over(of_dir), F.timestamp_seconds(F.lit(0))
    )
    runs = judged.withColumn("fast_at", fast_at).where(F.col("start") > F.col("fast_at"))
    slow = runs.groupBy(*_PLACE).agg(
        F.count("*").alias("windows"),
        F.min("start").alias("since"),
        F.max_by("value", "start").alias("value"),
        F.max_by("peers", "start").alias("peers"),
    )
    return slow.where(F.col("windows") >= WINDOWS_TO_SLOW).withColumn("finding", F.lit("slow"))


def _errors(windows: DataFrame) -> DataFrame:
    everywhere = windows.withColumn("everywhere", F.lit(1))
    newest = everywhere.withColumn(
        "newest", F.max("window_end").over(Window.partitionBy("everywhere"))
    )
    recent = newest.where(F.col("window_end") > seconds_before("newest", RECENT_S))
    counted = recent.groupBy("everywhere", *_PLACE).agg(
        F.coalesce(F.sum("io_errors"), F.lit(0)).cast("double").alias("value"),
        F.min(F.when(F.col("io_errors") > 0, F.col("window_start"))).alias("since"),
    )
    beside = with_peers(counted, "value", ("everywhere",))
    usual = F.coalesce(F.col("peers"), F.lit(0.0))
    failing = beside.where((F.col("value") > 0) & (F.col("value") >= ERROR_FACTOR * usual))
    return failing.withColumn("finding", F.lit("errors"))


def _states(samples: DataFrame, current: DataFrame) -> DataFrame:
    """Return the directories that are not online, with the first sample of the present state."""
    impaired = current.where(F.col("state") != "online").select(
        *_PLACE, "directory_id", F.col("state").alias("finding")
    )
    sampled = samples.select(*_PLACE, "time", "state").join(impaired, [*_PLACE])
    of_dir = Window.partitionBy(*_PLACE)
    other_at = F.coalesce(
        F.max(F.when(F.col("state") != F.col("finding"), F.col("time"))).over(of_dir),
        F.timestamp_seconds(F.lit(0)),
    )
    runs = sampled.withColumn("other_at", other_at).where(F.col("time") > F.col("other_at"))
    return (
        runs.groupBy(*_PLACE, "directory_id", "finding")
        .agg(F.min("time").alias("since"))
        .withColumn("value", F.lit(None))
        .withColumn("peers", F.lit(None))
    )


def _silent(current: DataFrame, window_s: int) -> DataFrame:
    last = (
        current.withColumn("everywhere", F.lit(1))
        .withColumn("heard", F.max("time").over(Window.partitionBy("broker_id")))
        .withColumn("newest", F.max("time").over(Window.partitionBy("everywhere")))
    )
    silent = last.where(F.col("heard") <= seconds_before("newest", WINDOWS_TO_SILENT * window_s))
    return (
        silent.withColumn("finding", F.lit("silent"))
        .withColumn("since", F.col("time"))
        .withColumn("value", F.lit(None))
        .withColumn("peers", F.lit(None))
    )


def _as_table(frame: DataFrame) -> DataFrame:
    return frame.select(
        *(F.col(field.name).cast(field.dataType) for field in LOG_DIR_OUTLIERS.fields)
    )
