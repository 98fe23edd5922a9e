"""Each record of telemetry is either a sample or a reject."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from kraftjbod.protocol.telemetry.storage_telemetry import encode
from kraftjbod.spark.tables.schemas import (
    RECORD,
    TELEMETRY_REJECTS,
)
from kraftjbod.spark.telemetry import telemetry_frames
from tests.spark.samples import START, log_dir, log_dir_frame, origin, replica, replica_frame


def records(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    """Return records as the source provides them."""
    rows = [
        (b"key", value, "__storage_telemetry", 0, offset, START, 0)
        for offset, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, RECORD)


def changed(**changes: Any) -> bytes:
    """Return a valid directory record with changed fields; None removes a field."""
    document = {**json.loads(encode(origin(), log_dir())), **changes}
    return json.dumps({key: value for key, value in document.items() if value is not None}).encode()


def test_samples_are_separated_by_kind_and_equal_the_sent_ones(spark: SparkSession) -> None:
    first, second = (origin(0.5), log_dir(appended_bytes_total=7)), (origin(1), replica("t", 3))
    source = records(spark, [encode(*first), encode(*second)])
    dirs, replicas = (
        telemetry_frames.log_dir_samples(source),
        telemetry_frames.replica_samples(source),
    )
    assertDataFrameEqual(dirs, log_dir_frame(spark, [first]))
    assertDataFrameEqual(replicas, replica_frame(spark, [second]))
    assertDataFrameEqual(
        telemetry_frames.rejects(source), spark.createDataFrame([], TELEMETRY_REJECTS)
    )


def test_rejects_state_the_reason(spark: SparkSession) -> None:
    reasons = {
        None: "no value",
        b"": "no JSON object with fields of the right types",
        b"{broken": "no JSON object with fields of the right types",
        b"[1, 2]": "no JSON object with fields of the right types",
        b"\xff\xfe": "no JSON object with fields of the right types",
        changed(total_bytes="many"): "no JSON object with fields of the right types",
        changed(schema=2): "schema 2 is newer than 1",
        changed(schema=2, path=5): "schema 2 is newer than 1",
        b"{}": "no schema",
        changed(kind=None): "no kind",
        changed(kind="weather"): "unknown kind weather",
        changed(directory_id=None): "no directory_id",
        changed(state=None): "no state",
        changed(kind="replica"): "no topic",
        changed(time_ms=10**18): "time_ms is no time",
        changed(time_ms=-1): "time_ms is no time",
    }
    source = records(spark, list(reasons))
    assertDataFrameEqual(
        telemetry_frames.rejects(source),
        spark.createDataFrame(
            [
                ("__storage_telemetry", 0, offset, START, b"key", value, reason)
                for offset, (value, reason) in enumerate(reasons.items())
            ],
            TELEMETRY_REJECTS,
        ),
    )
    assert telemetry_frames.log_dir_samples(source).isEmpty()
    assert telemetry_frames.replica_samples(source).isEmpty()


def test_samples_with_unknown_fields_or_older_schemas_are_accepted(spark: SparkSession) -> None:
    source = records(
        spark,
        [
            changed(schema=0),
            changed(humidity=[1, {"of": "air"}]),
            changed(rack=None),
            changed(moves_in=None),
            changed(since_ms=10**18),
        ],
    )
    assert telemetry_frames.rejects(source).isEmpty()
    dirs = telemetry_frames.log_dir_samples(source)
    rows = dirs.select("rack", "moves_in", "since").collect()
    assert [tuple(row) for row in rows[3:]] == [(None, None, rows[0]["since"]), (None, 0, None)]
