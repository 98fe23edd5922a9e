"""Classification of records as good, late or corrupt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.testing import assertDataFrameEqual

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.ingest.ingest_frames import Judgement, ingested
from kraftjbod.spark.tables.schemas import INGESTED, RECORD_WITH_HEADERS

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HEADERS = [("h", b"1")]
SCHEMA = "id BIGINT NOT NULL, at TIMESTAMP, inner STRUCT<ms: BIGINT>, tags ARRAY<STRING>"
NO_OBJECT = (
    "the value is no JSON object of "
    "struct<id:bigint,at:timestamp,inner:struct<ms:bigint>,tags:array<string>>"
)


def records(spark: SparkSession, *values: bytes | None, at: datetime = NOON) -> DataFrame:
    rows = [(b"k", value, "t", 0, n, at, 0, HEADERS) for n, value in enumerate(values)]
    return spark.createDataFrame(rows, RECORD_WITH_HEADERS)


def judged(spark: SparkSession, *rows: tuple[Any, ...], at: datetime = NOON) -> DataFrame:
    """Rows: value, event time, reason, status."""
    made = [(b"k", v, "t", 0, n, at, 0, HEADERS, e, r, s) for n, (v, e, r, s) in enumerate(rows)]
    return spark.createDataFrame(made, INGESTED)


def test_ingested_without_schema_and_limit_marks_all_records_good(spark: SparkSession) -> None:
    values = [b"\xff", b"{", None]
    found = ingested(records(spark, *values), Judgement())
    assertDataFrameEqual(found, judged(spark, *((value, None, None, "good") for value in values)))
    assert found.schema.fieldNames() == INGESTED.fieldNames()


def test_ingested_record_outside_of_schema_is_corrupt_and_keeps_its_bytes(
    spark: SparkSession,
) -> None:
    good = [
        b'{"id": 1, "at": "2026-11-20T11:00:00Z", "tags": ["a"], "unknown": {}}',
        b' {"id": 1} \n',
        None,
    ]
    bad = {
        b'{"id": "one"}': NO_OBJECT,
        b'{"id": 1, "tags": 3}': NO_OBJECT,
        b'{"id": 1': NO_OBJECT,
        b"": NO_OBJECT,
        b"7": NO_OBJECT,
        b"[]": NO_OBJECT,
        b'"text"': NO_OBJECT,
        b"null": NO_OBJECT,
        b'{"id": 1} and more': NO_OBJECT,
        b'{"tags": ["\xff"], "id": 1}': "the value is no UTF-8 text",
        b'{"id": null}': "the value has no id",
        b"{}": "the value has no id",
    }
    schema = StructType.fromDDL(SCHEMA)
    found = ingested(records(spark, *good, *bad), Judgement(value_schema=schema))
    rows = [(value, None, None, "good") for value in good]
    rows += [(value, None, reason, "corrupt") for value, reason in bad.items()]
    assertDataFrameEqual(found, judged(spark, *rows))


@pytest.mark.parametrize(
    ("field", "template"),
    [("at", b'{"id": 1, "at": "%s"}'), ("inner.ms", b'{"id": 1, "inner": {"ms": %s}}')],
)
def test_ingested_record_long_after_its_event_time_is_late(
    spark: SparkSession, field: str, template: bytes
) -> None:
    def value(time: datetime) -> bytes:
        if field == "at":
            return template % time.isoformat().encode()
        return template % b"%d" % round(time.timestamp() * 1000)

    times = [NOON - timedelta(hours=1), NOON - timedelta(hours=1, milliseconds=1), NOON]
    judgement = Judgement(
        value_schema=StructType.fromDDL(SCHEMA), event_time=field, late_after_ms=3_600_000
    )
    values = [*map(value, times), b'{"id": 1}', b"rubbish"]
    found = ingested(records(spark, *values), judgement)
    rows = [
        (values[0], times[0], None, "good"),
        (values[1], times[1], "3600001 ms after its time, more than 3600000", "late"),
        (values[2], times[2], None, "good"),
        (values[3], None, None, "good"),
        (values[4], None, NO_OBJECT, "corrupt"),
    ]
    assertDataFrameEqual(found, judged(spark, *rows))


def test_ingested_record_without_event_time_is_late_by_its_timestamp(
    spark: SparkSession,
) -> None:
    old = ingested(records(spark, b"v"), Judgement(late_after_ms=60_000)).collect()[0]
    assert (old.status, old.event_time) == ("late", None)
    assert old.reason.endswith("ms after its time, more than 60000")
    frame = records(spark, b"v", at=datetime.now(UTC) + timedelta(minutes=1))
    assert ingested(frame, Judgement(late_after_ms=60_000)).collect()[0].status == "good"


@pytest.mark.parametrize(
    ("schema", "field", "says"),
    [
        (None, "at", "give its --value-schema"),
        ("id BIGINT, name STRING", "at", "there is no 'at' in id, name"),
        ("id BIGINT, name STRING", "name", "is expected, not string"),
        ("id BIGINT, name STRING", "name.at", "there is no 'at' in no fields"),
    ],
)
def test_judgement_requires_event_time_of_the_schema(
    spark: SparkSession, schema: str | None, field: str, says: str
) -> None:
    parsed = None if schema is None else StructType.fromDDL(schema)
    with pytest.raises(ConfigError, match=says):
        Judgement(value_schema=parsed, event_time=field)
