"""The frames of a report, from small tables, compared completely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.testing import assertDataFrameEqual

from kraftjbod.spark.report import report_frames as frames
from kraftjbod.spark.tables import schemas as tables

# 2026-11-21 00:00:00 UTC.
BEGIN_S: Final = 1_795_219_200.0
BEGIN: Final = datetime.fromtimestamp(BEGIN_S, UTC)


def table(spark: SparkSession, schema: StructType, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return rows of a table; omitted columns are null."""
    values = [tuple(row.get(field.name) for field in schema) for row in rows]
    return spark.createDataFrame(values, schema)


def window(minute: int, broker: int, path: str, **more: Any) -> dict[str, Any]:
    start = BEGIN + timedelta(minutes=minute)
    return {
        "window_start": start,
        "window_end": start + timedelta(minutes=1),
        "broker_id": broker,
        "path": path,
        "state": "online",
        "is_cordoned": False,
        "total_bytes": 100,
        "free_bytes": 60,
        **more,
    }


OFFLINE: Final = {"state": "offline", "total_bytes": 0, "free_bytes": 0}
WINDOWS: Final = (
    window(0, 1, "/a", free_bytes=90, p99_latency_ms=5.0, io_errors=1, append_bytes_per_s=7.0),
    window(1, 1, "/a", free_bytes=80, p99_latency_ms=50.0, io_errors=None, rack="r1"),
    window(5, 1, "/a", **OFFLINE, io_errors=2),
    window(0, 2, "/a", free_bytes=20, p99_latency_ms=1.0),
    window(1, 2, "/a", free_bytes=10, p99_latency_ms=2.0, is_cordoned=True, replica_bytes=88),
)


@pytest.fixture(scope="module")
def windows(spark: SparkSession) -> DataFrame:
    return table(spark, tables.LOG_DIR_WINDOWS, WINDOWS)


def assert_schema(frame: DataFrame, schema: StructType) -> None:
    """Compare names and types in order; Spark's knowledge of null columns may differ."""

    def shape(fields: StructType) -> list[tuple[str, str]]:
        return [(field.name, field.dataType.simpleString()) for field in fields]

    assert shape(frame.schema) == shape(schema)


def expect(spark: SparkSession, found: DataFrame, schema: StructType, rows: Sequence[Any]) -> None:
    assert_schema(found, schema)
    assertDataFrameEqual(found, spark.createDataFrame(list(rows), schema))


def test_span_covers_all_windows(spark: SparkSession, windows: DataFrame) -> None:
    expect(spark, frames.span(windows), frames.SPAN, [(BEGIN_S, BEGIN_S + 360, 60.0, 5)])


def test_span_without_windows_is_null(spark: SparkSession, windows: DataFrame) -> None:
    expect(spark, frames.span(windows.limit(0)), frames.SPAN, [(None, None, None, 0)])


def test_within_includes_the_first_second_and_excludes_the_last(windows: DataFrame) -> None:
    found = frames.within(windows, "window_start", BEGIN_S + 60, BEGIN_S + 300)
    assert [row.free_bytes for row in found.orderBy("broker_id").collect()] == [80, 10]


def test_dir_summary_of_offline_directory_has_its_last_known_size(
    spark: SparkSession, windows: DataFrame
) -> None:
    expect(
        spark,
        frames.dir_summaries(windows),
        frames.DIR_SUMMARY,
        [
            # broker, path, rack, last seen, state, cordoned, total, free, replicas, append, fetch,
            # worst p99, errors, troubled
            (1, "/a", None, BEGIN_S + 360, "offline", False, 100, 80, None, None, None, 50.0, 3, 1),
            (2, "/a", None, BEGIN_S + 120, "online", True, 100, 10, 88, None, None, 2.0, None, 0),
        ],
    )


def test_directory_points_have_the_last_size_and_the_slowest_window(
    spark: SparkSession, windows: DataFrame
) -> None:
    chosen = spark.createDataFrame([(1, "/a"), (9, "/none")], frames.CHOSEN)
    expect(
        spark,
        frames.points(windows, chosen, 120),
        frames.POINTS,
        [(BEGIN_S, 1, "/a", 20, 100, 50.0), (BEGIN_S + 240, 1, "/a", None, None, None)],
    )


def test_bands_exclude_unknown_values(spark: SparkSession, windows: DataFrame) -> None:
    expect(
        spark,
        frames.bands(windows, 120),
        frames.BANDS,
        [
            (BEGIN_S, "used_share", 2, 0.2, 0.2, 0.2, 0.9, 0.9, 0.9),
            (BEGIN_S, "p99_latency_ms", 2, 2.0, 2.0, 2.0, 50.0, 50.0, 50.0),
        ],
    )


def test_state_points_and_counts_have_the_worst_state_of_each_bucket(spark: SparkSession) -> None:
    def sample(second: int, broker: int, state: str, **more: Any) -> dict[str, Any]:
        time = BEGIN + timedelta(seconds=second)
        quiet = {"is_cordoned": False, "moves_in": 0, "moves_out": 0}
        return {"time": time, "broker_id": broker, "path": "/a", "state": state, **quiet, **more}

    samples = table(
        spark,
        tables.LOG_DIR_SAMPLES,
        [
            sample(0, 1, "online"),
            sample(20, 1, "offline"),
            sample(50, 1, "stalled", moves_in=3),
            sample(60, 1, "saturated", is_cordoned=True),
            sample(119, 1, "online"),
            sample(0, 2, "online"),
            sample(10, 2, "online", moves_out=1),
            sample(70, 2, "of the future"),
        ],
    )
    chosen = spark.createDataFrame([(1, "/a"), (2, "/a")], frames.CHOSEN)
    expect(
        spark,
        frames.state_points(samples, chosen, 60),
        frames.STATE_POINTS,
        [
            (BEGIN_S, 1, "/a", "offline", False, 3, 0),
            (BEGIN_S + 60, 1, "/a", "saturated", True, 0, 0),
            (BEGIN_S, 2, "/a", "online", False, 0, 1),
            (BEGIN_S + 60, 2, "/a", "of the future", False, 0, 0),
        ],
    )
    # online, saturated, stalled, offline, cordoned, moving
    expect(
        spark,
        frames.state_counts(samples, 60),
        frames.STATE_COUNTS,
        [(BEGIN_S, 1, 0, 0, 1, 0, 2), (BEGIN_S + 60, 0, 1, 0, 0, 1, 0)],
    )


def test_soonest_full_sorts_certain_before_possible_times(spark: SparkSession) -> None:
    def forecast(path: str, full: int | None, earliest: int | None) -> dict[str, Any]:
        at = {"full_at": full, "earliest": earliest}
        times = {k: None if v is None else BEGIN + timedelta(days=v) for k, v in at.items()}
        return {"broker_id": 1, "path": path, "to": BEGIN, **times}

    rows = [forecast("/may", None, 1), forecast("/late", 9, 2), forecast("/never", None, None)]
    rows += [forecast("/soon", 3, 3)]
    found = frames.soonest_full(table(spark, tables.LOG_DIR_FORECASTS, rows)).collect()
    day = 86_400.0
    assert [(row.path, row.full_at, row.earliest) for row in found] == [
        ("/soon", BEGIN_S + 3 * day, BEGIN_S + 3 * day),
        ("/late", BEGIN_S + 9 * day, BEGIN_S + 2 * day),
        ("/may", None, BEGIN_S + day),
    ]


def test_worst_first_sorts_findings_by_severity(spark: SparkSession) -> None:
    rows = [
        {"broker_id": broker, "path": "/a", "finding": finding}
        for broker, finding in [(3, "slow"), (1, "slow"), (2, "stalled"), (4, "offline")]
    ]
    outliers = table(spark, tables.LOG_DIR_OUTLIERS, rows)
    assert [row.broker_id for row in frames.worst_first(outliers).collect()] == [4, 2, 1, 3]


def test_largest_and_most_skewed_select_per_scope(spark: SparkSession) -> None:
    sizes = [("topic", "a", 1), ("topic", "b", 3), ("topic", "c", 2), ("broker", "1", 9)]
    growth = table(
        spark,
        tables.GROWTH,
        [{"scope": scope, "name": name, "size_bytes": size} for scope, name, size in sizes],
    )
    assert [row.name for row in frames.largest(growth, "topic", 2).collect()] == ["b", "c"]
    skews = [("broker", "1", 1.5), ("broker", "2", 3.0), ("topic", "a", None), ("topic", "b", 1.0)]
    skew = table(
        spark,
        tables.SKEW,
        [{"scope": scope, "name": name, "skew": skew} for scope, name, skew in skews],
    )
    found = frames.most_skewed(skew, 1)
    assert_schema(found, tables.SKEW)
    assert [(row.scope, row.name) for row in found.collect()] == [("broker", "2"), ("topic", "b")]


def test_audit_counts_group_differences_by_kind(spark: SparkSession) -> None:
    kinds = [("missing", "t"), ("missing", "t"), ("missing", "u"), ("duplicate", "t")]
    rows = [{"difference": kind, "topic": topic} for kind, topic in kinds]
    found = frames.audit_counts(table(spark, tables.AUDIT_DIFFERENCES, rows))
    assert_schema(found, frames.AUDIT_COUNTS)
    assert [tuple(row) for row in found.collect()] == [("missing", 2, 3), ("duplicate", 1, 1)]


def test_ingest_counts_group_by_topic_status_and_reason(spark: SparkSession) -> None:
    rows = [
        {"topic": "t", "status": "good", "key": b"12", "value": b"345"},
        {"topic": "t", "status": "good", "value": None},
        {"topic": "t", "status": "late", "reason": "1 h late", "value": b"1"},
    ]
    found = frames.ingest_counts(table(spark, tables.INGESTED, rows), 10)
    assert_schema(found, frames.INGEST_COUNTS)
    assert [tuple(row) for row in found.collect()] == [
        ("t", "good", None, 2, 5),
        ("t", "late", "1 h late", 1, 1),
    ]


def test_move_totals_count_moves_and_bytes(spark: SparkSession) -> None:
    moves = [(1, 1, 10), (1, 2, 20), (3, 1, None)]
    rows = [{"from_broker": a, "to_broker": b, "size_bytes": size} for a, b, size in moves]
    found = frames.move_totals(table(spark, tables.PLAN_MOVES, rows))
    expect(spark, found, frames.MOVE_TOTALS, [(3, 2, 30)])
    expect(
        spark,
        frames.move_totals(spark.createDataFrame([], tables.PLAN_MOVES)),
        frames.MOVE_TOTALS,
        [(0, 0, 0)],
    )
