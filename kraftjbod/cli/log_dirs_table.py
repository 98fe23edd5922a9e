"""WIRE. Prints log directories as a table, and lines below it.

A directory has one line if the line fits the terminal, or if the output is a file or a pipe. On a
narrow terminal the same values are stacked in fewer columns, so that none is missing with 80
columns.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final

from kraftjbod.cli.clients.replica_admin import LogDirDescription
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.text.size_text import size_text

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

LogDirs = Mapping[int, Sequence[LogDirDescription]]
"""Descriptions by broker."""

_FACTS: Final = (
    *("broker", "log directory", "directory id", "state", "replicas", "size", "used", "free"),
    *("free %", "growth", "disk growth", "full in", "latency", "last scrub", "reason"),
)
#: Columns that are stacked on a narrow terminal.
_STACKS: Final = (
    ("broker", "state"),
    ("log directory", "directory id", "reason"),
    ("replicas", "size"),
    ("used", "free", "free %"),
    ("growth", "disk growth", "full in"),
    ("latency", "last scrub"),
)
#: Columns that are left-aligned and wrapped.
_WORDY: Final = frozenset({"log directory", "directory id", "reason", "state", "broker"})
#: Columns that are wrapped on a narrow terminal.
_WRAPPED: Final = frozenset({"log directory", "state", "last scrub"})
_ID_WIDTH: Final = 22
_STATE_WIDTH: Final = 10
_DATE_WIDTH: Final = 10
_WIDE: Final = 100
_LEAST_WIDTH: Final = 80
_WIDEST: Final = 10_000
_HEIGHT: Final = 1_000
_DAY_S: Final = 86_400
_DURATIONS: Final = ((365 * _DAY_S, "y"), (_DAY_S, "d"), (3600, "h"), (60, "min"), (1, "s"))


def print_table(found: LogDirs, topics: Sequence[str]) -> None:
    """Print the table on standard output.

    :param topics: count only replicas of these topics; empty for all.
    """
    from rich.console import Console

    rows = [
        _facts(broker, log_dir, topics)
        for broker, log_dirs in found.items()
        for log_dir in log_dirs
    ]
    shown = [name for name in _FACTS if any(row[name] for row in rows)]
    table = _table(rows, [(name,) for name in shown])
    needed = Console(width=_WIDEST, height=_HEIGHT).measure(table).maximum
    width = get_terminal_size().columns if sys.stdout.isatty() else needed
    if needed > width:
        stacks = (tuple(name for name in stack if name in shown) for stack in _STACKS)
        needed = max(_LEAST_WIDTH, width)
        table = _table(rows, [stack for stack in stacks if stack], folds_at=needed)
    # rich uses the width only if the height is given too.
    Console(width=needed, height=_HEIGHT).print(table)


def _table(
    rows: Sequence[Mapping[str, Text]], stacks: Sequence[tuple[str, ...]], *, folds_at: int = 0
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    folds = bool(folds_at)
    most = {"state": _STATE_WIDTH, "last scrub": _DATE_WIDTH if folds_at < _WIDE else None}
    table = Table(
        box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 0 if folds else 1, 0, 0)
    )
    for stack in stacks:
        is_place = "log directory" in stack
        table.add_column(
            "\n".join(stack),
            justify="left" if _WORDY.issuperset(stack) else "right",
            overflow="fold",
            no_wrap=not (folds and _WRAPPED.intersection(stack)),
            min_width=_ID_WIDTH if folds and is_place else None,
            max_width=most.get(stack[-1]) if folds else None,
        )
    for row in rows:
        cells = (Text("\n").join(row[name] for name in stack if row[name]) for stack in stacks)
        table.add_row(*cells, end_section=False)
    return table


def _facts(broker: int, log_dir: LogDirDescription, topics: Sequence[str]) -> dict[str, Text]:
    """Return every value of a directory by its heading; empty if it is not reported."""
    from rich.text import Text

    replicas = [r for r in log_dir.replicas if not topics or r.topic in topics]
    held, size = str(len(replicas)), size_text(sum(replica.size_bytes for replica in replicas))
    if log_dir.error_code != ErrorCode.NONE:
        is_known = log_dir.assigned_replicas is not None and not topics
        held, size = str(log_dir.assigned_replicas) if is_known else "", ""
    used, free, free_percent = _space(log_dir)
    return {
        "broker": Text(str(broker)),
        "state": _state(log_dir),
        "log directory": Text(log_dir.path),
        "directory id": Text(str(log_dir.directory_id or "")),
        "reason": Text(log_dir.reason or ""),
        "replicas": Text(held),
        "size": Text(size),
        "used": Text(used),
        "free": Text(free),
        "free %": Text(free_percent),
        "growth": Text(_rate(log_dir.growth_bytes_per_second)),
        "disk growth": Text(_rate(log_dir.disk_growth_bytes_per_second)),
        "full in": Text(_duration(log_dir.seconds_until_full)),
        "latency": _latency(log_dir),
        "last scrub": _last_scrub(log_dir),
    }


def _state(log_dir: LogDirDescription) -> Text:
    from rich.text import Text

    is_alive = log_dir.error_code == ErrorCode.NONE
    state = log_dir.state or ("online" if is_alive else "offline")
    text = Text(state, style="" if state == "online" else "yellow" if is_alive else "red")
    return text.append(", cordoned", style="") if log_dir.is_cordoned else text


def _space(log_dir: LogDirDescription) -> tuple[str, str, str]:
    """Return used space, free space, and free percentage of the disk; empty texts if unknown."""
    total_bytes, free_bytes = log_dir.total_bytes, log_dir.usable_bytes
    if total_bytes <= 0 or free_bytes < 0:
        return "", "", ""
    used = size_text(total_bytes - free_bytes)
    return used, size_text(free_bytes), f"{100 * free_bytes / total_bytes:.0f} %"


def _rate(bytes_per_second: int | None) -> str:
    if bytes_per_second is None:
        return ""
    return f"{'-' if bytes_per_second < 0 else ''}{size_text(abs(bytes_per_second))}/s"


def _duration(seconds: int | None) -> str:
    if seconds is None:
        return ""
    unit_s, unit = next((of for of in _DURATIONS if seconds >= of[0]), _DURATIONS[-1])
    return f"{seconds / unit_s:.0f} {unit}"


def _latency(log_dir: LogDirDescription) -> Text:
    from rich.text import Text

    if log_dir.latency_ms is None:
        return Text()
    text = f"{log_dir.latency_ms:.1f} ms"
    return Text(f"{text}, slow", style="yellow") if log_dir.is_slow else Text(text)


def _last_scrub(log_dir: LogDirDescription) -> Text:
    """Return the end of the last scrub in UTC, and the number of damaged ranges that it found."""
    from rich.text import Text

    if log_dir.scrub_errors is None:
        return Text()
    when = "never"
    if log_dir.last_scrub_ms is not None:
        when = f"{datetime.fromtimestamp(log_dir.last_scrub_ms / 1000, UTC):%Y-%m-%d %H:%M}"
    text = Text(when)
    if log_dir.scrub_errors:
        text.append(f", {log_dir.scrub_errors} damaged", style="red")
    return text


# --- below the table -----------------------------------------------------------------------------


def move_lines(found: LogDirs, topics: list[str]) -> list[str]:
    """Return one line for each replica that moves to another directory of its broker.

    :param topics: only replicas of these topics; empty for all.
    """
    lines = []
    for broker, log_dirs in found.items():
        held = [(log_dir, replica) for log_dir in log_dirs for replica in log_dir.replicas]
        current = {
            (replica.topic, replica.partition): (log_dir.path, replica.size_bytes)
            for log_dir, replica in held
            if not replica.is_future
        }
        for log_dir, replica in held:
            if not replica.is_future or (topics and replica.topic not in topics):
                continue
            source, size_bytes = current.get((replica.topic, replica.partition), ("?", 0))
            percent = min(100, 100 * replica.size_bytes // size_bytes) if size_bytes else 0
            lines.append(
                f"{replica.topic}-{replica.partition} on broker {broker}: {source} -> "
                f"{log_dir.path}, {percent} %, {size_text(replica.size_bytes)} of "
                f"{size_text(size_bytes)}, {replica.offset_lag} records behind"
            )
    return lines


def lost_lines(lost: dict[int, list[str]]) -> list[str]:
    """Return one line for each lost replica that was the last one in sync.

    :param lost: ``topic-partition`` of such replicas, by broker.
    """
    return [
        f"{replica} on broker {broker}: LOST, the last in-sync copy is on none of its disks; bring "
        f"its disk back, delete the topic, or allow it unclean elections"
        for broker, replicas in lost.items()
        for replica in replicas
    ]
