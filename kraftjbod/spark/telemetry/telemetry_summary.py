"""WIRE. A summary of the tables of ``telemetry``, as a dictionary and as text.

Only small results are collected: counts, and the first rows of tables with a row per directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.spark.style.figure_text import (
    bytes_text,
    count_text,
    duration_text,
    ms_text,
    rate_text,
    share_text,
    time_text,
)
from kraftjbod.spark.tables import schemas
from kraftjbod.spark.tables.stored_tables import WINDOWS, read_table

#: Rows of each kind that are listed.
MOST: Final = 20
_READ: Final[dict[str, StructType]] = {
    "log_dir_samples": schemas.LOG_DIR_SAMPLES,
    "replica_samples": schemas.REPLICA_SAMPLES,
    "group_lag": schemas.GROUP_LAG,
    "telemetry_rejects": schemas.TELEMETRY_REJECTS,
    WINDOWS: schemas.LOG_DIR_WINDOWS,
    "log_dir_forecasts": schemas.LOG_DIR_FORECASTS,
    "log_dir_outliers": schemas.LOG_DIR_OUTLIERS,
    "growth": schemas.GROWTH,
    "skew": schemas.SKEW,
}

Summary = Mapping[str, Any]


def summarize(spark: SparkSession, tables: str) -> Summary:
    """Return a summary of the tables. Times are seconds since 1970; a missing table counts as
    empty.

    Forecasts of offline directories are in the table, but not in the summary.
    """
    frames = {}
    for name, schema in _READ.items():
        found = read_table(spark, tables, name, schema)
        frames[name] = spark.createDataFrame([], schema) if found is None else found
    outliers = frames["log_dir_outliers"]
    dead = outliers.where(F.col("finding") == LogDirState.OFFLINE.value)
    alive = frames["log_dir_forecasts"].join(dead, ["broker_id", "path"], "left_anti")
    forecasts = _with_seconds(alive)
    return {
        "tables": tables,
        "log_dirs": _of_samples(frames["log_dir_samples"]),
        "replicas": _of_samples(frames["replica_samples"], "topic", "partition"),
        "windows": frames[WINDOWS].count(),
        "rejects": _counts(frames["telemetry_rejects"], "reason"),
        "fullest": _first(
            forecasts, F.desc(F.try_divide("used_bytes", "total_bytes")), "broker_id", "path"
        ),
        "soonest_full": _first(
            forecasts.where(F.col("full_at").isNotNull()), "full_at", "broker_id", "path"
        ),
        "findings": _counts(outliers, "finding"),
        "outliers": _first(_with_seconds(outliers), "finding", "since", "path"),
        "topics": _first(
            frames["growth"].where(F.col("scope") == "topic"), F.desc("size_bytes"), "name"
        ),
        "skew": {
            scope: _first(
                frames["skew"].where(F.col("scope") == scope), F.desc("skew"), "name", most=1
            )
            for scope in ("cluster", "broker", "topic")
        },
        "groups": _first(_newest_lag(frames["group_lag"]), F.desc("lag"), "group_id"),
    }


def lines(summary: Summary) -> Iterator[str]:
    """Yield the lines of the summary as text."""
    yield from _read_lines(summary)
    if summary["fullest"]:
        yield f"fullest: {_forecast_text(summary['fullest'][0])}"
    first = summary["soonest_full"][:1]
    if first and first != summary["fullest"][:1]:
        yield f"full first: {_forecast_text(first[0])}"
    for outlier in summary["outliers"]:
        yield _outlier_text(outlier)
    found = sum(summary["findings"].values())
    if found > len(summary["outliers"]):
        yield f"and {found - len(summary['outliers']):,} more findings in log_dir_outliers"
    if not found:
        yield "no directory is slow, failing or impaired"
    yield from _skew_lines(summary["skew"])
    for group in summary["groups"][:1]:
        yield (
            f"group most behind: {group['group_id']} by {count_text(group['lag'], 'record')} in "
            f"{count_text(group['partitions'], 'partition')}, {time_text(group['at'])}"
        )
    yield f"tables: {summary['tables']}"


def _of_samples(samples: DataFrame, *what: str) -> dict[str, Any]:
    """Return the numbers of samples, brokers and subjects, and the range of times.

    :param what: columns that identify a subject on a broker; ``path`` by default.
    """
    things = ("broker_id", *(what or ("path",)))
    [row] = samples.agg(
        F.count("*").alias("samples"),
        F.count_distinct("broker_id").alias("brokers"),
        F.count_distinct(*things).alias("things"),
        F.min("time").cast("double").alias("from"),
        F.max("time").cast("double").alias("to"),
    ).collect()
    return row.asDict()


def _newest_lag(samples: DataFrame) -> DataFrame:
    """Return the newest lag of each group: the sum of the last known values of its partitions."""
    newest = samples.groupBy("group_id", "topic", "partition").agg(
        F.max_by("lag", "time").alias("lag"), F.max("time").alias("time")
    )
    return newest.groupBy("group_id").agg(
        F.coalesce(F.sum("lag"), F.lit(0)).alias("lag"),
        F.count("*").alias("partitions"),
        F.max("time").cast("double").alias("at"),
    )


def _with_seconds(frame: DataFrame) -> DataFrame:
    for field in frame.schema.fields:
        if field.dataType.typeName() == "timestamp":
            frame = frame.withColumn(field.name, F.col(field.name).cast("double"))
    return frame


def _counts(frame: DataFrame, by: str) -> dict[str, int]:
    """Return the number of rows by the value of ``by``, the most frequent first, at most 20."""
    counted = frame.groupBy(by).count().orderBy(F.desc("count"), by).limit(MOST)
    return {row[by]: row["count"] for row in counted.collect()}


def _first(frame: DataFrame, *order: str | Column, most: int = MOST) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.orderBy(*order).limit(most).collect()]


# --- for people ----------------------------------------------------------------------------------


def _read_lines(summary: Summary) -> Iterator[str]:
    dirs, replicas, rejects = summary["log_dirs"], summary["replicas"], summary["rejects"]
    if not dirs["samples"] and not rejects:
        yield "no telemetry yet: is storage.telemetry.enable true on the brokers?"
        return
    yield (
        f"{count_text(dirs['samples'], 'sample')} of "
        f"{count_text(dirs['things'], 'directory', 'directories')} and "
        f"{count_text(replicas['samples'])} of {count_text(replicas['things'], 'replica')} on "
        f"{count_text(dirs['brokers'], 'broker')}, {time_text(dirs['from'])} to "
        f"{time_text(dirs['to'])} UTC, in {count_text(summary['windows'], 'window')}"
    )
    if rejects:
        kinds = ", ".join(f"{count:,} {reason}" for reason, count in rejects.items())
        yield f"not samples: {kinds}; they are in telemetry_rejects"


def _forecast_text(row: Mapping[str, Any]) -> str:
    used = share_text(row["used_bytes"], row["total_bytes"])
    parts = [f"{row['broker_id']}:{row['path']} {used} of {bytes_text(row['total_bytes'])} used"]
    if row["growth_bytes_per_s"] is not None:
        error = rate_text(row["growth_error_bytes_per_s"])
        parts.append(f"grows {rate_text(row['growth_bytes_per_s'])} ± {error}")
    if row["full_at"] is not None:
        latest = "never" if row["latest"] is None else time_text(row["latest"])
        parts.append(
            f"full in {duration_text(row['full_at'] - row['to'])}, {time_text(row['full_at'])} "
            f"(95 %: {time_text(row['earliest'])} to {latest})"
        )
    elif row["earliest"] is not None:
        parts.append(f"perhaps full, {time_text(row['earliest'])} at the earliest")
    return ", ".join(parts)


def _outlier_text(row: Mapping[str, Any]) -> str:
    text = f"{row['finding']}: {row['broker_id']}:{row['path']} since {time_text(row['since'])}"
    if row["value"] is None:
        return text
    as_text = ms_text if row["finding"] == "slow" else _plain_text
    others = "" if row["peers"] is None else f", others {as_text(row['peers'])}"
    return f"{text}, {as_text(row['value'])}{others}"


def _plain_text(value: float | None) -> str:
    return count_text(value)


def _skew_lines(skew: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    of = {
        "cluster": "brokers of the cluster",
        "broker": "directories of broker {name}",
        "topic": "replicas of topic {name}",
    }
    named = [
        f"{of[scope].format(name=row['name'])} {row['skew']:.2f}"
        for scope, rows in skew.items()
        for row in rows
    ]
    if named:
        yield f"most bytes over mean: {', '.join(named)}"
