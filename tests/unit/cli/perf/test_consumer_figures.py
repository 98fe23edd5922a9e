"""Columns of Kafka's consumer-perf-test, which scripts parse."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kraftjbod.cli.perf.consumer_figures import (
    DATE_FORMAT,
    Read,
    header,
    interval_line,
    simple_date_format,
    total_line,
)
from kraftjbod.core.errors import ConfigError

MB = 1024 * 1024
MOMENT = datetime(2026, 3, 4, 5, 6, 7, 89_000, tzinfo=UTC)


def test_consumer_figures_have_kafkas_columns() -> None:
    assert header(is_detailed=False) == (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
        "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
    )
    read = Read(4 * MB, 100)
    line = total_line(read, times=("a", "b"), elapsed_ms=4_000, join_ms=3_000)
    assert line == "a, b, 4.0000, 1.0000, 100, 25.0000, 3000, 1000, 4.0000, 100.0000"
    line = interval_line(read, Read(MB, 70), at="a", elapsed_ms=1_500, join_ms=0)
    assert line == "a, 0, 4.0000, 2.0000, 100, 20.0000, 0, 1500, 2.0000, 20.0000"
    # A member that was joining during the whole interval has a fetch time of zero.
    line = interval_line(read, read, at="a", elapsed_ms=10, join_ms=10)
    assert line.endswith("100, 0.0000, 10, 0, 0.0000, 0.0000")


def test_simple_date_format_formats_times_like_java() -> None:
    assert simple_date_format(DATE_FORMAT)(MOMENT) == "2026-03-04 05:06:07:089"
    assert simple_date_format("yy'at'HH''%d'o''clock'")(MOMENT) == "26at05'%4o'clock".replace(
        "%4", "%04"
    )
    for wrong in ("GGG", "'open"):
        with pytest.raises(ConfigError):
            simple_date_format(wrong)
