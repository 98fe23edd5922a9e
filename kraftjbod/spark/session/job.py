"""WIRE. What every job of ``kraftjbod-pipeline`` does the same way: options, session, progress,
end.

A job is a function ``work(job) -> JobOutcome`` under a click command made with :func:`job_command`.
Results go to standard output (with ``--json`` one document), progress and errors to standard error.
Exit codes: 0 good; 1 an error, or what the job searches for was found (its help says); 2 wrong
usage; 130 and 143 stopped by Ctrl-C and by SIGTERM, in order and ready to go on.

A job's process is its own: its clock shows UTC, and Spark stops with it. The main thread only waits
for signals there, while another one works: a signal's exception in the middle of a call to Java
would leave a connection whose next answer belongs to another question. Inside a process that has a
session already (a notebook, a test) a job works in the thread that called it, and leaves that
session running; so it does where it is handed one (:meth:`JobCommand.work_in`).
A job that can do without Spark this time (``bare``) works at once, and neither Java nor PySpark is
looked for.

What a job needs to know of the cluster before it needs Spark it asks for *ahead*, in a thread of
its own: while Spark starts, or while the job before it still works.
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

from kraftjbod.cli.terminal.command import fail, parse_pairs, reader_gone
from kraftjbod.core.errors import ConfigError, KraftJbodError
from kraftjbod.spark.connector.durations import duration_ms
from kraftjbod.spark.connector.options import source_settings
from kraftjbod.spark.pipeline_tool import without_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

DEFAULT_TABLES: Final = "run/tables"
#: How long a stopped job may take to leave the terminal as it found it.
_LAST_WORDS_S: Final = 10.0
_SIGNALLED: Final = 128
_AHEAD: Final = "kraftjbod.ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """``summary`` is what ``--json`` prints; ``lines`` what people read instead."""

    summary: Mapping[str, object]
    lines: tuple[str, ...] = ()
    exit_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BareJob:
    """What a job without Spark works with. ``tables`` is the folder of the tables, or its URI."""

    tables: str
    console: Console = field(default_factory=lambda: Console(stderr=True))
    #: Waits for what was begun ahead; gives its result, or raises what it raised.
    from_ahead: Callable[[], Any] = lambda: None

    def table(self, name: str) -> str:
        return f"{self.tables.rstrip('/')}/{name}"

    def step(self, text: str) -> None:
        """One line of progress."""
        self.console.print(f"• {text}", highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(BareJob):
    """What a job works with."""

    spark: SparkSession


def expected_errors() -> tuple[type[Exception], ...]:
    """What a job reports in one line; anything else is a bug of ours."""
    if "pyspark" not in sys.modules:
        return (KraftJbodError, OSError)
    from kraftjbod.spark.session.spark_errors import SPARK_ERRORS

    return (KraftJbodError, *SPARK_ERRORS, OSError)


def reason(error: BaseException) -> str:
    """One line."""
    if "pyspark" not in sys.modules:
        return " ".join(str(error).split()) or type(error).__name__
    from kraftjbod.spark.session.spark_errors import spark_reason

    return spark_reason(error)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a job as Ctrl-C does."""


class JobCommand(click.Command):
    """A job as a command, for a process of its own or in a session that several jobs share."""

    ahead: Callable[..., Any] | None = None

    def prepared(self, arguments: Sequence[str]) -> click.Context:
        """Options parsed, and what is to be done ahead begun.

        :raises click.ClickException: for wrong usage.
        """
        context = self.make_context(self.name, list(arguments))
        begin_ahead(context)
        return context

    def work_in(self, context: click.Context, spark: SparkSession) -> JobOutcome:
        """Do a job that was prepared in ``spark``, which goes on running.

        :raises Exception: those of :func:`expected_errors`, and :class:`click.ClickException`.
        """
        context.obj = spark
        with context:
            outcome: JobOutcome = self.invoke(context)
        return outcome


def begin_ahead(context: click.Context) -> Callable[[], Any]:
    """Begin what the job does ahead, if that is not done yet; gives what waits for its result."""
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
    """Make ``work(job, **options)`` the command ``name`` with the options that all jobs have.

    :param finding: what exit code 1 means beside an error, for the help.
    :param ahead: is called with all options, without Spark; ``job.from_ahead()`` gives its result.
    :param bare: is called with all options too, and says whether the job does without Spark: then
        it is handed a :class:`BareJob`.
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
    """:raises click.ClickException: if Spark is not installed."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as e:
        raise without_spark(e) from e
    return SparkSession.getActiveSession() is not None


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


@contextmanager
def errors_reported(name: str, *, verbose: bool = False) -> Iterator[None]:
    """Ends the process with one line for what was expected, and as signals ask for."""
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
        click.option(
            "--allow-data-loss",
            is_flag=True,
            help="Go on where records went from the topic before they were read.  "
            "[default: an error]",
        ),
        kafka_option,
        click.option("--bootstrap-server", required=True, metavar="HOST:PORT,..."),
    ):
        command = option(command)
    return command


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--master`` and ``--conf``."""
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
        click.option("--verbose", is_flag=True, help="Whole traces of errors, Spark's warnings."),
        click.option("--json", "as_json", is_flag=True, help="One JSON document as the result."),
        click.option(
            "--tables",
            default=DEFAULT_TABLES,
            show_default=True,
            metavar="DIR",
            help="Where the Parquet tables are: a folder or a URI that Spark can write.",
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
    """The result of ``on(start())``, worked out in a thread of its own; Spark is stopped then.

    :param at_end: wakes ``on`` where it waits for anything but Spark.
    :raises KeyboardInterrupt: at Ctrl-C, and as :class:`_Terminated` at SIGTERM.
    """
    # Spark gives times to Python in the time zone of the process.
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
        # Its Java process is gone: the job's own error or result is what counts.
        print(f"warning: Spark did not stop in order: {reason(e)}", file=sys.stderr)


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


def _print(outcome: JobOutcome, *, as_json: bool) -> None:
    lines = (json.dumps(outcome.summary, default=str),) if as_json else outcome.lines
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        reader_gone()
