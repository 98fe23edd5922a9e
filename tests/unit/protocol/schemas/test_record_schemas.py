"""Schemas of records are read as those of messages are; what they encode to: test_group_records."""

from __future__ import annotations

import pytest

from kraftjbod.protocol.kafka_codec import decode_body, encode_body, message
from kraftjbod.protocol.schemas.kafka_schema import load_message
from kraftjbod.protocol.schemas.record_schemas import RECORD_SCHEMAS


def test_each_key_has_a_value() -> None:
    """What decodes one looks the other up by its name."""
    keys = {name for name in RECORD_SCHEMAS if name.endswith("Key")}
    assert {name.removesuffix("Key") + "Value" for name in keys} <= RECORD_SCHEMAS.keys()


@pytest.mark.parametrize("name", RECORD_SCHEMAS)
def test_every_version_comes_back_as_it_was(name: str) -> None:
    versions = load_message(name).versions
    for version in range(versions.first, versions.last + 1):
        blank = message(name)()
        encoded = memoryview(encode_body(version, blank))
        assert decode_body(name, version, encoded, 0, max_elements=9) == blank
