"""Run each failed test once more, alone: ``-p tests.second_chance``.

Tests wait for real processes beside other tests, so a test may fail because the machine is busy.
A test that passes alone is *flaky*: the summary names it, with its first failure. Up to
:data:`MOST_FLAKY` flaky tests do not fail the run; with ``FLAKY_LIMIT=0`` in the environment the
first flaky test does. Each second run has a separate process.
Errors of collection and interrupted runs have no second chance.

What a failed test left is freed before the test's timeouts end. A client may wait for a dead
cluster in its destructor; freed later, between two tests, it would block the process without any
limit.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import pytest
from _pytest.terminal import TerminalReporter

#: More flaky tests fail the run, because they hide real failures.
MOST_FLAKY: Final = int(os.environ.get("FLAKY_LIMIT", "3"))
#: After so many that fail again, the others need not be tried.
_MOST_BROKEN: Final = 3
_FAILED: Final = ("failed", "error")
_FLAKY: Final = "flaky"
#: References to the frames of the last failed test, for debuggers.
_LAST_FAILURE: Final = ("last_type", "last_value", "last_traceback", "last_exc")
_failed_here: set[str] = set()


def _passes_alone(root: Path, nodeid: str) -> bool:
    """A test that is skipped did not pass."""
    with tempfile.TemporaryDirectory(prefix="second-chance-") as home:
        found = Path(home, "junit.xml")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "--no-summary", "-p", "no:cacheprovider"),
                *(f"--junitxml={found}", nodeid),
            ],
            cwd=root,
            check=False,
        )
        if done.returncode != pytest.ExitCode.OK:
            return False
        suite = ET.parse(found).getroot()[0].attrib  # pytest wrote it just now
        return int(suite["tests"]) > int(suite["skipped"])


def _flaky(reporter: TerminalReporter, failed: list[str]) -> set[str]:
    flaky: set[str] = set()
    for number, nodeid in enumerate(failed, start=1):
        if number - 1 - len(flaky) >= _MOST_BROKEN:
            break
        reporter.write_line(f"\nonce more, alone ({number} of {len(failed)}): {nodeid}")
        if _passes_alone(reporter.config.rootpath, nodeid):
            flaky.add(nodeid)
    return flaky


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed_here.add(report.nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Called while pytest's ``faulthandler_timeout`` still runs."""
    if nodeid not in _failed_here:
        return
    _failed_here.discard(nodeid)
    for name in _LAST_FAILURE:
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """After the last test and before the summary."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus != pytest.ExitCode.TESTS_FAILED or hasattr(session.config, "workerinput"):
        return
    stats = reporter.stats
    found = [report for key in _FAILED for report in stats.get(key, [])]
    tests = [report.nodeid for report in found if isinstance(report, pytest.TestReport)]
    flaky = _flaky(reporter, list(dict.fromkeys(tests)))
    if not flaky:
        return
    first = {report.nodeid: report for report in reversed(found) if report.nodeid in flaky}
    stats[_FLAKY] = [first[nodeid] for nodeid in dict.fromkeys(tests) if nodeid in flaky]
    for key in _FAILED:
        stats[key] = [report for report in stats.get(key, []) if report.nodeid not in flaky]
        if not stats[key]:
            del stats[key]
    if len(flaky) <= MOST_FLAKY and not any(key in stats for key in _FAILED):
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    flaky = terminalreporter.getreports(_FLAKY)
    if not flaky:
        return
    terminalreporter.write_sep("=", "FLAKY: failed once and passed alone")
    for report in flaky:
        terminalreporter.write_sep("_", report.nodeid)
        report.toterminal(terminalreporter._tw)
    for report in flaky:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message.partition("\n")[0] if crash is not None else "no message"
        terminalreporter.write_line(f"FLAKY {report.nodeid} - {reason}")
    if len(flaky) > MOST_FLAKY:
        terminalreporter.write_line(f"more than {MOST_FLAKY} flaky tests fail the run")
