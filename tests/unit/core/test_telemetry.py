"""Structured events and metrics."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from kraftjbod.core.telemetry import (
    LevelSwitch,
    Metrics,
    configure,
    get_logger,
    set_level,
    shortened,
)


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_events_are_json_lines_with_their_context() -> None:
    out = io.StringIO()
    configure(json_lines=True, level="info", stream=out)
    logger = get_logger(node=1)
    logger.debug("too_quiet")
    logger.warning("something_happened", path=b"raw", count=2)
    (line,) = out.getvalue().splitlines()
    logged = json.loads(line)
    assert logged["event"] == "something_happened"
    assert (logged["node"], logged["count"], logged["level"]) == (1, 2, "warning")
    assert logged["timestamp"].endswith("Z")


def test_set_level_applies_to_existing_loggers() -> None:
    out, set_to = io.StringIO(), list[str]()
    configure(json_lines=True, level="info", stream=out)
    log = get_logger(daemon="broker")
    log.debug("suppressed")
    set_level("debug")
    log.debug("logged")
    set_level("warning")
    log.info("suppressed")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["logged"]
    switch = LevelSwitch("info", set_to.append)
    for level in ("info", "debug", "debug", "info"):
        switch.take(level)
    assert set_to == ["debug", "info"]


def test_console_events_are_readable_text() -> None:
    out = io.StringIO()
    configure(json_lines=False, level="debug", stream=out)
    get_logger().info("hello", who="you")
    assert "hello" in out.getvalue()
    assert "who=you" in out.getvalue()


def test_console_events_escape_control_characters() -> None:
    """A client id must not clear the operator's terminal or forge a line."""
    out = io.StringIO()
    configure(json_lines=False, level="debug", stream=out)
    hostile = "a\x1b[2J\r\nb\x7f\x9b1m\u202e\u2028c"
    log = get_logger(name=hostile)
    try:
        {}[hostile, lambda: None]
    except KeyError:
        log.exception("seen", names=[hostile], by={hostile: 1}, error=ValueError(hostile))
    text = out.getvalue()
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    assert "a\\x1b[2J\\r\\nb\\x7f\\x9b1m\\u202e\\u2028c" in text
    assert "Traceback" in text.splitlines()[1], "the traceback keeps its lines"


def test_metrics_snapshot_contains_counters_and_gauges() -> None:
    metrics = Metrics()
    metrics.count("b")
    metrics.count("b", 4)
    level = 7
    metrics.gauge("a", lambda: level)
    level = 8
    assert metrics.snapshot() == {"a": 8, "b": 5}


def test_metrics_snapshot_contains_only_present_dynamic_gauges() -> None:
    metrics = Metrics()
    metrics.gauge("a", lambda: 1)
    there = {"d,dir=1": 5.0}
    metrics.gauges(lambda: there)
    metrics.gauges(lambda: {"c": 2})
    assert metrics.snapshot() == {"a": 1, "c": 2, "d,dir=1": 5.0}
    there.clear()
    assert metrics.snapshot() == {"a": 1, "c": 2}


def test_shortened_limits_long_names() -> None:
    assert shortened("t") == "t"
    assert len(shortened("t" * 10**6)) < 1_000
