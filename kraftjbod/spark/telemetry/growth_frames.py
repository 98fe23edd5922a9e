"""FRAME. Growth of topics, brokers and directories, and the skew of their sizes.

* Growth is the change from the first to the last sample, divided by the time between them. The
  growth of a topic sums all its replicas, so a replica that moves to another broker adds nothing.
* A replica exists at an end of the time range if its broker reported it in a round near that end.
  Rounds take time and the last may be incomplete, so the tolerance is :data:`ROUNDS_TO_GONE`
  rounds, whose length is taken from the samples.
* Writes are the appends of leaders and followers. If a counter restarted, its value counts.
* Future copies count in their directories but not in topics.
* A duplicate sample has no effect.
* Offline and removed directories are left out, because their content is unknown.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.sql.window import Window

from kraftjbod.spark.tables.schemas import GROWTH, SKEW
from kraftjbod.spark.telemetry.current_frames import current_dirs

ROUNDS_TO_GONE: Final = 2.5

_REPLICA: Final = ("broker_id", "topic", "topic_id", "partition")
_PLACE: Final = ("broker_id", "path")


def growth(dirs: DataFrame, replicas: DataFrame, window_s: int) -> DataFrame:
    """Return the table ``growth``: for each topic, broker and directory its size, and the growth
    and the writes per second over the time of the samples.

    Removed directories and those that are offline now are not included.

    :param dirs: rows of ``log_dir_samples``.
    :param replicas: rows of ``replica_samples``.
    :param window_s: length of a window, in seconds, to find removed directories.
    """
    of_dirs = _dirs(dirs, window_s)
    scopes = (_by_topic(_replicas(replicas)), _by_broker(of_dirs), _by_dir(of_dirs))
    return _union(scopes, GROWTH)


def skew(dirs: DataFrame, replicas: DataFrame, window_s: int) -> DataFrame:
    """Return the table ``skew``: how unequal the sizes are at the end of the samples.

    The scopes are the directories of a ``broker``, the brokers of the ``cluster``, and the replicas
    of a ``topic``, by their bytes.

    :param dirs: rows of ``log_dir_samples``.
    :param replicas: rows of ``replica_samples``.
    :param window_s: length of a window, in seconds, to find removed directories.
    """
    current = current_dirs(dirs, window_s).where(F.col("state") != "offline")
    by_broker = current.groupBy("cluster_id", "broker_id").agg(
        F.sum("replica_bytes").alias("bytes")
    )
    there = _replicas(replicas).where("at_end")
    scopes = (
        _skew("broker", current.withColumn("bytes", F.col("replica_bytes")), "broker_id"),
        _skew("cluster", by_broker, "cluster_id"),
        _skew("topic", there.withColumn("bytes", F.col("last_bytes")), "topic"),
    )
    return _union(scopes, SKEW)


def with_increase(
    samples: DataFrame, counter: str, series: tuple[str, ...], life: str
) -> DataFrame:
    """Add the column ``increase``: the growth of a counter since the previous sample.

    The value is null for the first sample of a series. If the counter restarted (another value of
    ``life``, or a lower counter), the increase is its value.

    :param series: columns that identify a series.
    :param life: column whose value changes when the counter restarts.
    """
    in_order = Window.partitionBy(*series).orderBy("time")
    before, life_before = F.lag(counter).over(in_order), F.lag(life).over(in_order)
    restarted = (F.col(life) != life_before) | (F.col(counter) < before)
    return samples.withColumn(
        "increase", F.when(restarted, F.col(counter)).otherwise(F.col(counter) - before)
    )


def _dirs(samples: DataFrame, window_s: int) -> DataFrame:
    """Return sizes and times at both ends of each existing directory that is not offline."""
    current = current_dirs(samples, window_s).where(F.col("state") != "offline")
    there = current.select(*_PLACE, "directory_id")
    sampled = samples.where(F.col("state") != "offline").join(there, [*_PLACE, "directory_id"])
    living = sampled.withColumn("life", F.concat_ws("/", "incarnation", "since"))
    increased = with_increase(living, "appended_bytes_total", _PLACE, "life")
    return increased.groupBy(*_PLACE).agg(
        F.min_by("replica_bytes", "time").alias("first_bytes"),
        F.max_by("replica_bytes", "time").alias("last_bytes"),
        F.max_by("replicas", "time").alias("replicas"),
        F.sum("increase").alias("written"),
        _seconds().alias("seconds"),
    )


def _replicas(samples: DataFrame) -> DataFrame:
    """Return the sizes of each replica at both ends.

    ``at_start`` and ``at_end``: the replica was in the first or last round of its broker.
    """
    lying = samples.where(~F.col("is_future"))
    in_order = Window.partitionBy(*_REPLICA).orderBy("time")
    sampled = with_increase(lying, "appended_bytes_total", _REPLICA, "incarnation").withColumn(
        "gap", F.col("time").cast("double") - F.lag(F.col("time").cast("double")).over(in_order)
    )
    rounds = sampled.groupBy("broker_id").agg(
        (ROUNDS_TO_GONE * F.coalesce(F.median("gap"), F.lit(float("inf")))).alias("leeway"),
        F.min(F.col("time").cast("double")).alias("broker_first"),
        F.max(F.col("time").cast("double")).alias("broker_last"),
    )
    ends = sampled.groupBy(*_REPLICA).agg(
        F.min(F.col("time").cast("double")).alias("first"),
        F.max(F.col("time").cast("double")).alias("last"),
        F.min_by("size_bytes", "time").alias("first_bytes"),
        F.max_by("size_bytes", "time").alias("last_bytes"),
        F.sum("increase").alias("written"),
    )
    return (
        ends.join(F.broadcast(rounds), "broker_id")
        .withColumn("at_start", F.col("first") <= F.col("broker_first") + F.col("leeway"))
        .withColumn("at_end", F.col("last") >= F.col("broker_last") - F.col("leeway"))
    )


def _by_topic(replicas: DataFrame) -> DataFrame:
    at_end = F.when(F.col("at_end"), F.col("last_bytes")).otherwise(0)
    at_start = F.when(F.col("at_start"), F.col("first_bytes")).otherwise(0)
    seconds = F.max("last") - F.min("first")
    topics = replicas.groupBy(F.col("topic").alias("name")).agg(
        F.sum(at_end).alias("size_bytes"),
        F.count_if("at_end").alias("replicas"),
        _per_second(F.sum(at_end) - F.sum(at_start), seconds).alias("growth_bytes_per_s"),
        _per_second(F.sum("written"), seconds).alias("write_bytes_per_s"),
    )
    return topics.where(F.col("replicas") > 0).withColumn("scope", F.lit("topic"))


def _by_broker(dirs: DataFrame) -> DataFrame:
    """Return the growth of brokers: sums over their directories. A directory without a rate
    is left out of the sum of rates, which is null if no directory has one."""
    rated = dirs.withColumn("growth", _dir_growth()).withColumn("write", _dir_writes())
    brokers = rated.groupBy(F.col("broker_id").alias("name")).agg(
        F.sum("last_bytes").alias("size_bytes"),
        F.sum("replicas").alias("replicas"),
        F.sum("growth").alias("growth_bytes_per_s"),
        F.sum("write").alias("write_bytes_per_s"),
    )
    return brokers.withColumn("scope", F.lit("broker"))


def _by_dir(dirs: DataFrame) -> DataFrame:
    return (
        dirs.withColumn("scope", F.lit("directory"))
        .withColumn("name", F.concat_ws(":", "broker_id", "path"))
        .withColumn("size_bytes", F.col("last_bytes"))
        .withColumn("growth_bytes_per_s", _dir_growth())
        .withColumn("write_bytes_per_s", _dir_writes())
    )


def _skew(scope: str, parts: DataFrame, name: str) -> DataFrame:
    """Return the skew of one scope: the largest size divided by the mean. A whole without bytes
    has the skew 1."""
    wholes = parts.groupBy(F.col(name).alias("name")).agg(
        F.count("*").alias("parts"),
        F.avg("bytes").alias("mean_bytes"),
        F.max("bytes").alias("max_bytes"),
        F.min("bytes").alias("min_bytes"),
    )
    even = F.when(F.col("max_bytes") == 0, 1.0)
    return wholes.withColumn("scope", F.lit(scope)).withColumn(
        "skew", F.coalesce(even, F.try_divide("max_bytes", "mean_bytes"))
    )


def _seconds() -> Column:
    return F.max("time").cast("double") - F.min("time").cast("double")


def _dir_growth() -> Column:
    return _per_second(F.col("last_bytes") - F.col("first_bytes"), F.col("seconds"))


def _dir_writes() -> Column:
    return _per_second(F.col("written"), F.col("seconds"))


def _per_second(change: Column, seconds: Column) -> Column:
    """Return ``change`` per second; null if no time passed."""
    return F.try_divide(change.cast("double"), seconds)


def _union(scopes: tuple[DataFrame, ...], schema: StructType) -> DataFrame:
    tables = [
        scope.select(*(F.col(field.name).cast(field.dataType) for field in schema.fields))
        for scope in scopes
    ]
    return reduce(DataFrame.unionByName, tables)
