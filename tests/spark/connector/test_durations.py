"""Durations of options: one parser, whatever the option."""

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
def test_durations(text: str, millis: int) -> None:
    assert duration_ms(text, "--window") == millis
    if millis >= 1000:
        assert duration_s(text, "--window") * 1000 == millis


@pytest.mark.parametrize(
    "text",
    ["", "5", "minute", "1.5 hours", "-1 day", "1 month", "1 s 2 s", "5 mss", "99999999 days"],
)
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--window"):
        duration_ms(text, "--window")


@pytest.mark.parametrize("text", ["0 s", "999 ms", "1500 ms"])
def test_what_counts_in_seconds_takes_whole_ones(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--window .*expected whole seconds"):
        duration_s(text, "--window")


def test_a_number_alone_may_have_a_unit() -> None:
    assert duration_ms("250", "maxTriggerDelay", bare_unit="ms") == 250
