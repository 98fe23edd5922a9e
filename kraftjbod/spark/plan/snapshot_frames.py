"""FRAME. The newest telemetry samples as the tables ``log_dirs`` and ``replicas``.

The samples that a broker sends at one time are a round. A directory or replica that is missing in
its broker's latest round, with a tolerance of :data:`ROUND_S`, no longer exists. ``free_bytes`` is
the file system's value, because telemetry does not report the space that a broker reserves.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, IntegerType, StructField, StructType

from kraftjbod.spark.plan.plan_tables import DIRECTORY, REPLICA, as_table
from kraftjbod.spark.tables.schemas import LOG_DIRS, REPLICAS

#: Longer than the interval between samples of a replica, a minute.
ROUND_S: Final = 90

#: ``age_s`` is the age of the broker's newest sample, in seconds.
AGES: Final = StructType(
    [StructField("broker_id", IntegerType()), StructField("age_s", DoubleType())]
)


def ages(samples: DataFrame, now_s: float) -> DataFrame:
    """Return ``AGES``: the age of each broker's newest sample.

    :param now_s: current time, in seconds since 1970.
    """
    grouped = samples.groupBy("broker_id").agg(F.max("time").alias("newest"))
    aged = grouped.withColumn("age_s", F.lit(now_s) - F.col("newest").cast("double"))
    return as_table(aged, AGES)


def log_dirs(samples: DataFrame) -> DataFrame:
    """Return the table ``log_dirs``: the newest row of ``log_dir_samples`` of each directory.

    Directories that are missing in the latest round of their broker, of 90 s, are omitted.
    """
    return as_table(_latest(samples, DIRECTORY), LOG_DIRS)


def replicas(samples: DataFrame) -> DataFrame:
    """Return the table ``replicas`` from ``replica_samples``.

    The write rate, in bytes per second, is that between the newest two samples of one incarnation
    of the broker; 0 if there is only one. Replicas that are missing in the latest round of their
    broker, of 90 s, are omitted.
    """
    per_replica = Window.partitionBy(*REPLICA, "is_future", "incarnation").orderBy("time")
    before, now = F.lag("time").over(per_replica), F.lag("appended_bytes_total").over(per_replica)
    compared = samples.withColumn(
        "elapsed_s", F.col("time").cast("double") - before.cast("double")
    ).withColumn("appended", F.col("appended_bytes_total") - now)
    rated = compared.withColumn(
        "write_rate",
        F.when(F.expr("elapsed_s > 0 AND appended >= 0"), F.expr("appended / elapsed_s")).otherwise(
            0.0
        ),
    )
    return as_table(_latest(rated, (*REPLICA, "is_future")), REPLICAS)


def _latest(samples: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return the newest sample of each key, if it is in the latest round of its broker."""
    newest_first = Window.partitionBy(*key).orderBy(F.col("time").desc())
    of_broker = F.max("time").over(Window.partitionBy("broker_id"))
    numbered = samples.withColumn("place", F.row_number().over(newest_first)).withColumn(
        "round", of_broker
    )
    is_there = F.col("time").cast("double") >= F.col("round").cast("double") - ROUND_S
    return numbered.where((F.col("place") == 1) & is_there)


def recent(samples: DataFrame, now_s: float, max_age_s: float) -> DataFrame:
    """Return the samples of the last ``max_age_s`` and two rounds.

    The result includes the latest two rounds of every broker whose telemetry is not too old.

    :param now_s: current time, in seconds since 1970.
    """
    begin_s = now_s - max_age_s - 2 * ROUND_S
    return samples.where(F.col("time").cast("double") >= begin_s)
