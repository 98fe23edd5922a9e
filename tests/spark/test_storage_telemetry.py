"""The telemetry's words, and Spark's schemas of them: the same fields in the same order."""

from __future__ import annotations

import json
from dataclasses import fields

from kraftjbod.protocol.storage_telemetry import (
    LogDirSample,
    Origin,
    ReplicaSample,
    encode,
    record_key,
)
from kraftjbod.spark import tables

ORIGIN = Origin(cluster_id="c", broker_id=1, rack=None, incarnation="i", time_ms=5)
REPLICA = ReplicaSample(
    directory_id="d",
    path="/d1",
    topic="t",
    topic_id="tid",
    partition=3,
    is_future=False,
    is_leader=True,
    size_bytes=10,
    log_start_offset=0,
    log_end_offset=7,
    appended_bytes_total=10,
    fetched_bytes_total=20,
    brokers=(1, 2),
)


def test_schemas_follow_the_protocol() -> None:
    renamed = {"time_ms": "time", "since_ms": "since"}

    def columns(kind: type) -> list[str]:
        return [renamed.get(f.name, f.name) for f in [*fields(Origin), *fields(kind)]]

    assert tables.LOG_DIR_SAMPLES.names == columns(LogDirSample)
    assert tables.REPLICA_SAMPLES.names == columns(ReplicaSample)


def test_a_record_is_one_json_object_with_its_version() -> None:
    document = json.loads(encode(ORIGIN, REPLICA))
    assert document["schema"] == 1
    assert document["kind"] == "replica"
    assert document["brokers"] == [1, 2]
    assert record_key(ORIGIN, REPLICA) == b"1:t-3"
