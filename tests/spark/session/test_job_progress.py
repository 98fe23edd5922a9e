"""The progress line at the bottom of a terminal, and its absence elsewhere."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console

from kraftjbod.spark.session.job_progress import progress, progress_text


def slowly(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(2.0)
        yield batch


def test_progress_text_shows_tasks_and_batch() -> None:
    batch = SimpleNamespace(batchId=7, numInputRows=12_000, processedRowsPerSecond=3999.6)
    assert progress_text([], None) == "working"
    assert progress_text([(1, 4), (1_000, 2_000)], None) == "1,001 of 2,004 tasks"
    assert progress_text([(1, 4)], batch) == "batch 7: 12,000 rows, 4,000 rows/s · 1 of 4 tasks"


def test_progress_on_terminal_shows_the_tasks_of_a_query(spark: SparkSession) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with progress(console, spark):
        spark.range(0, 4, 1, 4).mapInArrow(slowly, "id long").collect()
    assert " of 4 tasks" in screen.getvalue()


def test_progress_to_file_writes_nothing(spark: SparkSession) -> None:
    written = io.StringIO()
    with progress(Console(file=written), spark):
        spark.range(4).collect()
    assert written.getvalue() == ""
