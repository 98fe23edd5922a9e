"""The text of the summary of tables; the job's tests check the figures."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kraftjbod.spark.tables.schemas import LOG_DIR_FORECASTS, LOG_DIR_OUTLIERS
from kraftjbod.spark.tables.stored_tables import publish
from kraftjbod.spark.telemetry.telemetry_summary import lines, summarize
from tests.spark.samples import GIB

NOON = 1_772_366_400.0

FORECAST = {
    "broker_id": 2,
    "path": "/d1",
    "to": NOON,
    "used_bytes": 93 * GIB,
    "total_bytes": 100 * GIB,
    "growth_bytes_per_s": 1048576.0,
    "growth_error_bytes_per_s": 524288.0,
    "full_at": NOON + 7200,
    "earliest": NOON + 3600,
    "latest": None,
}
UNSURE = {**FORECAST, "path": "/d2", "growth_bytes_per_s": -1048576.0, "full_at": None}
SUMMARY: dict[str, Any] = {
    "tables": "run/tables",
    "log_dirs": {"samples": 1200, "things": 6, "brokers": 3, "from": NOON - 60, "to": NOON},
    "replicas": {"samples": 90, "things": 1, "brokers": 1, "from": NOON, "to": NOON},
    "windows": 12,
    "rejects": {"no kind": 2, "schema 2 is newer than 1": 1},
    "fullest": [UNSURE, FORECAST],
    "soonest_full": [FORECAST],
    "findings": {"slow": 1, "offline": 1, "errors": 1, "silent": 4},
    "outliers": [
        {**finding, "broker_id": 1, "since": NOON}
        for finding in (
            {"finding": "slow", "path": "/a", "value": 600.0, "peers": 3.0},
            {"finding": "offline", "path": "/b", "value": None, "peers": None},
            {"finding": "errors", "path": "/c", "value": 2.0, "peers": None},
        )
    ],
    "topics": [],
    "skew": {
        "cluster": [{"name": "c", "skew": 1.2}],
        "broker": [{"name": "1", "skew": 2.0}],
        "topic": [],
    },
    "groups": [{"group_id": "readers", "lag": 1200, "partitions": 3, "at": NOON}],
}


def test_telemetry_summary_lines_format_a_complete_summary() -> None:
    assert list(lines(SUMMARY)) == [
        "1,200 samples of 6 directories and 90 of 1 replica on 3 brokers, "
        "2026-03-01 11:59:00 to 2026-03-01 12:00:00 UTC, in 12 windows",
        "not samples: 2 no kind, 1 schema 2 is newer than 1; they are in telemetry_rejects",
        "fullest: 2:/d2 93.0 % of 100.0 GiB used, grows -1.0 MiB/s ± 512.0 KiB/s, "
        "perhaps full, 2026-03-01 13:00:00 at the earliest",
        "full first: 2:/d1 93.0 % of 100.0 GiB used, grows 1.0 MiB/s ± 512.0 KiB/s, "
        "full in 2 h, 2026-03-01 14:00:00 (95 %: 2026-03-01 13:00:00 to never)",
        "slow: 1:/a since 2026-03-01 12:00:00, 600 ms, others 3.0 ms",
        "offline: 1:/b since 2026-03-01 12:00:00",
        "errors: 1:/c since 2026-03-01 12:00:00, 2",
        "and 4 more findings in log_dir_outliers",
        "most bytes over mean: brokers of the cluster 1.20, directories of broker 1 2.00",
        "group most behind: readers by 1,200 records in 3 partitions, 2026-03-01 12:00:00",
        "tables: run/tables",
    ]


def test_summary_without_tables_reports_no_telemetry(spark: SparkSession, tmp_path: Any) -> None:
    found = summarize(spark, str(tmp_path))
    assert list(lines(found)) == [
        "no telemetry yet: is storage.telemetry.enable true on the brokers?",
        "no directory is slow, failing or impaired",
        f"tables: {tmp_path}",
    ]


def test_summary_excludes_offline_directories_from_forecasts(
    spark: SparkSession, tmp_path: Any
) -> None:
    """The last forecast of an offline directory stays in the table."""

    def forecast(path: str, full_at: float) -> DataFrame:
        moment = F.timestamp_seconds(F.lit(full_at))
        return spark.createDataFrame(
            [(1, path, 90 * GIB, 100 * GIB)],
            "broker_id int, path string, used_bytes long, total_bytes long",
        ).withColumn("full_at", moment)

    both = forecast("/dead", NOON).unionByName(forecast("/slow", NOON + 60))
    whole = spark.createDataFrame([], LOG_DIR_FORECASTS)
    publish(whole.unionByName(both, allowMissingColumns=True), f"{tmp_path}/log_dir_forecasts")
    found = spark.createDataFrame(
        [(1, "/dead", "offline"), (1, "/slow", "slow")],
        "broker_id int, path string, finding string",
    )
    whole = spark.createDataFrame([], LOG_DIR_OUTLIERS)
    publish(whole.unionByName(found, allowMissingColumns=True), f"{tmp_path}/log_dir_outliers")
    got = summarize(spark, str(tmp_path))
    assert [row["path"] for row in got["soonest_full"]] == ["/slow"]
    assert [row["path"] for row in got["fullest"]] == ["/slow"]
