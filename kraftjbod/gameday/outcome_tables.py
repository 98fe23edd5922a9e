"""WIRE. The tables that a game day prints: one per scenario, and a summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from kraftjbod.gameday.load.check import WRONG
from kraftjbod.gameday.outcome import LeftOut, Outcome

#: Headings of :data:`WRONG`.
_WRONG_HEADINGS: Final = ("lost", "twice", "order", "changed", "offset")
_LEGEND: Final = (
    "gap: longest time between two acknowledgements; before: the same before the fault.",
    "*: the faulty directory or broker led it. acked, read: records acknowledged, and read back.",
    "wrong: records lost, duplicated, out of order, changed, or not at the acknowledged offset.",
)


def print_outcome(console: Console, outcome: Outcome) -> None:
    """Print the timeline of one scenario, and a row per partition."""
    _line(console, f"[bold]{outcome.scenario}[/bold]: {outcome.target}")
    events = Table("what happened", box=box.SIMPLE)
    events.add_column("after", justify="right")
    injected_s = next((m.at_s for m in outcome.marks if m.what == "injected"), outcome.began_s)
    for mark in outcome.marks:
        events.add_row(mark.what, f"{round((mark.at_s - injected_s) * 1000)} ms")
    if outcome.marks:
        console.print(events)
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    for heading in ("partition", "gap ms", "before", "acked", "read", *_WRONG_HEADINGS):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in outcome.partitions:
        found = one.findings
        table.add_row(
            f"{one.partition}{' *' if one.was_hit else '  '}",
            f"{one.gap.length_ms:,}",
            f"{one.calm_gap_ms:,}",
            f"{found.acknowledged:,}",
            f"{found.found:,}",
            *(_count(getattr(found, kind)) for kind in WRONG),
        )
    console.print(table)
    if outcome.p99_before_ms is not None and outcome.p99_during_ms is not None:
        _line(
            console,
            f"99 % of the batches were acknowledged within {outcome.p99_before_ms} ms before, and "
            f"{outcome.p99_during_ms} ms from the fault until its end",
        )
    if outcome.metadata_gap_ms is not None:
        _line(
            console,
            f"Longest time in which no controller did what it was asked: {outcome.metadata_gap_ms} "
            f"ms, limit {outcome.metadata_limit_ms} ms",
        )


def print_summary(
    console: Console, outcomes: Sequence[Outcome], left_out: Sequence[LeftOut]
) -> None:
    """Print a row per scenario, and below it the reasons for bad outcomes."""
    table = Table(
        title="Game day",
        title_justify="left",
        box=box.SIMPLE,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in ("scenario", "longest gap", "limit", "acknowledged", "wrong", "verdict"):
        table.add_column(heading, justify="left" if heading == "scenario" else "right")
    for outcome in outcomes:
        table.add_row(
            outcome.scenario,
            f"{outcome.max_gap_ms} ms",
            f"{outcome.limit_ms} ms",
            f"{outcome.acknowledged:,}",
            _count(sum(outcome.wrong_records.values())),
            "[red]not good[/red]" if outcome.complaints else "[green]good[/green]",
        )
    for one in left_out:
        table.add_row(one.scenario, "-", "-", "-", "-", "left out")
    console.print(table)
    for outcome in outcomes:
        for complaint in outcome.complaints:
            _line(console, f"[red]{outcome.scenario}:[/red] {complaint}")
    for one in left_out:
        _line(console, f"{one.scenario} was left out: {one.reason}")
    for text in _LEGEND:
        _line(console, text)


def _count(number: int) -> str:
    return f"[red]{number}[/red]" if number else "0"


def _line(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
