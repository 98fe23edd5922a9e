"""Durations of options."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.durations import duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1 second", 1),
        ("90s", 90),
        (" 2 Minutes ", 120),
        ("5 min", 300),
        ("5 mins", 300),
        ("1 h", 3600),
        ("7 days", 604_800),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert duration_s(text, "--window") == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "minute", "1.5 hours", "-1 day", "0 s", "1 month", "1 s 2 s", "99999999 days"]
)
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--window"):
        duration_s(text, "--window")
