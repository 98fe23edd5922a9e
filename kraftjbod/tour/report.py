"""WIRE. The output of the tour: text, tables, and ``tour.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from kraftjbod.gameday.faults.cluster_watch import Victim
from kraftjbod.gameday.load.acknowledgements import Gap
from kraftjbod.gameday.load.check import Findings
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.cluster_report import show_cluster
from kraftjbod.local.up_and_down import DaemonState
from kraftjbod.tour.disk_death import Milestone
from kraftjbod.tour.process_deaths import ProcessDeath


class Reporter:
    """Prints the progress and the results of the tour to a terminal or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def step(self, text: str) -> None:
        self._console.print(f"[bold]•[/bold] {text}", highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        self._console.print(f"  {text}", highlight=False, soft_wrap=True)

    def trouble(self, text: str) -> None:
        self._console.print(f"[bold red]{text}[/bold red]", highlight=False, soft_wrap=True)

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a progress bar on terminals. Yields a function that sets the completed amount."""
        columns = (
            TextColumn("  " + label),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        terminal = self._console.is_terminal
        with Progress(
            *columns, console=self._console, transient=True, disable=not terminal
        ) as progress:
            task = progress.add_task("", total=total)
            yield lambda done: progress.update(task, completed=done)

    def timeline(self, title: str, milestones: Sequence[Milestone]) -> None:
        table = Table("what happened", title=title, title_justify="left", box=box.SIMPLE)
        table.add_column("after", justify="right")
        for milestone in milestones:
            after = "not seen" if milestone.after_ms is None else f"{milestone.after_ms} ms"
            table.add_row(milestone.what, after)
        self._console.print(table)

    def process_death(self, death: ProcessDeath) -> None:
        """Print the timeline of a process death, and the write gap of each partition."""
        self.timeline(f"A process died: {death.who}", death.milestones)
        gaps = ", ".join(
            f"{partition}{'*' if partition in death.led else ''} {gap.length_ms}"
            for partition, gap in death.gaps.items()
        )
        goal = "within" if death.gap_ms_max <= death.goal_ms else "[yellow]above[/yellow]"
        self.note(
            f"gap of each partition in ms{' (*: it led it)' * bool(death.led)}: {gaps}; "
            f"the longest is {goal} the goal of {death.goal_ms} ms"
        )

    def partitions(
        self, victim: Victim, gaps: Mapping[int, Gap], findings: Sequence[Findings]
    ) -> None:
        table = Table(
            title="Every partition",
            title_justify="left",
            box=box.SIMPLE,
            pad_edge=False,
            collapse_padding=True,
        )
        for heading in (
            "partition",
            "gap",
            "acked",
            "read",
            "lost",
            "twice",
            "order",
            "changed",
            "offset",
        ):
            table.add_column(heading, justify="right", no_wrap=True)
        for found in findings:
            led = " *" if found.partition in victim.led else "  "
            table.add_row(
                f"{found.partition}{led}",
                f"{gaps[found.partition].length_ms} ms",
                f"{found.acknowledged:,}",
                f"{found.found:,}",
                *(
                    f"[red]{count}[/red]" if count else "0"
                    for count in (
                        found.lost,
                        found.twice,
                        found.out_of_order,
                        found.changed,
                        found.misplaced,
                    )
                ),
            )
        self._console.print(table)
        self.note("*: was led from the dead disk. gap: longest time between two acknowledgements.")
        self.note("acked, read: records acknowledged, and read back.")
        self.note("order, offset: records out of order, or not at the offset that was promised.")

    def addresses(self, cluster: ClusterProcesses, states: Sequence[DaemonState]) -> None:
        show_cluster(self._console, cluster, states)
        self.note("stop it with:       make stop")


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    fresh = path.with_suffix(".json.tmp")
    fresh.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def tour_document(
    *,
    topic: str,
    victim: Victim,
    milestones: Sequence[Milestone],
    gaps: Mapping[int, Gap],
    findings: Sequence[Findings],
    figures: Mapping[str, float],
    deaths: Sequence[ProcessDeath] = (),
    is_good: bool,
) -> dict[str, Any]:
    return {
        "nothing_lost": is_good,
        "topic": topic,
        "killed": {"broker": victim.broker_id, "log_dir": str(victim.path)},
        "led_from_it": sorted(victim.led),
        "timeline": [asdict(milestone) for milestone in milestones],
        "gap_ms_max": max(gap.length_ms for gap in gaps.values()),
        "processes": [one.document() for one in deaths],
        "figures": dict(figures),
        "partitions": [
            {**asdict(found), "gap_ms": gaps[found.partition].length_ms} for found in findings
        ],
    }
