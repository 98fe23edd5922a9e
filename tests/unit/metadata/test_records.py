"""Metadata records."""

from __future__ import annotations

from typing import get_args

from kraftjbod.metadata.records import RECORD_TYPES, Record


def test_each_record_has_a_type_of_its_own() -> None:
    assert len({kind.TYPE for kind in RECORD_TYPES}) == len(RECORD_TYPES)
    assert set(RECORD_TYPES) == set(get_args(Record))
