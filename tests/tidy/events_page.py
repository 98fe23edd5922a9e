"""Generates docs/events.md: the events that daemons and tools log, found in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple

from tests.tidy.event_meanings import MEANINGS
from tests.tidy.sources import SourceFile, read_sources

_HEAD: Final = """# Events

`make docs` writes this page from the code. A test compares it with the code.

A daemon writes its events as JSON lines to the file `telemetry.path`. If that key is not set, it writes them to the journal under systemd, and otherwise to standard error.
Each event has `event` (its name), `level` and `timestamp`; most events have `component`. Events below `telemetry.level` are not written.
There is a table for each package that logs events. Fields in parentheses are only in some of these events. … means that the fields vary.
[situations/](situations/README.md) says what to do after most warnings.
"""
_LEVELS: Final = ("debug", "info", "warning", "error", "critical", "exception")


class Event(NamedTuple):
    """A call that logs an event."""

    folder: str
    name: str
    level: str
    fields: tuple[str, ...]
    context: tuple[str, ...]
    meaning: str
    path: str

    def row(self) -> str:
        fields = ", ".join(f"`{field}`" if field != "…" else field for field in self.fields)
        context = f" ({', '.join(f'`{name}`' for name in self.context)})" if self.context else ""
        source = f"[{self.path.rpartition('/')[2]}](../kraftjbod/{self.path})"
        return f"| `{self.name}` | {self.level} | {fields}{context} | {self.meaning} | {source} |"


def events() -> list[Event]:
    """Return all events, sorted by folder and name."""
    return sorted(event for source in read_sources().values() for event in _events_of(source))


def _events_of(source: SourceFile) -> Iterator[Event]:
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    bound = (
        name
        for call in calls
        if ast.unparse(call.func).endswith(("get_logger", "log.bind"))
        for name in _fields(call)
        if name not in ("component", "…")
    )
    context = tuple(dict.fromkeys(bound))
    for call in calls:
        match call:
            case ast.Call(
                func=ast.Attribute(attr=level, value=target),
                args=[ast.Constant(value=str(name)), *_],
            ) if level in _LEVELS and _is_logger(target):
                fields, meaning = tuple(_fields(call)), MEANINGS.get(name, "")
                seen = tuple(name for name in context if name not in fields)
                yield Event(source.folder, name, level, fields, seen, meaning, source.path)


def _is_logger(target: ast.expr) -> bool:
    if isinstance(target, ast.Call):
        return ast.unparse(target.func) == "get_logger"
    return ast.unparse(target).split(".")[-1].strip("_") in ("log", "logger", "telemetry")


def _fields(call: ast.Call) -> list[str]:
    return [keyword.arg or "…" for keyword in call.keywords if keyword.arg != "exc_info"]


def page() -> str:
    """Return docs/events.md."""
    lines = [_HEAD]
    for folder, of_folder in groupby(events(), key=lambda event: event.folder):
        lines += [f"## {folder}/", ""]
        lines += ["| event | level | fields | what it means | logged by |", "|---|---|---|---|---|"]
        lines += [event.row() for event in of_folder]
        lines.append("")
    return "\n".join(lines)
