"""What every job of ``kraftjbod-pipeline`` does the same way: options, session, progress, end.

A job is a function ``work(job) -> JobOutcome`` under a click command made with :func:`job_command`.
Results go to standard output (with ``--json`` one document), progress and errors to standard error.
Exit codes: 0 good; 1 an error, or what the job looked for was found (its help says); 2 wrong usage;
130 interrupted.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import click
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from kraftjbod.cli.command import fail, parse_pairs
from kraftjbod.core.errors import KraftJbodError
from kraftjbod.spark.session import DEFAULT_MASTER, spark_session

DEFAULT_TABLES: Final = "run/tables"
_POLL_S: Final = 0.5
_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """``summary`` is what ``--json`` prints; ``lines`` what people read instead."""

    summary: Mapping[str, object]
    lines: tuple[str, ...] = ()
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a job works with. ``tables`` is the folder of the tables, a path or a URI."""

    spark: SparkSession
    tables: str
    console: Console = field(default_factory=lambda: Console(stderr=True))

    def table(self, name: str) -> str:
        return f"{self.tables.rstrip('/')}/{name}"

    def step(self, text: str) -> None:
        """One line of progress."""
        self.console.print(f"• {text}", highlight=False, soft_wrap=True)

    def await_query(self, query: StreamingQuery) -> None:
        """Wait until a streaming query ends, telling how far it is. Ctrl-C stops the query.

        :raises StreamingQueryException: what the query ended with.
        """
        with self.console.status("starting") as status:
            try:
                while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type] # takes floats
                    status.update(progress_line(query.lastProgress))
            except KeyboardInterrupt:
                query.stop()
                raise


def progress_line(progress: Any) -> str:
    """One line of what a streaming query tells of its last batch; Spark's own words and units."""
    if progress is None:
        return "waiting for the first batch"
    return (
        f"batch {progress.batchId}: {progress.numInputRows:,} rows, "
        f"{progress.processedRowsPerSecond:,.0f} rows/s"
    )


def job_command(name: str) -> Callable[[Callable[..., JobOutcome]], click.Command]:
    """Make ``work(job, **options)`` the command ``name`` with the options that all jobs have."""

    def decorate(work: Callable[..., JobOutcome]) -> click.Command:
        @functools.wraps(work)
        def run(
            master: str, conf: tuple[str, ...], tables: str, as_json: bool, **options: Any
        ) -> None:
            settings = parse_pairs(conf, "--conf")
            try:
                spark = spark_session(f"kraftjbod-{name}", master=master, conf=settings)
                try:
                    outcome = work(Job(spark=spark, tables=tables), **options)
                finally:
                    spark.stop()
            except (KraftJbodError, PySparkException, OSError) as e:
                fail(f"{name}: {e}")
            except KeyboardInterrupt:
                sys.exit(_INTERRUPTED)
            _tell(outcome, as_json=as_json)
            sys.exit(outcome.exit_code)

        command = click.command(name, context_settings={"help_option_names": ["-h", "--help"]})
        return command(_common_options(run))

    return decorate


def streaming_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--bootstrap-server``, ``--checkpoint``, ``--available-now`` or ``--trigger``."""
    for option in (
        click.option(
            "--trigger", default="10 seconds", show_default=True, help="Time between batches."
        ),
        click.option(
            "--available-now/--continuous",
            default=True,
            show_default=True,
            help="Stop at what is there when the job starts, or go on until stopped.",
        ),
        click.option(
            "--checkpoint",
            type=str,
            help="Folder that remembers how far the job is.  [default: under --tables]",
        ),
        click.option("--bootstrap-server", required=True, metavar="HOST:PORT,..."),
    ):
        command = option(command)
    return command


def _common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON document as the result."),
        click.option(
            "--tables",
            default=DEFAULT_TABLES,
            show_default=True,
            metavar="DIR",
            help="Where the Parquet tables are: a folder or a URI that Spark can write.",
        ),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."),
        click.option("--master", default=DEFAULT_MASTER, show_default=True, help="Spark master."),
    ):
        command = option(command)
    return command


def _tell(outcome: JobOutcome, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome.summary, default=str))
        return
    for line in outcome.lines:
        print(line)
