"""100,000 partitions on one controller: assignments, replay, snapshot.

The controller is a real process. Three brokers with two directories each are scripted
(``scripted_broker.py``); partitions have three replicas. Reported are the seconds for 100,000
assignments from the first request to the last acknowledgement, the time until a killed controller
leads again from its log and from a snapshot, and the memory of controller and broker.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import DaemonProcess
from tests.bench.controller.scripted_broker import create_a_topic
from tests.bench.figures import Report, rss_mb, running_cluster
from tests.checkout import ROOT
from tests.integration.cluster import Cluster

PARTITIONS: Final = 100_000
_SNAPSHOT_KEY: Final = "metadata.log.max.record.bytes.between.snapshots"
_NEVER: Final = str(1 << 40)


def hundred_thousand(report: Report) -> None:
    """Create, assign, restart from the log, snapshot, restart from the snapshot."""
    config = {"broker.session.timeout.ms": "3600000", _SNAPSHOT_KEY: _NEVER}
    with running_cluster(brokers=0, dirs=0, controller_config=config) as local:
        controller = local.controller
        cluster = Cluster(local)
        cluster.wait_event(controller, "controller_started")
        _assign(report, local)
        many = f"{PARTITIONS:,} partitions"
        size_mb = _log_bytes(controller) / 1e6
        seconds = _restart(cluster, 2)
        report.add(
            f"controller restart, {many}, from the log",
            seconds,
            "s",
            how=f"{size_mb:.0f} MB of log",
        )
        _configure(controller, _SNAPSHOT_KEY, "1")
        _restart(cluster, 3)
        began = time.time()
        asyncio.run(create_a_topic(controller.address))
        answered = time.time()
        written = cluster.wait_event(controller, "metadata_snapshot_written")
        how = f"in the background; the request that set it off took {answered - began:.2f} s"
        report.add(f"snapshot of {many}", _at(written) - began, "s", how=how)
        report.add(f"snapshot of {many}, size", written["size_bytes"] / 1e6, "MB")
        _configure(controller, _SNAPSHOT_KEY, _NEVER)
        seconds = _restart(cluster, 4)
        report.add(f"controller restart, {many}, from a snapshot", seconds, "s")
        report.add("RSS of controller", rss_mb(controller), "MB", how="restarted from a snapshot")


def _assign(report: Report, local: ClusterProcesses) -> None:
    printed = run_scripted_broker(local, PARTITIONS)
    how = "RF 3, scripted brokers with 2 directories each"
    many = f"{PARTITIONS:,}"
    report.add(f"create {many} partitions", printed["create_s"], "s", how=how)
    report.add(f"a broker follows {many} creations", printed["follow_creation_s"], "s", how=how)
    how = "AssignmentsManager, 500 a request, first call to last response"
    report.add(f"{many} assignments acknowledged", printed["assign_s"], "s", how=how)
    report.add(f"a broker follows {many} assignments", printed["follow_assignment_s"], "s")
    report.add(
        "RSS of the scripted broker", printed["rss_mb"], "MB", how=f"{many} partitions known"
    )
    report.add("RSS of controller", rss_mb(local.controller), "MB", how=f"after {many} assignments")


def run_scripted_broker(local: ClusterProcesses, partitions: int) -> dict[str, float]:
    """Run the scripted broker and return the seconds of each step. The partitions are kept."""
    controllers = ",".join(one.address for one in local.controllers.values())
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.bench.controller.scripted_broker"),
            *(controllers, local.cluster_id, str(partitions)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *events, figures = done.stdout.splitlines()
    for event in events:
        print(event, file=sys.stderr)
    printed: dict[str, float] = json.loads(figures)
    return printed


def _restart(cluster: Cluster, count: int) -> float:
    """Seconds from the start of the process until it leads for the ``count``-th time."""
    controller = cluster.local.controller
    controller.kill()
    started = time.time()
    controller.start()
    return _at(cluster.wait_event(controller, "controller_active", count)) - started


def _configure(daemon: DaemonProcess, key: str, value: str) -> None:
    with daemon.files.config_path.open("a", encoding="utf-8") as config:
        config.write(f"\n{key}={value}\n")


def _log_bytes(controller: DaemonProcess) -> int:
    return sum(path.stat().st_size for path in controller.files.metadata_dir.rglob("*.log"))


def _at(event: Mapping[str, Any]) -> float:
    """Return when an event was logged, in seconds since 1970."""
    return datetime.datetime.fromisoformat(event["timestamp"]).timestamp()
