"""Telemetry of group coordinators, in code and in docs/group-telemetry.md."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Final

from kraftjbod.core.config import BrokerConfig
from kraftjbod.protocol.telemetry.group_telemetry import LagSample, encode, record_key
from kraftjbod.protocol.telemetry.storage_telemetry import Origin
from tests.checkout import ROOT

MANUAL: Final = (ROOT / "docs/group-telemetry.md").read_text()
TYPES: Final = {"string": "str", "integer": "int", "integer or null": "int | None"}
ORIGIN: Final = Origin(cluster_id="c", broker_id=7, rack=None, incarnation="i", time_ms=5)
LAG: Final = LagSample(
    group_id="g:1",
    group_type="classic",
    state="Empty",
    members=0,
    topic="t",
    topic_id="tid",
    partition=3,
    committed_offset=8,
    committed_ms=2,
    log_end_offset=None,
    lag=None,
)


def test_group_telemetry_manual_lists_exactly_the_fields() -> None:
    part = MANUAL.split("\n## `lag`\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z_]+)` \| ([a-z ]+) \| .+ \|$", part, re.MULTILINE)
    assert [(name, TYPES[type_]) for name, type_ in rows] == [
        (field.name, field.type) for field in fields(LagSample)
    ]


def test_group_telemetry_manual_lists_every_key_with_its_default() -> None:
    found = dict(re.findall(r"^\| `(group\.telemetry\.[a-z.]+)` \| (\w+) \|", MANUAL, re.MULTILINE))
    keys = set(filter(lambda key: key.startswith("group.telemetry."), BrokerConfig.keys()))
    assert set(found) == keys
    for key, default in found.items():
        assert json.loads(default) == BrokerConfig.model_fields[key.replace(".", "_")].default, key


def test_group_telemetry_record_is_one_json_object() -> None:
    assert json.loads(encode(ORIGIN, LAG)) == {
        **{"schema": 1, "kind": "lag", "cluster_id": "c", "broker_id": 7, "rack": None},
        **{"incarnation": "i", "time_ms": 5, "group_id": "g:1", "group_type": "classic"},
        **{"state": "Empty", "members": 0, "topic": "t", "topic_id": "tid", "partition": 3},
        **{"committed_offset": 8, "committed_ms": 2, "log_end_offset": None, "lag": None},
    }
    assert record_key(LAG) == b"g:1:t-3"
