"""WIRE. ``kraftjbod-pipeline session``: several jobs in one Spark session, which starts once.

Each line of standard input is one job, written like the arguments of ``kraftjbod-pipeline``. Jobs
run one after the other, with the code of the single commands. Standard output gets one line of JSON
per job: ``job``, ``exit_code``, ``seconds``, and its ``summary`` or ``error``. The session stays
usable after a failed job.

While Spark starts and other jobs run, the next lines are read and checked, and their work ahead
starts. The session and its Java process end at the end of input or by a signal.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from queue import Full, Queue
from typing import Any, Final

import click
from pyspark.sql import SparkSession

from kraftjbod.cli.terminal.command import parse_pairs
from kraftjbod.spark.pipeline_tool import job_named
from kraftjbod.spark.session.job import (
    JobCommand,
    JobOutcome,
    errors_reported,
    expected_errors,
    in_own_process,
    session_options,
)
from kraftjbod.spark.session.session import spark_session
from kraftjbod.spark.session.spark_errors import spark_reason

_NAME: Final = "session"
#: Limit of queued jobs.
_MOST_WAITING: Final = 16
_FAILED: Final = 1
_WRONG_USAGE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A job that a line of input requests. ``work`` raises the error of an invalid line."""

    name: str
    work: Callable[[SparkSession], JobOutcome]


@click.command(_NAME, context_settings={"help_option_names": ["-h", "--help"]})
@session_options
def command(master: str | None, conf: tuple[str, ...]) -> None:
    """Run the jobs on standard input, one per line, in one Spark session.

    Each job prints a line of JSON. The exit code is the highest one of the jobs.
    """
    settings = parse_pairs(conf, "--conf")
    asked: Queue[_Asked | None] = Queue(_MOST_WAITING)
    # Unbuffered: a reader that still waits when the process ends must not hold a lock of Python's.
    lines = io.FileIO(os.dup(sys.stdin.fileno()))
    threading.Thread(target=_take, args=(lines, asked), name="lines", daemon=True).start()

    def start() -> SparkSession:
        return spark_session(f"kraftjbod-{_NAME}", master=master, conf=settings, is_short=True)

    def no_more() -> None:
        with contextlib.suppress(Full):  # Then the worker is not waiting.
            asked.put_nowait(None)

    with errors_reported(_NAME):
        sys.exit(in_own_process(start, partial(_work, asked), at_end=no_more))


def _take(lines: io.FileIO, asked: Queue[_Asked | None]) -> None:
    for line in lines:
        if line.strip():
            asked.put(_asked(line.decode(errors="replace")))
    asked.put(None)


def _asked(line: str) -> _Asked:
    name = line.split()[0]
    try:
        name, *options = shlex.split(line)
        job = job_named(name)
        if not isinstance(job, JobCommand):
            raise click.UsageError(f"{name!r} is no job; there are ingest, telemetry, plan, ...")
        return _Asked(name=name, work=partial(job.work_in, job.prepared(options)))
    except (ValueError, click.ClickException, click.exceptions.Exit) as e:
        return _Asked(name=name, work=partial(_raise, e))


def _raise(error: Exception, _spark: SparkSession) -> JobOutcome:
    raise error


def _work(asked: Queue[_Asked | None], spark: SparkSession) -> int:
    if asked.empty():
        # The first query of a Java process takes seconds, so run one while no job waits.
        spark.range(1).groupBy().count().collect()
    worst = 0
    while (one := asked.get()) is not None:
        began_s = time.monotonic()
        answer = _answer(one, spark)
        seconds = round(time.monotonic() - began_s, 3)
        print(json.dumps({"job": one.name, "seconds": seconds, **answer}, default=str), flush=True)
        worst = max(worst, answer["exit_code"])
    return worst


def _answer(one: _Asked, spark: SparkSession) -> Mapping[str, Any]:
    try:
        outcome = one.work(spark)
    except click.exceptions.Exit as e:  # The line asked for help.
        return {"exit_code": e.exit_code}
    except (ValueError, click.ClickException) as e:
        said = e.format_message() if isinstance(e, click.ClickException) else str(e)
        return {"exit_code": _WRONG_USAGE, "error": said}
    except expected_errors() as e:
        return {"exit_code": _FAILED, "error": spark_reason(e)}
    return {"exit_code": outcome.exit_code, "summary": outcome.summary}
