"""WIRE. Shows the progress of a job in one line of a terminal.

A thread queries Spark twice a second for the tasks of running stages and the last batch of a
streaming query. It ends with Spark. Nothing is shown if the output is no terminal.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession
from rich.console import Console
from rich.status import Status

from kraftjbod.spark.session.spark_errors import SPARK_ERRORS

_EVERY_S: Final = 0.5


@contextmanager
def progress(console: Console, spark: SparkSession) -> Iterator[None]:
    """Context that shows the progress of a job in one line, if ``console`` is a terminal."""
    if not console.is_terminal:
        yield
        return
    over = threading.Event()
    with console.status("working") as status:
        thread = threading.Thread(
            target=_watch, args=(status, spark, over), name="progress", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def progress_text(tasks: Sequence[tuple[int, int]], batch: Any) -> str:
    """Return the line of progress; ``working`` if there is nothing to report.

    :param tasks: numbers of completed and of all tasks, per running stage.
    :param batch: Spark's report about the last batch of a streaming query, or None.
    """
    parts = []
    if batch is not None:
        parts.append(
            f"batch {batch.batchId}: {batch.numInputRows:,} rows, "
            f"{batch.processedRowsPerSecond:,.0f} rows/s"
        )
    if tasks:
        done, all_ = (sum(column) for column in zip(*tasks, strict=True))
        parts.append(f"{done:,} of {all_:,} tasks")
    return " · ".join(parts) or "working"


def _watch(status: Status, spark: SparkSession, over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(_EVERY_S):
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            reports = [query.lastProgress for query in spark.streams.active]
        except (*SPARK_ERRORS, OSError) as e:
            # Spark is stopping; the thread that waits for results gets the reason.
            status.update(f"waiting for Spark's end ({type(e).__name__})")
            return
        tasks = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage]
        status.update(progress_text(tasks, reports[-1] if reports else None))
