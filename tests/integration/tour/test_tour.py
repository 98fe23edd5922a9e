"""``make run`` and the following commands of the README, as a new user types them.

``make up`` is a call of kraftjbod-local."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.tour.main import main
from tests.checkout import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.process,
    pytest.mark.timeout(300),
    # The tour leaves its daemons running on purpose, and Popen warns when it is collected.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def stop_what_runs(run_dir: Path) -> None:
    cluster = ClusterProcesses.load(run_dir)
    assert cluster is None or asyncio.run(cluster.stop()) == []


def readme_on(cluster: ClusterProcesses, folder: Path) -> str:
    """Return the output of the README's commands, run in ``folder`` on the cluster."""
    (folder / "bin").symlink_to(ROOT / "bin")
    part = (ROOT / "README.md").read_text().partition("## Use it")[2].partition("## In your")[0]
    commands = re.findall(r"^\$ ((?:bin/|printf|chmod).*)$", part, re.MULTILINE)
    script = "\n".join(commands)
    for nth, address in enumerate(cluster.bootstrap_servers.split(",")):
        script = script.replace(f"127.0.0.1:{9092 + nth}", address)
    # A reader types more slowly than the disk is checked.
    is_dead = "until bin/kraftjbod-health --bootstrap-server {} | grep offline; do sleep 0.5; done"
    second = cluster.bootstrap_servers.split(",")[1]
    script = script.replace(
        "\nbin/kraftjbod-health", f"\n{is_dead.format(second)}\nbin/kraftjbod-health"
    )
    done = subprocess.run(
        ["bash", "-xeuo", "pipefail", "-c", script],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_tour_loses_nothing_and_leaves_a_running_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = ["--run-dir", str(tmp_path / "run")]
    try:
        assert main(["--without-pipeline", *run_dir]) == 0, capsys.readouterr().out
        [scenario] = json.loads((tmp_path / "run" / "gameday.json").read_text())["scenarios"]
        assert scenario["scenario"] == "successive-failures"
        # Gaps may exceed their limits here: the machine is shared.
        assert all(one["found"] >= one["acknowledged"] > 0 for one in scenario["partitions"])
        assert [mark["what"] for mark in scenario["marks"]][-1] == "in sync"
        assert "<svg" in (tmp_path / "run" / "gameday.svg").read_text()
        cluster = ClusterProcesses.load(tmp_path / "run")
        assert cluster is not None
        assert cluster.is_running
        assert cluster.bootstrap_servers in capsys.readouterr().out
        said = readme_on(cluster, tmp_path)
        assert "a\nb\nProcessed a total of 2 messages\n" in said
        assert "serves, 2 of 3 log directories are online\n" in said
        assert re.search(r"is back at \S+/broker-2/disk-2 with \d+ replicas", said), said
    finally:
        stop_what_runs(tmp_path / "run")


def test_tour_ended_by_signal_stops_its_cluster(
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
