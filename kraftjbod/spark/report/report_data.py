"""WIRE. Reads the data of a report from the tables, reduced to fit one process.

A missing table leaves its part None. Data that grows with time or records is reduced to buckets and
counts (``report_frames``). The size of the result depends only on the number of directories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from kraftjbod.core.errors import StartupError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.spark.report import report_frames as frames
from kraftjbod.spark.report.report_plots import MOST_DIRS, Buckets, Dir, Row
from kraftjbod.spark.session.job import Job
from kraftjbod.spark.tables import schemas as tables
from kraftjbod.spark.tables.stored_tables import is_unfinished, read_table
from kraftjbod.spark.telemetry.current_frames import WINDOWS_TO_GONE
from kraftjbod.spark.telemetry.outlier_frames import WINDOWS_TO_SILENT

AUDIT: Final = "audit_differences"
#: Tables that a report reads, with their schemas.
SCHEMAS: Final[dict[str, StructType]] = {
    "log_dir_windows": tables.LOG_DIR_WINDOWS,
    "log_dir_samples": tables.LOG_DIR_SAMPLES,
    "log_dir_forecasts": tables.LOG_DIR_FORECASTS,
    "log_dir_outliers": tables.LOG_DIR_OUTLIERS,
    "growth": tables.GROWTH,
    "skew": tables.SKEW,
    "plan_dirs": tables.PLAN_DIRS,
    "plan_moves": tables.PLAN_MOVES,
    AUDIT: tables.AUDIT_DIFFERENCES,
    "ingested": tables.INGESTED,
}
#: Limit of rows in the page's tables.
MOST_ROWS: Final = 50
MOST_OUTLIERS: Final = 100
#: The state of directories whose broker no longer reports.
SILENT: Final = "silent"
_FULLEST: Final = 6
_SLOWEST: Final = 40
_SKEWED: Final = 5

Rows = Sequence[Row]


@dataclass(slots=True, kw_only=True)
class ReportData:
    """The rows that the page shows, read from the tables of the jobs.

    ``missing`` has the names of tables that do not exist; their fields keep the default. ``span``
    has the first and last second of the telemetry, since 1970; None without telemetry.
    """

    span: tuple[float, float] | None = None
    buckets: Buckets | None = None
    dirs: Rows = ()
    is_large: bool = False
    #: Points of the directories that the plot of usage and that of latency show.
    usage: Rows = ()
    usage_bands: Rows = ()
    latency: Rows = ()
    latency_bands: Rows = ()
    states: Rows | None = None
    state_counts: Rows = ()
    forecasts: Rows | None = None
    forecasts_in_all: int = 0
    outliers: Rows | None = None
    findings: Counter[str] = field(default_factory=Counter)
    growth: Rows | None = None
    topics_in_all: int = 0
    skew: Rows | None = None
    plan_dirs: Rows | None = None
    plan_moves: Row | None = None
    audit_counts: Rows | None = None
    audit_rows: Rows = ()
    #: Whether a later audit than that of the rows was started and not finished.
    audit_is_unfinished: bool = False
    ingested: Rows | None = None
    missing: list[str] = field(default_factory=list)


def read_report_data(job: Job, *, hours: float | None) -> ReportData:
    """Read every existing table.

    :param hours: how many hours of telemetry to read, up to the newest window; None for all.
    :raises StartupError: none of the tables exists.
    """
    found = {
        name: read_table(job.spark, job.tables, name, schema) for name, schema in SCHEMAS.items()
    }
    data = ReportData(missing=[name for name, frame in found.items() if frame is None])
    if len(data.missing) == len(SCHEMAS):
        raise StartupError(
            f"{job.tables} holds none of the tables that a report shows; make some first: "
            "`kraftjbod-pipeline telemetry --bootstrap-server HOST:PORT --tables "
            f"{job.tables}`, or give their folder with --tables"
        )
    windows = found["log_dir_windows"]
    if windows is not None:
        windows = _read_dirs(job, data, windows, hours)
    _with(found["log_dir_forecasts"], lambda frame: _read_forecasts(data, frame))
    _with(windows, lambda frame: _read_points(job, data, frame))
    _with(found["log_dir_samples"], lambda frame: _read_states(job, data, frame))
    _with(found["log_dir_outliers"], lambda frame: _read_outliers(data, frame))
    _with(found["growth"], lambda frame: _read_growth(data, frame))
    _with(found[AUDIT], lambda frame: _read_audit(data, frame))
    data.audit_is_unfinished = is_unfinished(job.spark, job.table(AUDIT))
    if (skew := found["skew"]) is not None:
        data.skew = collected(frames.most_skewed(skew, _SKEWED))
    if (plan_dirs := found["plan_dirs"]) is not None:
        data.plan_dirs = collected(plan_dirs)
    if (moves := found["plan_moves"]) is not None:
        data.plan_moves = collected(frames.move_totals(moves))[0]
    if (ingested := found["ingested"]) is not None:
        data.ingested = collected(frames.ingest_counts(ingested, MOST_ROWS))
    return data


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a small frame as dictionaries."""
    return [row.asDict(recursive=True) for row in frame.collect()]


def _with(frame: DataFrame | None, read: Callable[[DataFrame], None]) -> None:
    if frame is not None:
        read(frame)


def _read_dirs(
    job: Job, data: ReportData, windows: DataFrame, hours: float | None
) -> DataFrame | None:
    """Read the directories, and the time that ``windows`` cover.

    :returns: the windows of that time; None if ``windows`` is empty.
    """
    whole = collected(frames.span(windows))[0]
    if not whole["windows"]:
        return None
    job.step(f"{whole['windows']:,} windows of directories")
    first, last = whole["first"], whole["last"]
    if hours is not None:
        first = max(first, last - hours * 3600)
        windows = frames.within(windows, "window_start", first, last)
    data.span, data.buckets = (first, last), Buckets.over(first, last, whole["window_s"])
    data.dirs = dirs_at_end(collected(frames.dir_summaries(windows)), whole["window_s"])
    data.is_large = len(data.dirs) > MOST_DIRS
    return windows


def _read_points(job: Job, data: ReportData, windows: DataFrame) -> None:
    """Read the points over time of the shown directories, and bands if not all are shown."""
    assert data.buckets is not None, "there are windows"
    bucket_s = data.buckets.bucket_s
    full = [_dir(row) for row in fullest(data.dirs)]
    by_latency = sorted(data.dirs, key=lambda row: -(row["worst_p99_ms"] or 0.0))
    slowest = [_dir(row) for row in by_latency]
    if data.is_large:
        filling = [_dir(row) for row in (data.forecasts or ())]
        full, slowest = [*full[:_FULLEST], *filling[:_FULLEST]], slowest[:_SLOWEST]
        spread = collected(frames.bands(windows, bucket_s).orderBy("time"))
        data.usage_bands = [row for row in spread if row["figure"] == frames.USED_SHARE]
        data.latency_bands = [row for row in spread if row["figure"] == frames.P99_LATENCY]
    points = collected(frames.points(windows, _chosen(job, [*full, *slowest]), bucket_s))
    in_usage, in_latency = set(full), set(slowest)
    data.usage = [row for row in points if _dir(row) in in_usage]
    data.latency = [row for row in points if _dir(row) in in_latency]


def _read_states(job: Job, data: ReportData, samples: DataFrame) -> None:
    """Read the states over time of directories with problems, or of all directories if they are
    few."""
    data.states = []
    buckets = data.buckets
    if buckets is None:
        return
    end_s = buckets.begin_s + buckets.count * buckets.bucket_s
    samples = frames.within(samples, "time", buckets.begin_s, end_s)
    shown = [_dir(row) for row in data.dirs]
    if data.is_large:
        data.state_counts = collected(frames.state_counts(samples, buckets.bucket_s))
        troubled = [row for row in data.dirs if row["troubled"] or row["is_cordoned"]]
        worst = sorted(troubled, key=lambda row: (row["state"] == "online", -row["troubled"]))
        shown = [_dir(row) for row in worst[:_SLOWEST]]
    if shown:
        points = frames.state_points(samples, _chosen(job, shown), buckets.bucket_s)
        data.states = collected(points)


def _read_forecasts(data: ReportData, forecasts: DataFrame) -> None:
    """Read the forecasts, without offline and removed directories, which no longer fill up."""
    rows = collected(frames.soonest_full(forecasts))
    if data.dirs:
        alive = {_dir(row) for row in data.dirs if row["state"] != LogDirState.OFFLINE.value}
        rows = [row for row in rows if _dir(row) in alive]
    data.forecasts, data.forecasts_in_all = rows[:MOST_ROWS], len(rows)


def _read_outliers(data: ReportData, outliers: DataFrame) -> None:
    rows = collected(frames.worst_first(outliers))
    data.outliers = rows[:MOST_OUTLIERS]
    data.findings = Counter(str(row["finding"]) for row in rows)


def _read_growth(data: ReportData, growth: DataFrame) -> None:
    data.growth = collected(frames.largest(growth, "topic", MOST_ROWS))
    data.topics_in_all = growth.where("scope = 'topic'").count()


def _read_audit(data: ReportData, differences: DataFrame) -> None:
    data.audit_counts = collected(frames.audit_counts(differences))
    data.audit_rows = collected(differences.limit(MOST_ROWS))


def dirs_at_end(dirs: Rows, window_s: float) -> list[Row]:
    """Return the directories that exist at the end. If the broker is silent, their state is
    ``silent``.

    A broker reports all its directories, so a directory that is missing was removed.
    """
    seen: dict[int, float] = {}
    for row in dirs:
        seen[row["broker_id"]] = max(row["last_seen"], seen.get(row["broker_id"], 0.0))
    newest = max(seen.values(), default=0.0)
    there = []
    for row in dirs:
        broker_last = seen[row["broker_id"]]
        if row["last_seen"] <= broker_last - WINDOWS_TO_GONE * window_s:
            continue
        is_silent = broker_last <= newest - WINDOWS_TO_SILENT * window_s
        there.append({**row, "state": SILENT} if is_silent else row)
    return there


def fullest(dirs: Rows) -> list[Row]:
    """Return the directories whose size is known, the fullest first."""
    known = [row for row in dirs if row["total_bytes"]]
    return sorted(known, key=lambda row: (row["free_bytes"] / row["total_bytes"], _dir(row)))


def _dir(row: Row) -> Dir:
    return int(row["broker_id"]), str(row["path"])


def _chosen(job: Job, dirs: Sequence[Dir]) -> DataFrame:
    return job.spark.createDataFrame(list(dict.fromkeys(dirs)), frames.CHOSEN)
