"""Jobs from outside: their output and exit, in this process and in a separate one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import psutil
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from tests.checkout import ROOT
from tests.spark.probe import command
from tests.spark.running import LONGEST_S, environment, run_python


def probe(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_job_prints_text_or_json(spark: SparkSession) -> None:
    printed = probe("find")
    assert (printed.exit_code, printed.stdout, printed.stderr) == (
        1,
        "found one\n",
        "• doing find\n",
    )
    printed = probe("find", "--json")
    assert (printed.exit_code, printed.stdout) == (1, '{"found": 1}\n')


def test_job_leaves_a_running_session_open(spark: SparkSession) -> None:
    assert probe("places").exit_code == 0
    assert spark.range(3).count() == 3


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("own-error", "no such topic: t"),
        ("worker-error", "the disk of topic-7 is gone"),
        ("spark-error", "Path does not exist: file:/nowhere/at/all."),
    ],
)
def test_job_error_is_one_line(spark: SparkSession, what: str, reason: str) -> None:
    printed = probe(what, "--json")
    assert (printed.exit_code, printed.stdout) == (1, "")
    assert printed.stderr == f"• doing {what}\nerror: probe: {reason}\n"


def test_job_error_with_verbose_prints_the_traceback(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRAFTJBOD_SPARK_LOG_LEVEL", "fatal")
    printed = probe("own-error", "--verbose")
    assert "Traceback (most recent call last):" in printed.stderr
    assert printed.stderr.endswith("\nerror: probe: no such topic: t\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--nope", "find"), "No such option '--nope'"),
        (("find", "--conf", "spark.cores.max"), "'spark.cores.max' is not KEY=VALUE"),
        ((), "Missing argument 'WHAT'"),
    ],
)
def test_job_with_wrong_usage_starts_no_java(arguments: tuple[str, ...], problem: str) -> None:
    """With an empty PATH, Spark could not start."""
    done = run_python("tests/spark/probe.py", *arguments, env=environment(PATH=""))
    assert done.returncode == 2
    assert problem in done.stderr


def test_job_help_explains_exit_codes() -> None:
    text = " ".join(probe("--help").stdout.split())
    assert "Exit codes: 0 good; 1 something was found, or an error; 2 wrong usage;" in text
    assert isinstance(command, click.Command)


@contextmanager
def started(what: str) -> Iterator[subprocess.Popen[str]]:
    """Start a probe in a separate process that works, and remove all its processes at the end."""
    arguments = ("tests/spark/probe.py", what, "--master", "local[2]")
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == f"• doing {what}\n"
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("what", "number", "code"),
    [("wait", signal.SIGINT, 130), ("stream", signal.SIGTERM, 143)],
)
def test_job_ends_with_all_processes_on_a_signal(
    what: str, number: signal.Signals, code: int
) -> None:
    with started(what) as process:
        children = psutil.Process(process.pid).children(recursive=True)
        assert "java" in {child.name() for child in children}
        process.send_signal(number)
        out, err = process.communicate(timeout=LONGEST_S)
        assert (process.returncode, out, err) == (code, "", "")
        _, alive = psutil.wait_procs(children, timeout=LONGEST_S)
        assert alive == []


@pytest.mark.timeout(300)
def test_job_fails_with_one_line_if_its_java_process_dies() -> None:
    done = run_python("tests/spark/probe.py", "dead-java", "--master", "local[2]")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "error: probe: Spark's Java process is gone: it was killed, or ran out of memory"
    )
    assert "Traceback" not in done.stderr


def test_job_with_closed_output_ends_silently() -> None:
    """``kraftjbod-pipeline ... | head`` after enough lines."""
    script = (
        "from kraftjbod.spark.session.job import JobOutcome, _print\n"
        "_print(JobOutcome(summary={}, lines=('line',) * 100_000), as_json=False)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(LONGEST_S) == 1
