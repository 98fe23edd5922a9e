"""What every job of ``kraftjbod-pipeline`` does the same way: options, session, progress, end.

A job is a function ``work(job) -> JobOutcome`` under a click command made with :func:`job_command`.
Results go to standard output (with ``--json`` one document), progress and errors to standard error.
Exit codes: 0 good; 1 an error, or what the job looked for was found (its help says); 2 wrong usage;
130 and 143 stopped by Ctrl-C and by SIGTERM, in order and ready to go on.

A job's process is its own: its clock shows UTC, and Spark stops with it. The main thread only waits
for signals there, while another one works: a signal's exception in the middle of a call to Java
would leave a connection whose next answer belongs to another question. Inside a process that has a
session already (a notebook, a test) a job works in the thread that called it, and leaves that
session running.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, NoReturn

import click
from pyspark.sql import SparkSession
from rich.console import Console

from kraftjbod.cli.command import fail, parse_pairs, reader_gone
from kraftjbod.core.errors import ConfigError, KraftJbodError
from kraftjbod.spark.durations import duration_ms
from kraftjbod.spark.job_progress import progress
from kraftjbod.spark.options import source_settings
from kraftjbod.spark.session import spark_session
from kraftjbod.spark.spark_errors import SPARK_ERRORS, spark_reason

DEFAULT_TABLES: Final = "run/tables"
#: How long a stopped job may take to leave the terminal as it found it.
_LAST_WORDS_S: Final = 10.0
_SIGNALLED: Final = 128


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


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a job as Ctrl-C does."""


def job_command(
    name: str, *, finding: str | None = None
) -> Callable[[Callable[..., JobOutcome]], click.Command]:
    """Make ``work(job, **options)`` the command ``name`` with the options that all jobs have.

    :param finding: what exit code 1 means beside an error, for the help.
    """
    failed = "an error" if finding is None else f"{finding}, or an error"
    epilog = f"Exit codes: 0 good; 1 {failed}; 2 wrong usage; 130, 143 stopped by a signal."

    def decorate(work: Callable[..., JobOutcome]) -> click.Command:
        @functools.wraps(work)
        def run(
            master: str | None,
            conf: tuple[str, ...],
            tables: str,
            as_json: bool,
            verbose: bool,
            **options: Any,
        ) -> None:
            settings = parse_pairs(conf, "--conf")
            if verbose:
                os.environ["KRAFTJBOD_SPARK_LOG_LEVEL"] = "warn"

            def start() -> SparkSession:
                return spark_session(f"kraftjbod-{name}", master=master, conf=settings)

            def on(spark: SparkSession) -> JobOutcome:
                job = Job(spark=spark, tables=tables)
                with progress(job.console, spark):
                    return work(job, **options)

            try:
                if SparkSession.getActiveSession() is not None:
                    outcome = on(start())
                else:
                    outcome = _in_own_process(start, on)
            except (KraftJbodError, *SPARK_ERRORS, OSError) as e:
                if verbose:
                    traceback.print_exc()
                fail(f"{name}: {spark_reason(e)}")
            except _Terminated:
                sys.exit(_SIGNALLED + signal.SIGTERM)
            except KeyboardInterrupt:
                sys.exit(_SIGNALLED + signal.SIGINT)
            _tell(outcome, as_json=as_json)
            sys.exit(outcome.exit_code)

        command = click.command(
            name, context_settings={"help_option_names": ["-h", "--help"]}, epilog=epilog
        )
        return command(_common_options(run))

    return decorate


def _trigger(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    """In the one form that Spark takes."""
    try:
        return f"{duration_ms(text, '--trigger')} milliseconds"
    except ConfigError as e:
        raise click.BadParameter(str(e)) from e


def _kafka(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Options of the source, checked before Spark starts; the client library checks the rest."""
    options = parse_pairs(values, "--option")
    for name in options:
        if not name.lower().startswith("kafka."):
            raise click.BadParameter(f"{name!r} is no kafka.NAME: it sets the Kafka client only")
        if name.lower() == "kafka.bootstrap.servers":
            raise click.BadParameter(f"{name}: say --bootstrap-server")
    try:
        source_settings({"kafka.bootstrap.servers": "checked", **options})
    except ConfigError as e:
        raise click.BadParameter(str(e)) from e
    return options


#: What the source reads topics with, handed to the job as ``kafka``.
kafka_option: Final = click.option(
    "--option",
    "kafka",
    multiple=True,
    metavar="kafka.NAME=VALUE",
    callback=_kafka,
    help="A setting of the Kafka client that records are read with, as the source has it: "
    "kafka.client.id=mine.",
)


def streaming_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a job reads topics by: from where, with which settings, how far and how often."""
    for option in (
        click.option(
            "--trigger",
            default="10 seconds",
            show_default=True,
            callback=_trigger,
            help="Time between batches.",
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
        kafka_option,
        click.option("--bootstrap-server", required=True, metavar="HOST:PORT,..."),
    ):
        command = option(command)
    return command


def _common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--verbose", is_flag=True, help="Whole traces of errors, Spark's warnings."),
        click.option("--json", "as_json", is_flag=True, help="One JSON document as the result."),
        click.option(
            "--tables",
            default=DEFAULT_TABLES,
            show_default=True,
            metavar="DIR",
            help="Where the Parquet tables are: a folder or a URI that Spark can write.",
        ),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."),
        click.option(
            "--master",
            metavar="URL",
            help="local[N], spark://HOST:PORT, yarn, k8s://URL.  [default: local[*]; under "
            "spark-submit its own]",
        ),
    ):
        command = option(command)
    return command


def _in_own_process(
    start: Callable[[], SparkSession], on: Callable[[SparkSession], JobOutcome]
) -> JobOutcome:
    """The outcome of ``on(start())``, worked out in a thread of its own; Spark is stopped then.

    :raises KeyboardInterrupt: at Ctrl-C, and as :class:`_Terminated` at SIGTERM.
    """
    # Spark gives times to Python in the time zone of the process.
    os.environ["TZ"] = "UTC"
    time.tzset()
    sessions: list[SparkSession] = []
    outcome: Future[JobOutcome] = Future()

    def work() -> None:
        try:
            sessions.append(start())
            outcome.set_result(on(sessions[0]))
        except BaseException as e:
            outcome.set_exception(e)

    thread = threading.Thread(target=work, name="job", daemon=True)
    with _terminable():
        thread.start()
        try:
            return outcome.result()
        finally:
            for spark in sessions:
                _stop(spark)
            thread.join(_LAST_WORDS_S)


def _stop(spark: SparkSession) -> None:
    try:
        for query in spark.streams.active:
            query.stop()
        spark.stop()
    except (*SPARK_ERRORS, OSError) as e:
        # Its Java process is gone: the job's own error or result is what counts.
        print(f"warning: Spark did not stop in order: {spark_reason(e)}", file=sys.stderr)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises :class:`_Terminated` in the main thread."""

    def terminate(_number: int, _frame: FrameType | None) -> NoReturn:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(outcome: JobOutcome, *, as_json: bool) -> None:
    lines = (json.dumps(outcome.summary, default=str),) if as_json else outcome.lines
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        reader_gone()
