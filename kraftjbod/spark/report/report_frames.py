"""FRAME. The data of a report, as frames whose size is bounded for any cluster and time range.

Each frame has a schema of this file. Times are seconds since 1970, so that the driver's time zone
has no effect. ``bucket_s`` is the length of a time bucket, one column of a plot. ``chosen`` has the
directories (``broker_id``, ``path``) that are shown individually.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kraftjbod.core.log_dir_state import LogDirState

#: From best to worst: a bucket with several states shows the last of these.
SEVERITY: Final = tuple(state.value for state in LogDirState)

_DIR: Final = (StructField("broker_id", IntegerType()), StructField("path", StringType()))

#: The directories that plots show one by one.
CHOSEN: Final = StructType([*_DIR])

SPAN: Final = StructType(
    [
        StructField("first", DoubleType()),
        StructField("last", DoubleType()),
        StructField("window_s", DoubleType()),
        StructField("windows", LongType()),
    ]
)

#: One directory: its last state and sizes, and its worst latency. ``troubled`` counts the windows
#: in which it was not online. Sizes are the last known ones.
DIR_SUMMARY: Final = StructType(
    [
        *_DIR,
        StructField("rack", StringType()),
        StructField("last_seen", DoubleType()),
        StructField("state", StringType()),
        StructField("is_cordoned", BooleanType()),
        StructField("total_bytes", LongType()),
        StructField("free_bytes", LongType()),
        StructField("replica_bytes", LongType()),
        StructField("append_bytes_per_s", DoubleType()),
        StructField("fetch_bytes_per_s", DoubleType()),
        StructField("worst_p99_ms", DoubleType()),
        StructField("io_errors", LongType()),
        StructField("troubled", LongType()),
    ]
)

#: One directory in one bucket.
POINTS: Final = StructType(
    [
        StructField("time", DoubleType()),
        *_DIR,
        StructField("used_bytes", LongType()),
        StructField("total_bytes", LongType()),
        StructField("p99_latency_ms", DoubleType()),
    ]
)

#: The figures of :data:`BANDS`: the used share (0 to 1), and the latency in milliseconds.
USED_SHARE: Final = "used_share"
P99_LATENCY: Final = "p99_latency_ms"

#: The distribution of a figure over all directories in one bucket.
BANDS: Final = StructType(
    [
        StructField("time", DoubleType()),
        StructField("figure", StringType()),
        StructField("dirs", LongType()),
        StructField("low", DoubleType()),
        StructField("quarter", DoubleType()),
        StructField("median", DoubleType()),
        StructField("three_quarters", DoubleType()),
        StructField("high", DoubleType()),
        StructField("most", DoubleType()),
    ]
)

STATE_POINTS: Final = StructType(
    [
        StructField("time", DoubleType()),
        *_DIR,
        StructField("state", StringType()),
        StructField("is_cordoned", BooleanType()),
        StructField("moves_in", LongType()),
        StructField("moves_out", LongType()),
    ]
)

#: Numbers of directories in each state, of cordoned ones, and of those with moving replicas.
STATE_COUNTS: Final = StructType(
    [
        StructField("time", DoubleType()),
        *(StructField(state, LongType()) for state in SEVERITY),
        StructField("cordoned", LongType()),
        StructField("moving", LongType()),
    ]
)

INGEST_COUNTS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("status", StringType()),
        StructField("reason", StringType()),
        StructField("records", LongType()),
        StructField("bytes", LongType()),
    ]
)

AUDIT_COUNTS: Final = StructType(
    [
        StructField("difference", StringType()),
        StructField("topics", LongType()),
        StructField("rows", LongType()),
    ]
)

MOVE_TOTALS: Final = StructType(
    [
        StructField("moves", LongType()),
        StructField("across_brokers", LongType()),
        StructField("size_bytes", LongType()),
    ]
)

#: Percentiles that BANDS has, and their columns.
_SHARES: Final = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_SPREAD: Final = ("low", "quarter", "median", "three_quarters", "high", "most")
_ACCURACY: Final = 1000


def with_schema(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return the columns of ``schema``, cast to its types. A time cast to a double is in
    seconds."""
    return frame.select(
        *(F.col(f"`{field.name}`").cast(field.dataType).alias(field.name) for field in schema)
    )


def plain_times(frame: DataFrame) -> DataFrame:
    """Return ``frame`` with its times converted to seconds since 1970."""
    return frame.select(
        *(
            F.col(f"`{field.name}`").cast(DoubleType()).alias(field.name)
            if isinstance(field.dataType, TimestampType)
            else F.col(f"`{field.name}`")
            for field in frame.schema
        )
    )


def within(frame: DataFrame, column: str, first_s: float, last_s: float) -> DataFrame:
    """Return the rows whose time ``column`` is ``first_s`` or later, and before ``last_s``."""
    begun = frame.where(F.col(column) >= F.timestamp_seconds(F.lit(first_s)))
    return begun.where(F.col(column) < F.timestamp_seconds(F.lit(last_s)))


def span(windows: DataFrame) -> DataFrame:
    """Return SPAN, one row: first and last time of ``log_dir_windows``, their shortest length in
    seconds, and their number."""
    lengths = windows.withColumn(
        "seconds", F.col("window_end").cast("double") - F.col("window_start").cast("double")
    )
    whole = lengths.agg(
        F.min("window_start").alias("first"),
        F.max("window_end").alias("last"),
        F.min("seconds").alias("window_s"),
        F.count(F.lit(1)).alias("windows"),
    )
    return with_schema(whole, SPAN)


def dir_summaries(windows: DataFrame) -> DataFrame:
    """Return DIR_SUMMARY, one row per directory in ``log_dir_windows``: its last state, last known
    sizes, and worst latency."""
    known = F.when(F.col("total_bytes") > 0, F.col("window_end"))
    by_dir = windows.groupBy("broker_id", "path").agg(
        *(
            F.max_by(name, "window_end").alias(name)
            for name in ("rack", "state", "is_cordoned", "append_bytes_per_s", "fetch_bytes_per_s")
        ),
        *(
            F.max_by(name, known).alias(name)
            for name in ("total_bytes", "free_bytes", "replica_bytes")
        ),
        F.max("window_end").alias("last_seen"),
        F.max("p99_latency_ms").alias("worst_p99_ms"),
        F.sum("io_errors").alias("io_errors"),
        F.count_if(F.col("state") != SEVERITY[0]).alias("troubled"),
    )
    return with_schema(by_dir, DIR_SUMMARY)


def points(windows: DataFrame, chosen: DataFrame, bucket_s: float) -> DataFrame:
    """Return POINTS of the chosen directories.

    Sizes are those of the last window in a bucket, or null if they are unknown, as for an offline
    directory. The latency is that of the slowest window in the bucket.

    :param chosen: the directories.
    :param bucket_s: length of a bucket, in seconds.
    """
    return with_schema(_by_bucket(_of(windows, chosen), bucket_s), POINTS)


def bands(windows: DataFrame, bucket_s: float) -> DataFrame:
    """Return BANDS: per bucket, the distribution of used shares and of latencies over all
    directories.

    A directory without a figure in a bucket is not counted.
    """
    by_bucket = _by_bucket(windows, bucket_s)
    figures = F.array(
        F.struct(
            F.lit(USED_SHARE).alias("figure"),
            F.try_divide("used_bytes", "total_bytes").alias("value"),
        ),
        F.struct(F.lit(P99_LATENCY).alias("figure"), F.col("p99_latency_ms").alias("value")),
    )
    valued = by_bucket.select("time", F.inline(figures)).where(F.col("value").isNotNull())
    spread = valued.groupBy("time", "figure").agg(
        F.count(F.lit(1)).alias("dirs"),
        F.percentile_approx("value", list(_SHARES), _ACCURACY).alias("shares"),
    )
    for position, name in enumerate(_SPREAD):
        spread = spread.withColumn(name, F.col("shares")[position])
    return with_schema(spread, BANDS)


def state_points(samples: DataFrame, chosen: DataFrame, bucket_s: float) -> DataFrame:
    """Return STATE_POINTS: for each chosen directory and bucket of ``log_dir_samples``, its worst
    state, and the numbers of moves.

    :param bucket_s: length of a bucket, in seconds.
    """
    return with_schema(_states(_of(samples, chosen), bucket_s), STATE_POINTS)


def state_counts(samples: DataFrame, bucket_s: float) -> DataFrame:
    """Return STATE_COUNTS of ``log_dir_samples``: in each bucket a directory counts in its worst
    state."""
    states = _states(samples, bucket_s)
    counts = states.groupBy("time").agg(
        *(F.count_if(F.col("state") == state).alias(state) for state in SEVERITY),
        F.count_if("is_cordoned").alias("cordoned"),
        F.count_if((F.col("moves_in") > 0) | (F.col("moves_out") > 0)).alias("moving"),
    )
    return with_schema(counts, STATE_COUNTS)


def soonest_full(forecasts: DataFrame) -> DataFrame:
    """Return the rows of ``log_dir_forecasts`` of directories that fill or may fill.

    Directories that fill come first, the soonest one at the top. Times are in seconds.
    """
    filling = forecasts.where(F.col("full_at").isNotNull() | F.col("earliest").isNotNull())
    return plain_times(filling).orderBy(
        F.col("full_at").asc_nulls_last(), F.col("earliest").asc_nulls_last(), "broker_id", "path"
    )


def worst_first(outliers: DataFrame) -> DataFrame:
    """Return ``log_dir_outliers``: offline directories first, slow or failing ones last.

    Times are in seconds.
    """
    ranks = F.array(*(F.lit(state) for state in reversed(SEVERITY)))
    rank = F.array_position(ranks, F.col("finding"))
    return plain_times(outliers).orderBy(rank == 0, rank, "finding", "broker_id", "path")


def largest(growth: DataFrame, scope: str, limit: int) -> DataFrame:
    """Return the ``limit`` rows of ``growth`` with the most bytes in one scope, largest first."""
    return growth.where(F.col("scope") == scope).orderBy(F.desc("size_bytes"), "name").limit(limit)


def most_skewed(skew: DataFrame, limit: int) -> DataFrame:
    """Return the ``limit`` most uneven rows of ``skew`` of each scope."""
    order = Window.partitionBy("scope").orderBy(F.desc_nulls_last("skew"), "name")
    ranked = skew.withColumn("rank", F.row_number().over(order))
    return ranked.where(F.col("rank") <= limit).drop("rank").orderBy("scope", F.desc("skew"))


def audit_counts(differences: DataFrame) -> DataFrame:
    """Return AUDIT_COUNTS: the number of rows and topics of each kind of difference in
    ``audit_differences``, the most frequent kind first."""
    counts = differences.groupBy("difference").agg(
        F.countDistinct("topic").alias("topics"), F.count(F.lit(1)).alias("rows")
    )
    return with_schema(counts, AUDIT_COUNTS).orderBy(F.desc("rows"), "difference")


def ingest_counts(ingested: DataFrame, limit: int) -> DataFrame:
    """Return INGEST_COUNTS of ``ingested``: the ``limit`` largest groups of topic, status and
    reason."""
    sizes = ingested.withColumn(
        "size",
        F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0)),
    )
    counts = sizes.groupBy("topic", "status", "reason").agg(
        F.count(F.lit(1)).alias("records"), F.sum("size").alias("bytes")
    )
    order = (F.desc("records"), F.col("topic"), F.col("status"), F.col("reason"))
    return with_schema(counts, INGEST_COUNTS).orderBy(*order).limit(limit)


def move_totals(moves: DataFrame) -> DataFrame:
    """Return MOVE_TOTALS: one row with the number of rows of ``plan_moves``, how many change
    brokers, and their bytes."""
    totals = moves.agg(
        F.count(F.lit(1)).alias("moves"),
        F.count_if(F.col("from_broker") != F.col("to_broker")).alias("across_brokers"),
        F.coalesce(F.sum("size_bytes"), F.lit(0)).alias("size_bytes"),
    )
    return with_schema(totals, MOVE_TOTALS)


def _of(frame: DataFrame, chosen: DataFrame) -> DataFrame:
    return frame.join(F.broadcast(chosen), ["broker_id", "path"], "left_semi")


def _bucket(time: str, bucket_s: float) -> Column:
    """Return the start of the bucket of the column ``time``, in seconds since 1970."""
    return F.floor(F.col(time).cast("double") / bucket_s) * F.lit(float(bucket_s))


def _by_bucket(windows: DataFrame, bucket_s: float) -> DataFrame:
    sized = windows.withColumn("time", _bucket("window_start", bucket_s))
    is_known = F.col("total_bytes") > 0
    sized = sized.withColumn("used_bytes", F.when(is_known, F.expr("total_bytes - free_bytes")))
    sized = sized.withColumn("total_bytes", F.when(is_known, F.col("total_bytes")))
    return sized.groupBy("time", "broker_id", "path").agg(
        F.max_by("used_bytes", "window_end").alias("used_bytes"),
        F.max_by("total_bytes", "window_end").alias("total_bytes"),
        F.max("p99_latency_ms").alias("p99_latency_ms"),
    )


def _states(samples: DataFrame, bucket_s: float) -> DataFrame:
    ranks = F.array(*(F.lit(state) for state in SEVERITY))
    timed = samples.withColumn("time_of", _bucket("time", bucket_s))
    timed = timed.withColumn("rank", F.array_position(ranks, F.col("state")))
    by_dir = timed.groupBy(F.col("time_of").alias("time"), "broker_id", "path")
    return by_dir.agg(
        F.max_by("state", "rank").alias("state"),
        F.bool_or("is_cordoned").alias("is_cordoned"),
        F.max("moves_in").alias("moves_in"),
        F.max("moves_out").alias("moves_out"),
    )
