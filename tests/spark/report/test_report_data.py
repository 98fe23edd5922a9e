"""The data that a report reads from tables, of a cluster too large for one line per directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kraftjbod.core.errors import StartupError
from kraftjbod.spark.report.report_data import ReportData, dirs_at_end, fullest, read_report_data
from kraftjbod.spark.report.report_plots import MOST_DIRS
from kraftjbod.spark.session.job import Job
from kraftjbod.spark.tables.schemas import LOG_DIR_OUTLIERS
from kraftjbod.spark.tables.stored_tables import publish
from tests.spark import report_tables

pytestmark = pytest.mark.timeout(300)

BEGIN_S = report_tables.BEGIN.timestamp()
HOUR = 3600.0


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    """The last six hours of the generated day, of 3 brokers with 17 directories each."""
    folder = tmp_path_factory.mktemp("large")
    report_tables.write_day(folder, step_minutes=60, brokers=3, dirs=17)
    rows = [
        tuple(row[field.name] for field in LOG_DIR_OUTLIERS) for row in report_tables.outliers()
    ]
    # As the telemetry job stores it: the newest generation is the table.
    outliers = spark.createDataFrame(rows, LOG_DIR_OUTLIERS)
    (folder / "log_dir_outliers" / "part-0.parquet").unlink()
    publish(outliers.limit(1), str(folder / "log_dir_outliers"))
    publish(outliers, str(folder / "log_dir_outliers"))
    return read_report_data(Job(spark=spark, tables=str(folder)), hours=6)


def test_report_data_with_hours_reads_only_the_last_hours(data: ReportData) -> None:
    assert data.span == (BEGIN_S + 18 * HOUR, BEGIN_S + 24 * HOUR)
    assert data.buckets is not None
    assert (data.buckets.count, data.buckets.bucket_s) == (6, HOUR)
    times = {row["time"] for rows in (data.usage, data.latency, data.states) for row in rows or ()}
    assert times == {BEGIN_S + (18 + n) * HOUR for n in range(6)}


def test_report_data_of_many_directories_chooses_relevant_ones(data: ReportData) -> None:
    assert len(data.dirs) == 51 > MOST_DIRS and data.is_large

    def shown(rows: Any) -> set[tuple[int, str]]:
        return {(row["broker_id"], row["path"]) for row in rows}

    full = [(row["broker_id"], row["path"]) for row in fullest(data.dirs)]
    filling = [(row["broker_id"], row["path"]) for row in data.forecasts or ()]
    assert full[0] == (1, "/data/d3")
    assert shown(data.usage) == {*full[:6], *filling}
    assert len(shown(data.latency)) == 40 and (1, "/data/d0") in shown(data.latency)
    # The saturated, the offline, and the cordoned directory.
    assert shown(data.states) == {(1, "/data/d3"), (2, "/data/d1"), (3, "/data/d2")}
    assert {(row["offline"], row["online"]) for row in data.state_counts} == {(1, 49), (1, 50)}


def test_report_data_bands_cover_all_directories_in_order_of_time(data: ReportData) -> None:
    for bands in (data.usage_bands, data.latency_bands):
        assert [row["time"] for row in bands] == sorted(row["time"] for row in bands)
        assert {row["dirs"] for row in bands} == {50}


def test_report_data_reads_small_tables_completely(data: ReportData) -> None:
    assert [row["finding"] for row in data.outliers or ()] == ["offline", "errors", "slow"]
    assert data.forecasts_in_all == 4 and data.topics_in_all == 6
    assert data.plan_moves == {
        "moves": 3,
        "across_brokers": 1,
        "size_bytes": 30 * report_tables.GIB,
    }
    assert data.audit_counts == [] and data.missing == []


def test_report_data_without_tables_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="holds none of the tables that a report shows"):
        read_report_data(Job(spark=spark, tables=str(tmp_path)), hours=None)


def test_dirs_at_end_omits_removed_directories_and_marks_silent_brokers() -> None:
    def row(broker: int, path: str, last_seen: float) -> dict[str, Any]:
        return {"broker_id": broker, "path": path, "last_seen": last_seen, "state": "online"}

    rows = [row(1, "/kept", 600), row(1, "/given-up", 419), row(1, "/late", 421), row(2, "/x", 420)]
    found = [(r["broker_id"], r["path"], r["state"]) for r in dirs_at_end(rows, 60)]
    assert found == [(1, "/kept", "online"), (1, "/late", "online"), (2, "/x", "silent")]
    assert dirs_at_end([], 60) == []


def test_fullest_sorts_by_share_without_unknown_sizes() -> None:
    def row(path: str, free: int, total: int | None) -> dict[str, Any]:
        return {"broker_id": 1, "path": path, "free_bytes": free, "total_bytes": total}

    rows = [row("/b", 5, 10), row("/dead", 0, 0), row("/a", 5, 10), row("/c", 1, 10)]
    assert [r["path"] for r in fullest([*rows, row("/new", 0, None)])] == ["/c", "/a", "/b"]
