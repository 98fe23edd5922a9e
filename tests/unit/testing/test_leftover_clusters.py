"""``undo_left_overs`` ends daemons of dead test runs only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kraftjbod.testing.leftover_clusters import make_run_dir, undo_left_overs


@contextmanager
def daemon(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that has a daemon's configuration file as an argument."""
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", config]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        try:
            yield process
        finally:
            process.kill()


def ended_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def run_dir_of(pid: int, parent: str | None = None) -> Path:
    parent = parent or tempfile.gettempdir()
    return Path(parent) / f"kraftjbod-cluster-{pid}-x/broker-1/broker-1.properties"


def test_undo_left_overs_kills_daemons_of_ended_test_runs_only(tmp_path: Path) -> None:
    with (
        daemon(run_dir_of(ended_pid())) as left,
        daemon(run_dir_of(os.getpid())) as ours,
        daemon(run_dir_of(ended_pid(), str(tmp_path))) as elsewhere,
    ):
        undo_left_overs()
        assert left.wait(10) == -signal.SIGKILL
        assert (ours.poll(), elsewhere.poll()) == (None, None)


def test_make_run_dir_contains_pid_of_the_owner() -> None:
    made = make_run_dir()
    try:
        assert made.name.startswith(f"kraftjbod-cluster-{os.getpid()}-")
    finally:
        made.rmdir()
