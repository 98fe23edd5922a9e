"""The table of log directories at every width, and the lines below it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from click import unstyle

from kraftjbod.cli.clients.replica_admin import LogDirDescription, ReplicaSize
from kraftjbod.cli.log_dirs_table import move_lines, print_table
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import DirectoryId

ID = str(DirectoryId(b"x" * 16))
PATH = "/srv/kraftjbod/run/broker-1/disk-[1]"
GIB = 1 << 30
FACTS = (
    *(PATH, ID, "saturated", "cordoned", "8.0 GiB", "12.0 GiB", "60 %", "1.9 MiB/s", "-2.0 MiB/s"),
    *("3 h", "61.2 ms", "slow", "2023-11-14", "22:13", "2 damaged", "no space left: [Errno 28]"),
    *("offline", "Input/output error: [Errno 5] in append of orders-3", "24"),
)
# The words of a heading may be folded into different lines of a cell.
HEADINGS = (
    *("broker", "state", "log directory", "directory id", "reason", "replicas", "size", "used"),
    *("free", "free %", "growth", "disk growth", "full in", "latency", "last scrub"),
)


def described(path: str, **reported: Any) -> LogDirDescription:
    least = {"error_code": 0, "total_bytes": -1, "usable_bytes": -1, "is_cordoned": False}
    return LogDirDescription(path=path, replicas=(), **least | reported)


FULL = described(
    PATH,
    total_bytes=20 * GIB,
    usable_bytes=12 * GIB,
    is_cordoned=True,
    directory_id=DirectoryId(b"x" * 16),
    state="saturated",
    reason="no space left: [Errno 28]",
    growth_bytes_per_second=2_000_000,
    disk_growth_bytes_per_second=-2_048_000,
    seconds_until_full=12_345,
    latency_ms=61.25,
    is_slow=True,
    last_scrub_ms=1_700_000_000_000,
    scrub_errors=2,
)
DEAD = described(
    "/d2",
    error_code=ErrorCode.KAFKA_STORAGE_ERROR,
    state="offline",
    reason="Input/output error: [Errno 5] in append of orders-3",
    assigned_replicas=24,
)


@pytest.mark.parametrize("columns", [80, 100, 120, 400])
def test_print_table_shows_every_value_at_any_width(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table({1: [FULL, DEAD]}, [])
    lines = unstyle(capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= columns
    # A cell is all text between the same two column gaps; folded lines are joined.
    rule = next(number for number, line in enumerate(lines) if set(line.strip()) <= {"─"})
    cells = _columns(lines[:rule]) + _columns(lines[rule + 1 :])
    reported = ["".join(cell.split()) for cell in cells]
    missing = [
        fact
        for fact in FACTS + HEADINGS
        if not any("".join(fact.split()) in cell for cell in reported)
    ]
    assert missing == []


def _columns(lines: list[str]) -> list[str]:
    """Return the text of each column, split at gaps that extend through all lines."""
    width = max(map(len, lines))
    padded = [line.ljust(width) for line in lines]
    gaps = [all(line[at] == " " for line in padded) for at in range(width)]
    columns, begin = [], 0
    for at in range(width + 1):
        if at == width or gaps[at]:
            columns.append("\n".join(line[begin:at] for line in padded))
            begin = at
    # In a wide table, all words of a cell stand in one line, so that each line counts as a cell as
    # well.
    return [*columns, *lines]


def test_print_table_to_pipe_writes_one_line_per_directory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table({1: [FULL], 2: [DEAD]}, [])
    _, _, full, dead = capsys.readouterr().out.splitlines()
    assert full.split()[:5] == ["1", PATH, ID, "saturated,", "cordoned"]
    assert dead.split()[:4] == ["2", "/d2", "offline", "24"]
    assert dead.rstrip().endswith("in append of orders-3")


@pytest.mark.parametrize(
    ("reported", "cells"),
    [
        ({}, ["online", "0", "0 B"]),
        ({"scrub_errors": 0}, ["online", "0", "0 B", "never"]),
        (
            {"growth_bytes_per_second": 0, "latency_ms": 0.0},
            ["online", "0", "0 B", "0 B/s", "0.0 ms"],
        ),
        ({"error_code": ErrorCode.KAFKA_STORAGE_ERROR}, ["offline"]),
    ],
)
def test_print_table_leaves_unreported_values_blank(
    reported: dict[str, Any], cells: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka's brokers do not report them."""
    print_table({1: [described("/d1", **reported)]}, [])
    row = capsys.readouterr().out.splitlines()[-1]
    assert [cell.strip() for cell in row.split("  ") if cell.strip()] == ["1", "/d1", *cells]


def test_move_lines_show_progress_of_future_replicas() -> None:
    def log_dir(path: str, *replicas: ReplicaSize) -> LogDirDescription:
        return replace(described(path), replicas=replicas)

    def replica(topic: str, size: int, lag: int = 0, *, is_future: bool = False) -> ReplicaSize:
        return ReplicaSize(
            topic=topic, partition=0, size_bytes=size, offset_lag=lag, is_future=is_future
        )

    found = {
        1: [
            log_dir("/d1", replica("foo", 4096), replica("bar", 0)),
            log_dir(
                "/d2",
                replica("foo", 1024, 30, is_future=True),
                replica("bar", 0, is_future=True),
            ),
        ]
    }
    foo = "foo-0 on broker 1: /d1 -> /d2, 25 %, 1.0 KiB of 4.0 KiB, 30 records behind"
    bar = "bar-0 on broker 1: /d1 -> /d2, 0 %, 0 B of 0 B, 0 records behind"
    assert move_lines(found, []) == [foo, bar]
    assert move_lines(found, ["foo"]) == [foo]
