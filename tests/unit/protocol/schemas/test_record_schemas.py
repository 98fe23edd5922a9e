"""Schemas of internal records; test_group_records tests their encoding."""

from __future__ import annotations

import pytest

from kraftjbod.protocol.kafka_codec import decode_body, encode_body, message
from kraftjbod.protocol.schemas.kafka_schema import load_message
from kraftjbod.protocol.schemas.record_schemas import RECORD_SCHEMAS


def test_each_record_key_schema_has_a_value_schema() -> None:
    """The decoder looks up the value schema by the name of the key schema."""
    keys = {name for name in RECORD_SCHEMAS if name.endswith("Key")}
    assert {name.removesuffix("Key") + "Value" for name in keys} <= RECORD_SCHEMAS.keys()


@pytest.mark.parametrize("name", RECORD_SCHEMAS)
def test_blank_record_round_trips_in_every_version_of_its_schema(name: str) -> None:
    versions = load_message(name).versions
    for version in range(versions.first, versions.last + 1):
        blank = message(name)()
        encoded = memoryview(encode_body(version, blank))
        assert decode_body(name, version, encoded, 0, max_elements=9) == blank
