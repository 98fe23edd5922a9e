"""WIRE. Progress of long work, on standard error. Imported late: rich takes a tenth of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def counter(verb: str) -> Iterator[Callable[[int], None]]:
    """Show a running count of records; yield a function that adds to it."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:,} records " + verb),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda more: progress.advance(task, more)
