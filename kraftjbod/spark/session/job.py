"""WIRE. Code that all jobs of ``kraftjbod-pipeline`` share: options, session, progress, exit.

A job is a function ``work(job) -> JobOutcome`` under a click command made with :func:`job_command`.
Results go to standard output (with ``--json`` one document), progress and errors to standard error.
Exit codes: 0 success; 1 an error, or a finding of the job (see its help); 2 wrong usage; 130 and
143 orderly stop by Ctrl-C or SIGTERM, after which the job can continue.

A job has its own process, with the clock in UTC, and stops Spark at the end. The main thread only
waits for signals, and another thread works: an exception of a signal during a call to Java would
leave the connection with the response of an earlier call. If the process already has a session, as
in a notebook or a test, the job works in the calling thread and leaves the session running. The
same holds for a session that is passed to :meth:`JobCommand.work_in`.

A job that does not need Spark this time (``bare``) starts at once, without Java or PySpark.

Cluster data that a job needs before Spark is loaded *ahead* in a separate thread, while Spark
starts or an earlier job works.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click
from rich.console import Console

from kraftjbod.cli.terminal.command import exit_on_closed_output, fail, parse_pairs
from kraftjbod.core.errors import ConfigError, KraftJbodError
from kraftjbod.spark.connector.durations import duration_ms
from kraftjbod.spark.connector.options import source_settings
from kraftjbod.spark.pipeline_tool import without_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

DEFAULT_TABLES: Final = "run/tables"
#: Time limit for a stopped job to restore the terminal.
_LAST_WORDS_S: Final = 10.0
_SIGNALLED: Final = 128
_AHEAD: Final = "kraftjbod.ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Result of a job. ``summary`` is the output with ``--json``; ``lines`` are the output for
    people."""

    summary: Mapping[str, object]
    lines: tuple[str, ...] = ()
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BareJob:
    """The environment of a job that runs without Spark.

    ``tables`` is the folder or URI of the tables.
    """

    tables: str
    console: Console = field(default_factory=lambda: Console(stderr=True))
    #: Waits for the work started ahead; returns its result or raises its exception.
    from_ahead: Callable[[], Any] = lambda: None

    def table(self, name: str) -> str:
        return f"{self.tables.rstrip('/')}/{name}"

    def step(self, text: str) -> None:
        """Print one line of progress."""
        self.console.print(f"• {text}", highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(BareJob):
    """The environment of a job that runs with Spark."""

    spark: SparkSession


def expected_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that a job reports in one line; any other is a bug of this project."""
    if "pyspark" not in sys.modules:
        return (KraftJbodError, OSError)
    from kraftjbod.spark.session.spark_errors import SPARK_ERRORS

    return (KraftJbodError, *SPARK_ERRORS, OSError)


def reason(error: BaseException) -> str:
    """Return a description of an exception in one line."""
    if "pyspark" not in sys.modules:
        return " ".join(str(error).split()) or type(error).__name__
    from kraftjbod.spark.session.spark_errors import spark_reason

    return spark_reason(error)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a job as Ctrl-C does."""


class JobCommand(click.Command):
    """The command of a job, which runs in its own process or in a session that several jobs
    share."""

    ahead: Callable[..., Any] | None = None

    def prepared(self, arguments: Sequence[str]) -> click.Context:
        """Parse the options, and start the work ahead.

        :raises click.ClickException: wrong usage.
        """
        context = self.make_context(self.name, list(arguments))
        begin_ahead(context)
        return context

    def work_in(self, context: click.Context, spark: SparkSession) -> JobOutcome:
        """Run a prepared job in ``spark``, which continues to run; return its outcome.

        :raises Exception: one of :func:`expected_errors`, or :class:`click.ClickException`.
        """
        context.obj = spark
        with context:
            outcome: JobOutcome = self.invoke(context)
        return outcome


def begin_ahead(context: click.Context) -> Callable[[], Any]:
    """Start the work ahead, if it is not started yet; return a function that waits for its
    result."""
    if _AHEAD not in context.meta:
        ahead: Callable[..., Any] | None = getattr(context.command, "ahead", None)
        result: Future[Any] = Future()

        def work(ahead: Callable[..., Any]) -> None:
            try:
                result.set_result(ahead(**context.params))
            except BaseException as e:
                result.set_exception(e)

        if ahead is None:
            result.set_result(None)
        else:
            threading.Thread(target=work, args=(ahead,), name="ahead", daemon=True).start()
        context.meta[_AHEAD] = result.result
    waiting: Callable[[], Any] = context.meta[_AHEAD]
    return waiting


def job_command(
    name: str,
    *,
    finding: str | None = None,
    ahead: Callable[..., Any] | None = None,
    bare: Callable[..., bool] = lambda **_: False,
) -> Callable[[Callable[..., JobOutcome]], JobCommand]:
    """Decorate ``work(job, **options)``: it becomes the command ``name`` with the options of all
    jobs.

    :param finding: meaning of exit code 1 besides an error, for the help.
    :param ahead: called with all options, without Spark; ``job.from_ahead()`` returns its result.
    :param bare: called with all options; returns whether to run with a :class:`BareJob`.
    """
    failed = "an error" if finding is None else f"{finding}, or an error"
    epilog = f"Exit codes: 0 good; 1 {failed}; 2 wrong usage; 130, 143 stopped by a signal."

    def decorate(work: Callable[..., JobOutcome]) -> JobCommand:
        @functools.wraps(work)
        def run(
            master: str | None,
            conf: tuple[str, ...],
            tables: str,
            as_json: bool,
            verbose: bool,
            **options: Any,
        ) -> JobOutcome:
            context = click.get_current_context()
            settings = parse_pairs(conf, "--conf")
            job = BareJob(tables=tables, from_ahead=begin_ahead(context))
            is_bare = bare(**context.params)

            def on(spark: SparkSession) -> JobOutcome:
                return _done_in(spark, job, functools.partial(work, **options))

            if context.obj is not None:
                if master is not None or settings:
                    raise click.UsageError("--master and --conf are those of the whole session")
                return work(job, **options) if is_bare else on(context.obj)
            if verbose:
                os.environ["KRAFTJBOD_SPARK_LOG_LEVEL"] = "warn"

            def start() -> SparkSession:
                from kraftjbod.spark.session.session import spark_session

                is_short = options.get("available_now", True)
                app = f"kraftjbod-{name}"
                return spark_session(app, master=master, conf=settings, is_short=is_short)

            with errors_reported(name, verbose=verbose):
                if is_bare:
                    with _terminable():
                        outcome = work(job, **options)
                elif _has_session():
                    outcome = on(start())
                else:
                    outcome = in_own_process(start, on)
            _print(outcome, as_json=as_json)
            sys.exit(outcome.exit_code)

        command = click.command(
            name,
            cls=JobCommand,
            context_settings={"help_option_names": ["-h", "--help"]},
            epilog=epilog,
        )(_common_options(run))
        command.ahead = ahead
        return command

    return decorate


def _done_in(spark: SparkSession, bare: BareJob, work: Callable[[Job], JobOutcome]) -> JobOutcome:
    from kraftjbod.spark.session.job_progress import progress

    job = Job(spark=spark, tables=bare.tables, console=bare.console, from_ahead=bare.from_ahead)
    with progress(job.console, spark):
        return work(job)


def _has_session() -> bool:
    """Return whether this process has an active Spark session.

    :raises click.ClickException: Spark is not installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as e:
        raise without_spark(e) from e
    return SparkSession.getActiveSession() is not None


def _trigger(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    """Convert the value of ``--trigger`` to Spark's form.

    :raises click.BadParameter: it is no duration.
    """
    try:
        return f"{duration_ms(text, '--trigger')} milliseconds"
    except ConfigError as e:
        raise click.BadParameter(str(e)) from e


def _kafka(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Return the Kafka options by name, checked before Spark starts; the client checks their
    values.

    :raises click.BadParameter: an option is not allowed.
    """
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


#: Source options for topics, passed to the job as ``kafka``.
kafka_option: Final = click.option(
    "--option",
    "kafka",
    multiple=True,
    metavar="kafka.NAME=VALUE",
    callback=_kafka,
    help="A setting of the Kafka client that reads records, such as kafka.client.id=mine.",
)


@contextmanager
def errors_reported(name: str, *, verbose: bool = False) -> Iterator[None]:
    """Context that ends the process with one line for expected errors, or for signals with their
    code."""
    try:
        yield
    except expected_errors() as e:
        if verbose:
            traceback.print_exc()
        fail(f"{name}: {reason(e)}")
    except _Terminated:
        sys.exit(_SIGNALLED + signal.SIGTERM)
    except KeyboardInterrupt:
        sys.exit(_SIGNALLED + signal.SIGINT)


def streaming_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options of jobs that read topics."""
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
            help="Read the records up to the start of the job, or continue until stopped.",
        ),
        click.option(
            "--checkpoint",
            type=str,
            help="Folder with the progress of the job.  [default: under --tables]",
        ),
        click.option(
            "--allow-data-loss",
            is_flag=True,
            help="Continue if a topic lost records before they were read.  [default: an error]",
        ),
        kafka_option,
        click.option("--bootstrap-server", required=True, metavar="HOST:PORT,..."),
    ):
        command = option(command)
    return command


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with ``--master`` and ``--conf``."""
    for option in (
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


def _common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--verbose", is_flag=True, help="Print tracebacks of errors, and Spark's warnings."
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Print the result as one JSON document."
        ),
        click.option(
            "--tables",
            default=DEFAULT_TABLES,
            show_default=True,
            metavar="DIR",
            help="Location of the Parquet tables: a folder or a URI that Spark can write.",
        ),
        session_options,
    ):
        command = option(command)
    return command


def in_own_process(
    start: Callable[[], SparkSession],
    on: Callable[[SparkSession], T],
    *,
    at_end: Callable[[], None] = lambda: None,
) -> T:
    """Return the result of ``on(start())``, run in a separate thread; then stop Spark.

    Sets the time zone of this process to UTC. Exceptions of ``start`` and ``on`` are raised.

    :param at_end: wakes up ``on`` if it waits for anything but Spark.
    :raises KeyboardInterrupt: at Ctrl-C; at SIGTERM its subclass :class:`_Terminated`.
    """
    # Spark converts times for Python in the time zone of the process.
    os.environ["TZ"] = "UTC"
    time.tzset()
    sessions: list[SparkSession] = []
    outcome: Future[T] = Future()

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
            at_end()
            thread.join(_LAST_WORDS_S)


def _stop(spark: SparkSession) -> None:
    try:
        for query in spark.streams.active:
            query.stop()
        spark.stop()
    except expected_errors() as e:
        # The Java process is gone; the job's own error or result is more important.
        print(f"warning: Spark did not stop in order: {reason(e)}", file=sys.stderr)


@contextmanager
def _terminable() -> Iterator[None]:
    """Context in which SIGTERM raises :class:`_Terminated` in the main thread."""

    def terminate(_number: int, _frame: FrameType | None) -> NoReturn:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print(outcome: JobOutcome, *, as_json: bool) -> None:
    lines = (json.dumps(outcome.summary, default=str),) if as_json else outcome.lines
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        exit_on_closed_output()
