"""Which partition of an internal topic a group or a transactional id belongs to."""

from __future__ import annotations

import pytest

from kraftjbod.broker.internal.coordinators import java_hash


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("g", 103),
        ("hello", 99_162_322),
        ("Hello, world!", -1_880_044_555),
        # The least number has no absolute one.
        ("polygenelubricants", 0),
        ("\N{GRINNING FACE}", 1_772_899),
    ],
)
def test_a_key_s_partition_is_where_kafka_has_it(text: str, value: int) -> None:
    assert java_hash(text) == value
