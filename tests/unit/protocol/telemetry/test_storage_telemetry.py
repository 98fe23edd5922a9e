"""Telemetry of brokers about their disks, in code and in docs/storage-telemetry.md."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Final

import pytest

from kraftjbod.core.config import BrokerConfig
from kraftjbod.protocol.telemetry.storage_telemetry import (
    LogDirSample,
    Origin,
    ReplicaSample,
    encode,
    record_key,
)
from tests.checkout import ROOT

MANUAL: Final = (ROOT / "docs/storage-telemetry.md").read_text()
TYPES: Final = {
    "string": "str",
    "string or null": "str | None",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "list of integers": "tuple[int, ...]",
}
ORIGIN: Final = Origin(cluster_id="c", broker_id=7, rack=None, incarnation="i", time_ms=5)
LOG_DIR: Final = LogDirSample(
    directory_id="d", path="/d1", state="offline", is_cordoned=False, since_ms=3
)
REPLICA: Final = ReplicaSample(
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


def rows(section: str) -> list[tuple[str, str]]:
    """Return the fields and types of the table under a heading."""
    part = MANUAL.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([a-z_]+)` \| ([a-z ]+) \| .+ \|$", part, re.MULTILINE)


@pytest.mark.parametrize(
    ("section", "kind"),
    [("Every record", Origin), ("`log_dir`", LogDirSample), ("`replica`", ReplicaSample)],
)
def test_storage_telemetry_manual_lists_exactly_the_fields(section: str, kind: type) -> None:
    found = [(name, TYPES[type_]) for name, type_ in rows(section)]
    if kind is Origin:
        assert found[:2] == [("schema", "int"), ("kind", "str")]
        found = found[2:]
    assert found == [(field.name, field.type) for field in fields(kind)]


def test_storage_telemetry_manual_lists_every_key_with_its_default() -> None:
    found = re.findall(r"^\| `(storage\.telemetry\.[a-z.]+)` \| (\w+) \|", MANUAL, re.MULTILINE)
    keys = set(filter(lambda key: key.startswith("storage.telemetry."), BrokerConfig.keys()))
    assert {key for key, _ in found} == keys
    for key, default in found:
        field = BrokerConfig.model_fields[key.replace(".", "_")]
        assert json.loads(default) == field.default, key


def test_storage_telemetry_record_is_one_json_object() -> None:
    assert json.loads(encode(ORIGIN, LOG_DIR)) == {
        "schema": 1,
        "kind": "log_dir",
        "cluster_id": "c",
        "broker_id": 7,
        "rack": None,
        "incarnation": "i",
        "time_ms": 5,
        "directory_id": "d",
        "path": "/d1",
        "state": "offline",
        "is_cordoned": False,
        "since_ms": 3,
        "total_bytes": 0,
        "free_bytes": 0,
        "replica_bytes": 0,
        "replicas": 0,
        "growth_bytes_per_s": 0.0,
        "log_growth_bytes_per_s": 0.0,
        "appended_bytes_total": 0,
        "fetched_bytes_total": 0,
        "io_total": 0,
        "io_errors_total": 0,
        "io_bounds_ms": [],
        "io_counts": [],
        "latency_ms": 0.0,
        "is_slow": False,
        "queued_assignments": 0,
        "moves_in": 0,
        "moves_out": 0,
        "moves_remaining_bytes": 0,
    }
    replica = json.loads(encode(ORIGIN, REPLICA))
    assert (replica["kind"], replica["broker_id"], replica["brokers"]) == ("replica", 7, [1, 2])


def test_encode_keeps_unusual_characters_in_paths() -> None:
    odd = LogDirSample(
        directory_id="d", path='/d "é\n', state="online", is_cordoned=False, since_ms=0
    )
    assert json.loads(encode(ORIGIN, odd))["path"] == '/d "é\n'


def test_record_key_names_broker_and_directory_or_replica() -> None:
    assert record_key(ORIGIN, LOG_DIR) == b"7:d"
    assert record_key(ORIGIN, REPLICA) == b"7:t-3"
