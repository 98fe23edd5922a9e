"""``DaemonProcess``: start, lookup, stop, kill and events. The daemon is a small script."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.local.daemon_process import DaemonFiles, DaemonProcess
from kraftjbod.local.privileges import Privileges

TALK = """
import sys, time
print('{"event": "began"}', flush=True)
print('no json', flush=True)
print('{"event": "half', end='', flush=True)
time.sleep(600)
"""
IGNORES_SIGTERM = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('ignoring', flush=True);"
    + ("time.sleep(600)")
)
UNPRIVILEGED = Privileges(description="as the user of the tests")


def make(directory: Path, script: str, pid: int | None = None) -> DaemonProcess:
    files = DaemonFiles(
        name="small",
        role="broker",
        node_id=1,
        host="127.0.0.1",
        port=1,
        directory=directory,
        metadata_dir=directory / "metadata",
        log_dirs=(),
    )
    command = (sys.executable, "-c", script)
    return DaemonProcess(files, command=command, privileges=UNPRIVILEGED, pid=pid)


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[DaemonProcess]:
    daemon = make(tmp_path, TALK)
    daemon.start()
    yield daemon
    daemon.kill()


def wait_for(daemon: DaemonProcess, text: str) -> None:
    while text not in daemon.last_words():
        daemon.require_running()


def test_events_returns_complete_events_and_skips_other_lines(talking: DaemonProcess) -> None:
    wait_for(talking, "half")
    assert talking.events() == [{"event": "began"}]
    assert talking.events("other") == []


def test_events_after_an_unfinished_event_in_its_line_are_returned(tmp_path: Path) -> None:
    """``kill -9`` leaves such a line, and the next start continues in it."""
    daemon = make(tmp_path, "")
    daemon.files.telemetry_path.write_text(
        '{"event": "cut", "reas{"event": "second", "ports": {"A": 1}}\n'
        '{"event": "whole"}{"event": "third"}\n'
        '{"event": "half'
    )
    assert [event["event"] for event in daemon.events()] == ["second", "whole", "third"]


async def test_stop_ends_daemon_by_signal(talking: DaemonProcess) -> None:
    wait_for(talking, "began")
    assert talking.is_running
    assert await talking.stop(20.0)
    assert (talking.pid, talking.exit_code) == (None, -15)


async def test_stop_kills_daemon_that_ignores_the_signal(tmp_path: Path) -> None:
    daemon = make(tmp_path, IGNORES_SIGTERM)
    daemon.start()
    wait_for(daemon, "ignoring")
    assert not await daemon.stop(0.05)
    assert daemon.exit_code == -9


async def test_daemon_process_is_found_by_pid(talking: DaemonProcess, tmp_path: Path) -> None:
    wait_for(talking, "began")
    found = make(tmp_path, TALK, pid=talking.pid)
    assert found.is_running
    found.terminate()
    assert await talking.wait_exit(20.0)
    assert not found.is_running


def test_find_without_pid_finds_daemon_and_no_other_program(
    talking: DaemonProcess, tmp_path: Path
) -> None:
    """As if the starting process had died before it recorded the pid."""
    wait_for(talking, "began")
    found = make(tmp_path, TALK)
    found.find()
    assert found.pid == talking.pid
    editor = make(tmp_path, "another program that has the file open")
    editor.find()
    assert editor.pid is None


def test_pid_of_another_process_is_not_killed(talking: DaemonProcess, tmp_path: Path) -> None:
    wait_for(talking, "began")
    stranger = make(tmp_path / "elsewhere", TALK, pid=talking.pid)
    assert stranger.pid is None
    stranger.kill()
    assert talking.is_running


def test_require_running_raises_with_exit_code_and_last_output(tmp_path: Path) -> None:
    daemon = make(tmp_path, "print('so it goes'); raise SystemExit(3)")
    daemon.start()
    with pytest.raises(StartupError, match=r"exit code 3:\nso it goes"):
        while True:
            daemon.require_running()
