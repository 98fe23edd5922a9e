"""Rules for the schemas of all tables, so that frames of several tables can be joined."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import pytest
from pyspark.sql.types import BooleanType, StructType

from kraftjbod.protocol.telemetry.group_telemetry import LagSample
from kraftjbod.protocol.telemetry.storage_telemetry import LogDirSample, Origin, ReplicaSample
from kraftjbod.spark.tables import schemas as tables

TABLES = {name: value for name, value in vars(tables).items() if name.isupper()}
SCHEMAS = {name: value for name, value in TABLES.items() if isinstance(value, StructType)}
# A record's bytes, a header's name, a measured figure: names that several tables need.
_MANY_MEANINGS = {"key", "value"}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_schema_has_only_nullable_and_unique_columns(schema: StructType) -> None:
    """Spark reads every column of a file as nullable, and refuses duplicate names."""
    assert [field.name for field in schema.fields if not field.nullable] == []
    assert [name for name, count in Counter(schema.names).items() if count > 1] == []


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_schema_names_of_flags_begin_with_is(schema: StructType) -> None:
    for field in schema.fields:
        assert isinstance(field.dataType, BooleanType) == field.name.startswith("is_"), field.name


def test_schema_columns_of_one_name_have_one_type() -> None:
    types: dict[str, set[str]] = {}
    for schema in SCHEMAS.values():
        for field in schema.fields:
            types.setdefault(field.name, set()).add(field.dataType.simpleString())
    several = {name: found for name, found in types.items() if len(found) > 1}
    assert {name: several[name] for name in several.keys() - _MANY_MEANINGS} == {}


def test_sample_schemas_equal_the_fields_of_the_protocol() -> None:
    renamed = {"time_ms": "time", "since_ms": "since", "committed_ms": "committed"}

    def columns(kind: type) -> list[str]:
        return [renamed.get(f.name, f.name) for f in [*fields(Origin), *fields(kind)]]

    assert tables.LOG_DIR_SAMPLES.names == columns(LogDirSample)
    assert tables.REPLICA_SAMPLES.names == columns(ReplicaSample)
    assert tables.GROUP_LAG.names == columns(LagSample)
