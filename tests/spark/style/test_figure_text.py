"""Figures in words."""

from __future__ import annotations

import pytest

from kraftjbod.spark.style import figure_text as text

DAY = 86_400


@pytest.mark.parametrize(
    ("epoch_s", "shown"),
    [
        (1_795_219_200.0, "2026-11-21 00:00:00"),
        (0, "1970-01-01 00:00:00"),
        (None, "—"),
        (-5, "—"),
        (1e18, "—"),
        (float("nan"), "—"),
    ],
)
def test_time_text_formats_times_and_unknown_values(epoch_s: float | None, shown: str) -> None:
    assert text.time_text(epoch_s) == shown


def test_minute_text_formats_minutes() -> None:
    assert [text.minute_text(at) for at in (1_795_219_260.0, None)] == ["2026-11-21 00:01", "—"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3 * DAY + 4 * 3600 + 59, "3 d 4 h"),
        (400 * DAY, "1 y 35 d"),
        (-3, "0 s"),
        (3650 * DAY, "more than 10 y"),
        (float("inf"), "more than 10 y"),
        (None, "—"),
    ],
)
def test_duration_text_formats_durations(seconds: float | None, shown: str) -> None:
    assert text.duration_text(seconds) == shown


def test_bytes_and_rate_text_choose_units() -> None:
    assert [text.bytes_text(size) for size in (1536, -1536, 0, None)] == [
        "1.5 KiB",
        "-1.5 KiB",
        "0 B",
        "—",
    ]
    # A byte per second is shown per day.
    assert [text.rate_text(rate) for rate in (2048.0, 1.0, -2048, 0, None)] == [
        "2.0 KiB/s",
        "84.4 KiB/d",
        "-2.0 KiB/s",
        "0 B/s",
        "—",
    ]


def test_share_ms_and_count_text_format_values() -> None:
    assert [text.share_text(*pair) for pair in ((1, 3), (0, 3), (1, 0), (None, 3))] == [
        "33.3 %",
        "0.0 %",
        "—",
        "—",
    ]
    assert [text.ms_text(ms) for ms in (0.25, 99.9, 250, 1500, None)] == [
        "0.2 ms",
        "99.9 ms",
        "250 ms",
        "1.50 s",
        "—",
    ]
    assert text.count_text(1, "directory", "directories") == "1 directory"
    assert text.count_text(1200, "directory", "directories") == "1,200 directories"
    assert [text.count_text(n, "row") for n in (0, 1, None)] == ["0 rows", "1 row", "—"]
    assert text.count_text(12_345) == "12,345"
