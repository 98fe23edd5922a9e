"""Samples of log directories in windows of time: usage, rates and latencies of each window.

* A counter grows from one sample of a directory to the next; the growth counts in the window of the
  later one, whole, and so does the time between the two. So nothing is lost at a window's edge and
  nothing counts twice, and a rate is that of the time which its window's samples speak for.
* That needs the last sample before the window. Windows of twice the length that begin at every
  window bring it along: their first half is looked at for nothing else. A directory that said
  nothing for a whole window begins anew: its first sample after that has no growth.
* A counter that began at 0 again (another incarnation, another ``since``, or less than before) has
  grown by what it shows.
* The same sample twice, as a producer's retry leaves it, counts once.
* A directory is known by broker, id and path: those whose disks were lost before the broker started
  share an id.

The transform works on streaming frames with a watermark, and on batch frames, alike.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kraftjbod.spark.tables import LOG_DIR_WINDOWS

QUANTILE: Final = 0.99
#: Figures that only grow while a directory lives.
_COUNTERS: Final = (
    "appended_bytes_total",
    "fetched_bytes_total",
    "io_total",
    "io_errors_total",
)
_LAST: Final = (
    "rack",
    "state",
    "is_cordoned",
    "total_bytes",
    "free_bytes",
    "replica_bytes",
)


def log_dir_windows(samples: DataFrame, window_s: int) -> DataFrame:
    """``log_dir_windows`` of ``log_dir_samples``, in windows of whole seconds."""
    series = _series(samples, window_s)
    grown = series.withColumn("growths", F.transform(_pairs(), _growth))
    summed = (
        grown.withColumn(
            "seconds",
            F.aggregate("growths", F.lit(0.0), lambda sum_, growth: sum_ + growth["seconds"]),
        )
        .withColumn("bounds", _bounds())
        .withColumn("counts", _summed_counts())
    )
    for counter in _COUNTERS:
        summed = summed.withColumn(counter, _sum_of(counter))
    told = (
        summed.withColumn("append_bytes_per_s", _rate("appended_bytes_total"))
        .withColumn("fetch_bytes_per_s", _rate("fetched_bytes_total"))
        .withColumn("io_per_s", _rate("io_total"))
        .withColumn("io_errors", F.when(_has_growth(), F.col("io_errors_total")))
        .withColumn("p99_latency_ms", quantile(F.col("counts"), F.col("bounds"), QUANTILE))
        .withColumn("samples", F.size("own"))
    )
    for name in _LAST:
        told = told.withColumn(name, F.element_at("own", -1)[name])
    return _as_table(told)


def open_windows(samples: DataFrame, closed: DataFrame, window_s: int) -> DataFrame:
    """``log_dir_windows`` of the windows after all that are ``closed``."""
    newest = closed.agg(F.max("window_start").alias("newest"))
    # The newest closed window holds the samples that the first open one begins with.
    needed = samples.join(
        F.broadcast(newest), F.col("newest").isNull() | (F.col("time") >= F.col("newest"))
    )
    return _after(log_dir_windows(needed.drop("newest"), window_s), newest)


def all_windows(closed: DataFrame, opened: DataFrame) -> DataFrame:
    """``log_dir_windows``: those that are closed, and of those that were open the rest."""
    newest = closed.agg(F.max("window_start").alias("newest"))
    return closed.unionByName(_after(opened, newest))


def _after(windows: DataFrame, newest: DataFrame) -> DataFrame:
    is_later = F.col("newest").isNull() | (F.col("window_start") > F.col("newest"))
    return windows.join(F.broadcast(newest), is_later).drop("newest")


def quantile(counts: Column, bounds: Column, share: float) -> Column:
    """The value below which ``share`` of the counted lie; null if nothing was counted.

    ``bounds`` are the upper ends of the buckets, the last of ``counts`` has none. Within a bucket
    values are taken to lie evenly; of the last one only its lower end is known, and told.
    """
    rank = share * F.aggregate(counts, F.lit(0).cast("long"), lambda sum_, n: sum_ + n)
    numbers = F.sequence(F.lit(1), F.size(counts))
    up_to = F.transform(
        numbers,
        lambda i: F.aggregate(
            F.slice(counts, F.lit(1), i), F.lit(0).cast("long"), lambda sum_, n: sum_ + n
        ),
    )
    bucket = (F.array_position(F.transform(up_to, lambda n: n >= rank), F.lit(True)) - 1).cast(
        "int"
    )
    lower = F.when(bucket == 0, F.lit(0.0)).otherwise(F.get(bounds, bucket - 1).cast("double"))
    upper = F.coalesce(F.get(bounds, bucket).cast("double"), lower)
    here = F.get(counts, bucket)
    into = (rank - (F.get(up_to, bucket) - here)) / here
    return F.when(rank > 0, lower + (upper - lower) * into)


def _series(samples: DataFrame, window_s: int) -> DataFrame:
    """Per window and directory: the samples of the window and of the one before, in order."""
    fields = ("time", "incarnation", "since", *_LAST, *_COUNTERS, "io_bounds_ms", "io_counts")
    doubled = F.window("time", f"{2 * window_s} seconds", f"{window_s} seconds")
    keys = ("broker_id", "directory_id", "path")
    grouped = samples.groupBy(doubled.alias("doubled"), *keys).agg(
        F.array_sort(F.collect_set(F.struct(*fields))).alias("series")
    )
    bounded = (
        grouped.withColumn("window_end", F.col("doubled.end"))
        .withColumn("window_start", F.col("doubled.end") - F.make_dt_interval(secs=F.lit(window_s)))
        .withColumn("own", F.filter("series", lambda s: s["time"] >= F.col("window_start")))
    )
    return bounded.where(F.size("own") > 0)


def _pairs() -> Column:
    """Neighbours in a series, the later one in the window."""
    series, size = F.col("series"), F.size("series")
    neighbours = F.zip_with(
        F.slice(series, F.lit(1), size - 1),
        F.slice(series, F.lit(2), size - 1),
        lambda a, b: F.struct(a.alias("a"), b.alias("b")),
    )
    return F.filter(
        neighbours,
        lambda pair: (
            (pair["b"]["time"] >= F.col("window_start")) & (pair["b"]["time"] > pair["a"]["time"])
        ),
    )


def _growth(pair: Column) -> Column:
    """How much each counter grew between two samples."""
    before, after = pair["a"], pair["b"]
    began_anew = (before["incarnation"] != after["incarnation"]) | ~before["since"].eqNullSafe(
        after["since"]
    )
    for counter in _COUNTERS:
        began_anew = began_anew | F.coalesce(after[counter] < before[counter], F.lit(False))
    counts = F.when(began_anew, after["io_counts"]).when(
        before["io_bounds_ms"] == after["io_bounds_ms"],
        F.zip_with(after["io_counts"], before["io_counts"], lambda n, m: n - m),
    )
    return F.struct(
        (after["time"].cast("double") - before["time"].cast("double")).alias("seconds"),
        after["io_bounds_ms"].alias("bounds"),
        counts.alias("counts"),
        *(
            F.when(began_anew, after[counter])
            .otherwise(after[counter] - before[counter])
            .alias(counter)
            for counter in _COUNTERS
        ),
    )


def _sum_of(counter: str) -> Column:
    zero = F.lit(0).cast("long")
    return F.aggregate("growths", zero, lambda sum_, growth: sum_ + growth[counter])


def _rate(counter: str) -> Column:
    return F.when(_has_growth(), F.col(counter) / F.col("seconds"))


def _has_growth() -> Column:
    return F.size("growths") > 0


def _bounds() -> Column:
    """The buckets of the window's last sample that has any."""
    with_buckets = F.filter("own", lambda sample: F.size(sample["io_bounds_ms"]) > 0)
    return F.get(with_buckets, F.size(with_buckets) - 1)["io_bounds_ms"]


def _summed_counts() -> Column:
    """How many operations of the window fell into each of ``bounds``."""
    same_buckets = F.filter("growths", lambda growth: growth["bounds"] == F.col("bounds"))
    zeros = F.array_repeat(F.lit(0).cast("long"), F.size("bounds") + 1)
    return F.aggregate(
        same_buckets,
        zeros,
        lambda sum_, growth: F.zip_with(sum_, growth["counts"], lambda n, m: n + m),
    )


def _as_table(frame: DataFrame) -> DataFrame:
    return frame.select(
        *(F.col(field.name).cast(field.dataType) for field in LOG_DIR_WINDOWS.fields)
    )
