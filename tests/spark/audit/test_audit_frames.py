"""The findings of an audit in small frames."""

from __future__ import annotations

import zlib
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from kraftjbod.spark.audit import audit_frames as audit
from kraftjbod.spark.tables.schemas import (
    ACKNOWLEDGED,
    ACKNOWLEDGED_LINES,
    AUDIT_DIFFERENCES,
    AUDITED_ACKNOWLEDGEMENTS,
    AUDITED_RECORDS,
    LOG_RANGES,
    RECORD,
)

T = "t"


def crc(text: str | None) -> int | None:
    return None if text is None else zlib.crc32(text.encode())


def acked(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Rows: partition, offset, producer, sequence, key, value."""
    made = [(T, p, o, w, n, crc(k), crc(v)) for p, o, w, n, k, v in rows]
    return spark.createDataFrame(made, ACKNOWLEDGED)


def held(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Rows: partition, offset, key, value."""
    made = [(T, p, o, crc(k), crc(v), hash((k, v))) for p, o, k, v in rows]
    return spark.createDataFrame(made, AUDITED_RECORDS)


def ranges(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Rows: partition, start, end, is compacted."""
    return spark.createDataFrame([(T, *row) for row in rows], LOG_RANGES)


def found(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Rows: difference, partition, offset, producer, sequence, detail."""
    made = [(d, T, p, o, None, w, n, text) for d, p, o, w, n, text in rows]
    return spark.createDataFrame(made, AUDIT_DIFFERENCES)


def test_acknowledgements_expand_lines_of_batches_to_records(spark: SparkSession) -> None:
    lines = [
        (T, 0, 10, "a", 5, None, None, 2, [1, None], [3, 4]),
        (T, 0, 20, "a", 7, None, None, 2, None, None),
        (T, 1, 30, None, None, 8, 9, None, None, None),
        (T, 1, 31, None, None, None, None, 0, None, None),
    ]
    got = audit.acknowledgements(spark.createDataFrame(lines, ACKNOWLEDGED_LINES))
    rows = [
        (T, 0, 10, "a", 5, 1, 3),
        (T, 0, 11, "a", 6, None, 4),
        (T, 0, 20, "a", 7, None, None),
        (T, 0, 21, "a", 8, None, None),
        (T, 1, 30, None, None, 8, 9),
    ]
    assertDataFrameEqual(got, spark.createDataFrame(rows, ACKNOWLEDGED))


def test_audited_records_keep_crcs_of_keys_and_values(spark: SparkSession) -> None:
    records = [
        (b"k", b"v", T, 0, 1, None, 0),
        (None, b"", T, 0, 2, None, 0),
        (b"", None, T, 0, 3, None, 0),
    ]
    kept = audit.audited_records(spark.createDataFrame(records, RECORD))
    assert [(r.offset, r.key_crc, r.value_crc) for r in kept.orderBy("offset").collect()] == [
        (1, zlib.crc32(b"k"), zlib.crc32(b"v")),
        (2, None, 0),
        (3, 0, None),
    ]
    assert kept.schema.fieldNames() == AUDITED_RECORDS.fieldNames()


def test_standings_classify_each_acknowledged_record(spark: SparkSession) -> None:
    acknowledged = acked(
        spark,
        (0, 3, "a", 0, "k", "old"),
        (0, 5, "a", 1, "k", "v"),
        (0, 6, "a", 2, "k", "w"),
        (0, 7, "a", 3, None, None),
        (0, 8, "a", 4, None, "x"),
        (0, 9, "a", 5, "k", "beyond"),
        (1, 0, "b", 0, "k", "v"),
        (2, 0, "b", 0, "k", "v"),
    )
    records = held(
        spark, (0, 5, "k", "v"), (0, 6, "k", "other"), (0, 7, "q", "r"), (0, 8, "k", "x")
    )
    got = audit.standings(
        acknowledged,
        records,
        ranges(spark, (0, 5, 9, False), (1, None, None, False)),
        has_compacted=False,
    )
    changed = f"{crc('k'):x} and {crc('other'):x}, acknowledged with {crc('k'):x} and {crc('w'):x}"
    rows = [
        (T, 0, 3, "a", 0, crc("k"), crc("old"), "trimmed", None),
        (T, 0, 5, "a", 1, crc("k"), crc("v"), "found", None),
        (T, 0, 6, "a", 2, crc("k"), crc("w"), "changed", f"CRC of key and value: {changed}"),
        (T, 0, 7, "a", 3, None, None, "found", None),
        (T, 0, 8, "a", 4, None, crc("x"), "found", None),
        (T, 0, 9, "a", 5, crc("k"), crc("beyond"), "missing", "the log holds 5 up to before 9"),
        (T, 1, 0, "b", 0, crc("k"), crc("v"), "unreadable", None),
        (T, 2, 0, "b", 0, crc("k"), crc("v"), "missing", "there is no such partition"),
    ]
    assertDataFrameEqual(got, spark.createDataFrame(rows, AUDITED_ACKNOWLEDGEMENTS))
    assertDataFrameEqual(
        audit.missing_or_changed(got).select("difference", "partition", "offset"),
        [("changed", 0, 6), ("missing", 0, 9), ("missing", 2, 0)],
    )
    assertDataFrameEqual(
        audit.unreadable(got),
        found(
            spark,
            (
                "unreadable",
                1,
                None,
                None,
                None,
                "no broker leads it: 1 acknowledged records unseen",
            ),
        ),
    )


def test_standings_accept_compaction_only_of_replaced_records(spark: SparkSession) -> None:
    acknowledged = acked(
        spark,
        (0, 0, "a", 0, "k", "old"),
        (0, 1, "a", 1, "gone", "v"),
        (0, 2, "a", 2, None, "v"),
        (0, 3, "a", 3, "deleted", "v"),
        (0, 4, "a", 4, "deleted", None),
        (0, 5, "a", 5, "k", "new"),
    )
    records = held(spark, (0, 5, "k", "new"), (0, 6, "other", "v"))
    got = audit.standings(acknowledged, records, ranges(spark, (0, 0, 7, True)), has_compacted=True)
    assert {row.offset: row.standing for row in got.collect()} == {
        0: "compacted",
        1: "missing",
        2: "unchecked",
        3: "compacted",
        4: "compacted",
        5: "found",
    }


def test_standings_report_contradicting_acknowledgements(spark: SparkSession) -> None:
    acknowledged = acked(
        spark,
        (0, 0, "a", 0, None, "v"),
        (0, 1, "a", 1, None, "w"),
        (0, 1, "b", 0, None, "x"),
        (0, 1, "b", 0, None, "x"),
        (0, 4, "a", 0, None, "v"),
        (0, 5, "a", 2, None, "y"),
        (0, 6, None, None, None, "y"),
        (0, 7, None, None, None, "y"),
    )
    assertDataFrameEqual(
        audit.acknowledged_at_one_offset(acknowledged),
        found(
            spark,
            ("missing", 0, 1, "b", 0, "record 1 of a was acknowledged at this offset as well"),
        ),
    )
    assertDataFrameEqual(
        audit.acknowledged_twice(acknowledged),
        found(spark, ("duplicate", 0, 4, "a", 0, "acknowledged at offset 0 before")),
    )
    assertDataFrameEqual(
        audit.out_of_order(acknowledged),
        found(spark, ("out_of_order", 0, 4, "a", 0, "its producer's record 1 precedes it")),
    )


def test_duplicates_are_reported_once_per_repetition(spark: SparkSession) -> None:
    records = held(
        spark,
        (0, 0, "k", "v"),
        (0, 1, "k", "v"),
        (0, 2, "k", "other"),
        (0, 3, "k", "v"),
        (0, 4, "q", "not acknowledged"),
        (0, 5, "q", "not acknowledged"),
        (1, 0, "k", "v"),
        (1, 0, "k", "v"),
    )
    acknowledged = acked(spark, (0, 1, None, None, "k", "v"), (1, 0, None, None, "k", "v"))
    assertDataFrameEqual(
        audit.repeated_content(acknowledged, records),
        found(
            spark,
            ("duplicate", 0, 1, None, None, "the same key and value stand at offset 0"),
            ("duplicate", 0, 3, None, None, "the same key and value stand at offset 0"),
        ),
    )
    assertDataFrameEqual(
        audit.read_twice(records),
        found(spark, ("duplicate", 1, 0, None, None, "it is there 2 times")),
    )


def test_offset_gaps_are_found_at_the_ends_and_in_between(spark: SparkSession) -> None:
    records = held(
        spark,
        *((0, offset, None, "v") for offset in (3, 4, 7, 9, 10, 12, 13, 14, 15, 17, 18)),
        (2, 0, None, "v"),
        (3, 5, None, "v"),
    )
    logs = ranges(
        spark,
        (0, 2, 22, False),
        (1, 5, 5, False),
        (2, 0, 9, True),
        (3, 4, 6, False),
        (4, None, None, False),
    )
    control = spark.createDataFrame([(T, 0, 16)], "topic string, partition int, offset long")
    got = audit.offset_gaps(records, logs, control, stretch=10)
    assertDataFrameEqual(
        got,
        found(
            spark,
            ("offset_gap", 0, 2, None, None, "no record from here to 2 (1 offsets)"),
            ("offset_gap", 0, 5, None, None, "no record from here to 6 (2 offsets)"),
            ("offset_gap", 0, 8, None, None, "no record from here to 8 (1 offsets)"),
            ("offset_gap", 0, 11, None, None, "no record from here to 11 (1 offsets)"),
            ("offset_gap", 0, 19, None, None, "no record from here to 19 (1 offsets)"),
            ("offset_gap", 0, 20, None, None, "no record from here to 21 (2 offsets)"),
            ("offset_gap", 3, 4, None, None, "no record from here to 4 (1 offsets)"),
        ),
    )
