"""``java_hash`` assigns keys to partitions of internal topics."""

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
        # The smallest integer has no absolute value.
        ("polygenelubricants", 0),
        ("\N{GRINNING FACE}", 1_772_899),
    ],
)
def test_java_hash_equals_kafkas_partitioning(text: str, value: int) -> None:
    assert java_hash(text) == value
