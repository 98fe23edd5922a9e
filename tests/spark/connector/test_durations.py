"""Durations in options: one parser for all options."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.connector.durations import duration_ms, duration_s


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("0 s", 0),
        ("20ms", 20),
        ("1 second", 1000),
        ("90s", 90_000),
        (" 2 Minutes ", 120_000),
        ("5 min", 300_000),
        ("5 mins", 300_000),
        ("1 h", 3_600_000),
        ("7 days", 604_800_000),
    ],
)
def test_duration_ms_parses_numbers_with_units(text: str, millis: int) -> None:
    assert duration_ms(text, "--window") == millis
    if millis >= 1000:
        assert duration_s(text, "--window") * 1000 == millis


@pytest.mark.parametrize(
    "text",
    ["", "5", "minute", "1.5 hours", "-1 day", "1 month", "1 s 2 s", "5 mss", "99999999 days"],
)
def test_duration_ms_of_invalid_text_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="--window"):
        duration_ms(text, "--window")


@pytest.mark.parametrize("text", ["0 s", "999 ms", "1500 ms"])
def test_duration_s_of_fractional_seconds_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--window .*expected whole seconds"):
        duration_s(text, "--window")


def test_duration_ms_with_bare_unit_accepts_a_number_without_unit() -> None:
    assert duration_ms("250", "maxTriggerDelay", bare_unit="ms") == 250
