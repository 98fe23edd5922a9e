"""WIRE. Shows the progress of long work on standard error.

The file is imported only when needed, because rich takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def counter(verb: str) -> Iterator[Callable[[int], None]]:
    """Context that shows a count of records, with a function that adds to the count."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:,} records " + verb),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda more: progress.advance(task, more)
