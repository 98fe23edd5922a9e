"""FRAME. The existing log directories, according to the last reports of their brokers.

A broker reports all its directories, including offline ones, so a missing directory was removed. A
broker that reports nothing may be down, so its directories are kept.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from kraftjbod.spark.tables.schemas import LOG_DIR_SAMPLES

#: A directory that its broker did not report for this many windows no longer exists.
WINDOWS_TO_GONE: Final = 3


def current_dirs(samples: DataFrame, window_s: int) -> DataFrame:
    """Return the last row of ``log_dir_samples`` of each existing directory, by broker and path.

    :param window_s: length of a window, in seconds; see :data:`WINDOWS_TO_GONE`.
    """
    latest = samples.groupBy("broker_id", "path").agg(
        F.max_by(F.struct(*samples.columns), "time").alias("latest")
    )
    sampled = latest.select("latest.*").withColumn(
        "broker_time", F.max("time").over(Window.partitionBy("broker_id"))
    )
    there = sampled.where(F.col("time") > seconds_before("broker_time", WINDOWS_TO_GONE * window_s))
    return there.select(
        *(F.col(field.name).cast(field.dataType) for field in LOG_DIR_SAMPLES.fields)
    )


def seconds_before(time: str, seconds: int) -> Column:
    """Return a column with the time that is ``seconds`` before the time in the column ``time``."""
    return F.col(time) - F.make_dt_interval(secs=F.lit(seconds))
