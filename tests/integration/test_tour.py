"""``make run``, as a stranger types it; ``make up`` is a call of kraftjbod-local."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.tour.main import main

pytestmark = [
    pytest.mark.long,
    pytest.mark.process,
    pytest.mark.timeout(300),
    # The tour leaves its daemons running on purpose, and Popen complains when it is forgotten.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def stop_what_runs(run_dir: Path) -> None:
    cluster = ClusterProcesses.load(run_dir)
    assert cluster is None or asyncio.run(cluster.stop()) == []


def test_the_tour_loses_nothing_and_leaves_a_cluster_that_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = ["--run-dir", str(tmp_path / "run")]
    try:
        assert main(["--without-pipeline", *run_dir]) == 0, capsys.readouterr().out
        told = json.loads((tmp_path / "run" / "tour.json").read_text())
        assert told["nothing_lost"] is True
        assert [m["what"] for m in told["timeline"] if m["after_ms"] is None] == []
        cluster = ClusterProcesses.load(tmp_path / "run")
        assert cluster is not None
        assert cluster.is_running
        assert cluster.bootstrap_servers in capsys.readouterr().out
    finally:
        stop_what_runs(tmp_path / "run")


def test_a_tour_that_is_ended_half_way_takes_its_cluster_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "kraftjbod.tour.main", "--run-dir", str(run_dir)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as tour:
        deadline = time.monotonic() + 120
        while (cluster := ClusterProcesses.load(run_dir)) is None or not cluster.is_running:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert main(["--run-dir", str(run_dir)]) == 1
        assert "another command is starting or stopping the cluster" in capsys.readouterr().out
        tour.send_signal(signal.SIGTERM)
        assert tour.wait(60) == 1
    assert not any(daemon.is_running for daemon in cluster.daemons)
