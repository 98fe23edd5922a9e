"""FRAME. Forecasts the time at which each log directory is full, with a 95 % band.

* Used bytes are those of the file system, ``total - free``. They are averaged over :data:`PARTS`
  equal parts of the time, and a line is fitted to the averages by least squares. The directory is
  full when the line reaches its ``total``.
* Residuals are correlated in time: a disk that is above the line now is still above it a minute
  later. There are fewer independent observations than samples. The error is therefore widened by
  the correlation of neighbours, as for a first-order process.
* The band is Fieller's: the times at which the 95 % band around the line, from the errors of slope
  and level, reaches ``total``. Its late end may be never. If only the band of a directory reaches
  ``total``, and not its line, only the early end is given.
* A single big step, at least :data:`STEP_SHARE` of the disk between two samples, is a deleted topic
  or a moved replica: the line begins after it. Several steps are normal for the directory, such as
  retention's saw-tooth: the line runs through all of them, at half the height of a tooth, and the
  teeth widen the band.
* Samples of an OFFLINE directory are ignored. If two disks were at one path, one after the other,
  only the newer one has a forecast.

The input is a frame of all samples, and the output has one row per directory.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window, WindowSpec

from kraftjbod.spark.tables.schemas import LOG_DIR_FORECASTS

PARTS: Final = 50
STEP_SHARE: Final = 0.05
#: Minimum number of points: a line through two points has no residuals.
LEAST: Final = 3
_MOST_CORRELATED: Final = 0.98
#: Of the normal distribution, for 95 %.
_Z: Final = 1.959964
#: Student's own quantiles where the series below is not good enough.
_STUDENT_1: Final = 12.706
_STUDENT_2: Final = 4.303

_DIRECTORY: Final = ("broker_id", "directory_id")


def log_dir_forecasts(samples: DataFrame, horizon_s: int) -> DataFrame:
    """Return the table ``log_dir_forecasts``: for each directory, the time at which it will be
    full.

    :param samples: rows of ``log_dir_samples``.
    :param horizon_s: times later than this many seconds after a directory's last sample are null.
    """
    parts = _parts(_since_the_step(_used(samples)))
    forecast = _when_full(_with_errors(_fitted(parts)), horizon_s)
    by_path = Window.partitionBy("broker_id", "path").orderBy(F.desc("to"))
    newest = forecast.withColumn("age", F.row_number().over(by_path)).where(F.col("age") == 1)
    return newest.select(
        *(F.col(field.name).cast(field.dataType) for field in LOG_DIR_FORECASTS.fields)
    )


def student_95(freedom: Column) -> Column:
    """Return Student's two-sided 95 % quantile; ``freedom`` need not be a whole number.

    The expansion in powers of 1/freedom (Abramowitz and Stegun 26.7.5) is used from 3 on. Below
    that, the quantile of the next smaller whole number is used.
    """
    z, v = _Z, freedom
    series = (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * F.pow(v, 2))
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * F.pow(v, 3))
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * F.pow(v, 4))
    )
    return F.when(v < 2, _STUDENT_1).when(v < LEAST, _STUDENT_2).otherwise(series)


def _whole() -> WindowSpec:
    """Return a window of all rows of a directory. A window needs a session, so a constant is not
    possible."""
    return Window.partitionBy(*_DIRECTORY)


def _used(samples: DataFrame) -> DataFrame:
    """Return the used bytes of each sample that reports sizes, and of the sample before it."""
    sampled = samples.where((F.col("state") != "offline") & (F.col("total_bytes") > 0))
    used = sampled.select(
        *_DIRECTORY,
        "path",
        "time",
        "total_bytes",
        F.col("time").cast("double").alias("second"),
        (F.col("total_bytes") - F.col("free_bytes")).alias("used"),
    )
    in_order = _whole().orderBy("time")
    beside = used.withColumn("used_before", F.lag("used").over(in_order)).withColumn(
        "time_before", F.lag("time").over(in_order)
    )
    return beside.where(F.col("time_before").isNull() | (F.col("time") > F.col("time_before")))


def _since_the_step(used: DataFrame) -> DataFrame:
    """Return the samples after the only big step, or all samples without exactly one big step."""
    change = F.abs(F.col("used") - F.col("used_before"))
    is_step = F.coalesce(change >= STEP_SHARE * F.col("total_bytes"), F.lit(False))
    marked = used.withColumn("step_at", F.when(is_step, F.col("time")))
    counted = marked.withColumn("steps", F.count("step_at").over(_whole())).withColumn(
        "last_step", F.max("step_at").over(_whole())
    )
    return counted.where((F.col("steps") != 1) | (F.col("time") >= F.col("last_step")))


def _parts(used: DataFrame) -> DataFrame:
    """Return at most :data:`PARTS` averaged points per directory.

    ``x`` is in seconds from the last sample, and ``y`` in bytes.
    """
    first, last = F.min("second").over(_whole()), F.max("second").over(_whole())
    placed = used.withColumn("x", F.col("second") - last).withColumn(
        "share", F.try_divide(F.col("second") - first, last - first)
    )
    parts = placed.withColumn("part", F.least(F.floor(F.col("share") * PARTS), F.lit(PARTS - 1)))
    return parts.groupBy(*_DIRECTORY, "part").agg(
        F.avg("x").alias("x"),
        F.avg("used").alias("y"),
        F.count("*").alias("samples"),
        F.min("time").alias("from"),
        F.max("time").alias("to"),
        F.max_by(F.struct("path", "used", "total_bytes"), "time").alias("last"),
    )


def _fitted(parts: DataFrame) -> DataFrame:
    """Return the fitted line of each directory, its residuals, and values of the last sample."""
    by_x = _whole().orderBy("x")
    lines = (
        parts.withColumn("slope", F.regr_slope("y", "x").over(_whole()))
        .withColumn("mean_x", F.avg("x").over(_whole()))
        .withColumn("mean_y", F.avg("y").over(_whole()))
    )
    beside = lines.withColumn("dx", F.col("x") - F.col("mean_x")).withColumn(
        "residual", F.col("y") - F.col("mean_y") - F.col("slope") * F.col("dx")
    )
    neighbours = beside.withColumn("before", F.lag("residual").over(by_x))
    fitted = neighbours.groupBy(*_DIRECTORY, "slope", "mean_x", "mean_y").agg(
        F.count("*").alias("n"),
        F.sum(F.pow("dx", F.lit(2))).alias("sxx"),
        F.sum(F.pow("residual", F.lit(2))).alias("sse"),
        F.sum(F.col("residual") * F.col("before")).alias("together"),
        F.sum("samples").alias("samples"),
        F.min("from").alias("from"),
        F.max("to").alias("to"),
        F.max_by("last", "to").alias("last"),
    )
    return (
        fitted.withColumn("path", F.col("last.path"))
        .withColumn("used_bytes", F.col("last.used"))
        .withColumn("total_bytes", F.col("last.total_bytes"))
    )


def _with_errors(fitted: DataFrame) -> DataFrame:
    """Add the error of the line: ``variance`` of one observation, ``quantile`` and ``slope_error``.

    ``variance`` is widened for correlated residuals. These columns and the slope are null if the
    directory has too few points.
    """
    n = F.when(F.col("n") >= LEAST, F.col("n"))
    correlation = F.coalesce(F.try_divide("together", "sse"), F.lit(0.0))
    inflated = (
        fitted.withColumn("n", n)
        .withColumn("slope", F.when(F.col("n").isNotNull(), F.col("slope")))
        .withColumn(
            "correlation", F.greatest(F.lit(0.0), F.least(correlation, F.lit(_MOST_CORRELATED)))
        )
        .withColumn("inflation", (1 + F.col("correlation")) / (1 - F.col("correlation")))
    )
    freedom = F.when(
        F.col("n").isNotNull(), F.greatest(F.lit(1.0), F.col("n") / F.col("inflation") - 2)
    )
    judged = inflated.withColumn("quantile", student_95(freedom)).withColumn(
        "variance", F.col("sse") / (F.col("n") - 2) * F.col("inflation")
    )
    return judged.withColumn(
        "slope_error",
        F.col("quantile") * F.sqrt(F.try_divide("variance", "sxx")),
    )


def _when_full(fitted: DataFrame, horizon_s: int) -> DataFrame:
    """Add the times at which the line and its band reach ``total_bytes``.

    ``full_at`` is the time of the line; ``earliest`` and ``latest`` are those of the band. With b
    the slope, x seconds from the mean time of the points and d bytes from their mean to
    ``total_bytes``, the band reaches ``total_bytes`` at the x with
    (d - b x)^2 = (slope_error x)^2 + level^2. That is a quadratic equation in x with the leading
    coefficient b^2 - slope_error^2. If the coefficient is positive, the direction of the line is
    certain, and a line that falls has no times. Otherwise only the early end exists.
    """
    slope, error = F.col("slope"), F.col("slope_error")
    quadratic = (
        fitted.withColumn("d", F.col("total_bytes") - F.col("mean_y"))
        .withColumn("leading", F.pow(slope, F.lit(2)) - F.pow(error, F.lit(2)))
        .withColumn("level2", F.pow("quantile", F.lit(2)) * F.col("variance") / F.col("n"))
    )
    # b^2 d^2 - leading (d^2 - level^2), without the difference of two large numbers.
    square = F.pow(slope, F.lit(2)) * F.col("level2") + F.pow(error, F.lit(2)) * (
        F.pow("d", F.lit(2)) - F.col("level2")
    )
    rooted = quadratic.withColumn("bd", slope * F.col("d")).withColumn("square", square)
    grows, is_certain = slope > 0, F.col("leading") > 0
    root = F.sqrt(F.greatest("square", F.lit(0.0)))
    early = F.when(grows | ~is_certain, F.try_divide(F.col("bd") - root, "leading"))
    late = F.when(grows & is_certain, F.try_divide(F.col("bd") + root, "leading"))
    line = F.when(grows, F.try_divide("d", "slope"))
    ends = (
        rooted.withColumn("line_s", _from_last(line))
        # Without a root the band holds ``total`` everywhere, and so already now.
        .withColumn("early_s", F.when(F.col("square") < 0, 0.0).otherwise(_from_last(early)))
        .withColumn("late_s", _from_last(late))
    )
    return (
        ends.withColumn("growth_bytes_per_s", slope)
        .withColumn("growth_error_bytes_per_s", error)
        .withColumn("full_at", _later("line_s", horizon_s))
        .withColumn("earliest", _later("early_s", horizon_s))
        .withColumn("latest", _later("late_s", horizon_s))
    )


def _from_last(from_mean: Column) -> Column:
    """Return seconds after the last sample; times in the past become 0."""
    return F.when(from_mean.isNotNull(), F.greatest(F.lit(0.0), from_mean + F.col("mean_x")))


def _later(seconds: str, horizon_s: int) -> Column:
    """Return the time ``seconds`` after the last sample; null after the horizon.

    Times after the horizon may not fit a timestamp.
    """
    until = F.least(F.col(seconds), F.lit(float(horizon_s)))
    return F.when(
        F.col(seconds) <= horizon_s, F.timestamp_seconds(F.col("to").cast("double") + until)
    )
