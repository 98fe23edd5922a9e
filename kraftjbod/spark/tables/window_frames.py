"""FRAME. Samples of log directories in windows of time: usage, rates and latencies of each window.

* The growth of a counter between two samples of a directory, and the time between them, count in
  the window of the later sample. So no growth is lost or counted twice at the edge of a window, and
  a rate refers to the time between its samples.
* A window therefore needs the last sample before it. Windows of twice the length, one starting at
  each window, have that sample in their first half. If the directory reported nothing for a whole
  window, the next sample has no growth.
* A counter may have restarted at 0: another incarnation, another ``since``, or a lower value. Then
  its growth is its value.
* A duplicate sample, as a producer's retry leaves it, counts once.
* A directory is identified by broker, id and path. An id alone is not enough: directories whose
  disks were lost before the broker started share one.

The transform works on streaming frames with a watermark, and on batch frames.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kraftjbod.spark.tables.schemas import LOG_DIR_WINDOWS

QUANTILE: Final = 0.99
#: Counters, which restart at 0 with the broker and with a reattachment of the directory.
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
    """Aggregate samples of log directories: one row per directory and window with a sample.

    :param samples: rows of the table ``log_dir_samples``.
    :param window_s: length of a window, in whole seconds.
    :returns: rows of the table ``log_dir_windows`` (the columns of ``LOG_DIR_WINDOWS``): state and
        sizes at the window's last sample, and rates, errors and latency within the window.
    """
    series = _with_restarts(_series(samples, window_s), "series", "ends")
    grown = series.withColumn(
        "seconds", F.element_at("series", -1)["second"] - F.element_at("series", 1)["second"]
    )
    for counter in _COUNTERS:
        grown = grown.withColumn(counter, _growth(counter))
    windows = (
        _with_counts(grown)
        .withColumn("append_bytes_per_s", _rate("appended_bytes_total"))
        .withColumn("fetch_bytes_per_s", _rate("fetched_bytes_total"))
        .withColumn("io_per_s", _rate("io_total"))
        .withColumn("io_errors", F.when(_has_growth(), F.col("io_errors_total")))
        .withColumn("p99_latency_ms", quantile(F.col("counts"), F.col("bounds"), QUANTILE))
        .withColumn(
            "samples", F.size(F.array_distinct(F.transform("own", lambda one: one["time"])))
        )
    )
    for name in _LAST:
        windows = windows.withColumn(name, F.element_at("own", -1)[name])
    return _as_table(windows)


def open_windows(samples: DataFrame, closed: DataFrame, window_s: int) -> DataFrame:
    """Return the rows of ``log_dir_windows`` for the windows that begin after all windows in
    ``closed``.

    :param samples: rows of ``log_dir_samples``.
    :param closed: rows of ``log_dir_windows``; if empty, all windows are returned.
    :param window_s: length of a window, in seconds.
    """
    newest = closed.agg(F.max("window_start").alias("newest"))
    # The first open window needs the last sample before it, which is in the newest closed window.
    needed = samples.join(
        F.broadcast(newest), F.col("newest").isNull() | (F.col("time") >= F.col("newest"))
    )
    return _after(log_dir_windows(needed.drop("newest"), window_s), newest)


def all_windows(closed: DataFrame, opened: DataFrame) -> DataFrame:
    """Return the rows of ``closed``, and those rows of ``opened`` whose windows begin after all of
    them."""
    newest = closed.agg(F.max("window_start").alias("newest"))
    return closed.unionByName(_after(opened, newest))


def _after(windows: DataFrame, newest: DataFrame) -> DataFrame:
    is_later = F.col("newest").isNull() | (F.col("window_start") > F.col("newest"))
    return windows.join(F.broadcast(newest), is_later).drop("newest")


def quantile(counts: Column, bounds: Column, share: float) -> Column:
    """Return the value below which ``share`` of the counted operations are; null without
    operations.

    Values are assumed to be evenly distributed within a bucket. The result in the last, unbounded
    bucket is its lower bound.

    :param counts: number of operations per bucket.
    :param bounds: upper bounds of the buckets, without the last one.
    :param share: 0 to 1.
    """
    zero = F.lit(0).cast("long")
    rank = share * F.aggregate(counts, zero, lambda sum_, n: sum_ + n)

    def onward(at: Column, n: Column) -> Column:
        is_there = at["is_there"] | (at["below"] + n >= rank)
        return F.struct(
            F.when(is_there, at["below"]).otherwise(at["below"] + n).alias("below"),
            F.when(is_there, at["bucket"]).otherwise(at["bucket"] + 1).alias("bucket"),
            is_there.alias("is_there"),
        )

    def value(at: Column) -> Column:
        bucket = at["bucket"]
        lower = F.when(bucket == 0, F.lit(0.0)).otherwise(F.get(bounds, bucket - 1).cast("double"))
        upper = F.coalesce(F.get(bounds, bucket).cast("double"), lower)
        into = F.try_divide(rank - at["below"], F.get(counts, bucket))
        return lower + (upper - lower) * into

    start = F.struct(zero.alias("below"), F.lit(0).alias("bucket"), F.lit(False).alias("is_there"))
    return F.when(rank > 0, F.aggregate(counts, start, onward, value))


def _series(samples: DataFrame, window_s: int) -> DataFrame:
    """Return the samples of each window and directory.

    ``own`` has the samples in the window, in order. ``series`` starts with the sample before the
    window, if any.
    """
    fields = ("time", "incarnation", "since", *_LAST, *_COUNTERS, "io_bounds_ms", "io_counts")
    doubled = F.window("time", f"{2 * window_s} seconds", f"{window_s} seconds")
    sample = F.struct(*fields, F.col("time").cast("double").alias("second"))
    placed = samples.withColumn("doubled", doubled).withColumn("sample", sample)
    start = F.col("doubled.end") - F.make_dt_interval(secs=F.lit(window_s))
    is_own = F.col("time") >= start
    grouped = placed.groupBy("doubled", "broker_id", "directory_id", "path").agg(
        F.max_by("sample", F.when(~is_own, F.col("time"))).alias("before"),
        F.array_sort(F.collect_list(F.when(is_own, F.col("sample")))).alias("own"),
    )
    return (
        grouped.where(F.size("own") > 0)
        .withColumn("window_end", F.col("doubled.end"))
        .withColumn("window_start", start)
        .withColumn(
            "series",
            F.when(F.col("before").isNull(), F.col("own")).otherwise(
                F.concat(F.array("before"), F.col("own"))
            ),
        )
    )


def _with_restarts(frame: DataFrame, series: str, ends: str) -> DataFrame:
    """Add the column ``ends``: the samples of a series after which the counters restarted at 0."""
    size = F.size(series)
    neighbours = F.zip_with(
        F.slice(series, F.lit(1), F.greatest(size - 1, F.lit(0))),
        F.slice(series, F.lit(2), F.greatest(size - 1, F.lit(0))),
        lambda before, after: F.when(_is_restarted(before, after), before),
    )
    return frame.withColumn(ends, F.filter(neighbours, lambda end: end.isNotNull()))


def _is_restarted(before: Column, after: Column) -> Column:
    is_restarted = (before["incarnation"] != after["incarnation"]) | ~before["since"].eqNullSafe(
        after["since"]
    )
    for counter in _COUNTERS:
        is_restarted = is_restarted | F.coalesce(after[counter] < before[counter], F.lit(False))
    return is_restarted


def _growth(counter: str) -> Column:
    """Return the growth of a counter over the series, with the values lost at each restart."""
    first, last = F.element_at("series", 1)[counter], F.element_at("series", -1)[counter]
    return F.aggregate("ends", last - first, lambda sum_, end: sum_ + end[counter])


def _rate(counter: str) -> Column:
    return F.when(_has_growth(), F.col(counter) / F.col("seconds"))


def _has_growth() -> Column:
    return F.col("seconds") > 0


def _with_counts(frame: DataFrame) -> DataFrame:
    """Add ``bounds``, the newest latency buckets, and ``counts``, the window's operations in each
    bucket.

    Only samples with these buckets are used: an offline sample has none, and another version of the
    broker may have others.
    """
    with_buckets = F.filter("own", lambda sample: F.size(sample["io_bounds_ms"]) > 0)
    bounded = frame.withColumn(
        "bounds", F.get(with_buckets, F.size(with_buckets) - 1)["io_bounds_ms"]
    ).withColumn(
        "counted",
        F.filter("series", lambda sample: sample["io_bounds_ms"] == F.col("bounds")),
    )
    lived = _with_restarts(bounded, "counted", "counted_ends")
    first, last = F.get("counted", F.lit(0)), F.get("counted", F.size("counted") - 1)
    is_whole = first["time"] == F.element_at("series", 1)["time"]
    from_first = F.when(
        is_whole, F.zip_with(last["io_counts"], first["io_counts"], lambda n, m: n - m)
    ).otherwise(last["io_counts"])
    return lived.withColumn(
        "counts",
        F.aggregate(
            "counted_ends",
            from_first,
            lambda sum_, end: F.zip_with(sum_, end["io_counts"], lambda n, m: n + m),
        ),
    )


def _as_table(frame: DataFrame) -> DataFrame:
    return frame.select(
        *(F.col(field.name).cast(field.dataType) for field in LOG_DIR_WINDOWS.fields)
    )
