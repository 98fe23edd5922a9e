"""Types of metadata records."""

from __future__ import annotations

from typing import get_args

from kraftjbod.metadata.records import RECORD_TYPES, Record


def test_record_types_are_unique_and_complete() -> None:
    assert len({kind.TYPE for kind in RECORD_TYPES}) == len(RECORD_TYPES)
    assert set(RECORD_TYPES) == set(get_args(Record))
