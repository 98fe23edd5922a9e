"""A game day as a user starts it: each kind of fault on a small real cluster.

Phases are short, and limits of gaps are generous, because gaps depend on the machine. On any
machine, faults are noticed, nothing is lost, and everything is restored afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kraftjbod.gameday.scenarios import SCENARIOS
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.testing import fault_fs, mounts
from tests.checkout import BIN
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.timeout(300)]

TOOL: Final = BIN / "kraftjbod-gameday"
SHORT: Final = (
    *("--partitions", "6", "--rate", "30", "--max-gap-ms", "120000"),
    *("--before-seconds", "0.5", "--fault-seconds", "1", "--after-seconds", "0.5"),
)
DEADLINE_S: Final = 180.0
NO_FUSE: Final = fault_fs.why_not()
needs_fuse = pytest.mark.skipif(NO_FUSE is not None, reason=f"no fault file system: {NO_FUSE}")


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Iterator[Cluster]:
    cluster = make_shared_cluster(
        config={
            "broker.heartbeat.interval.ms": "500",
            "broker.session.timeout.ms": "3000",
            "log.dir.io.suspect.ms": "1000",
        }
    )
    yield cluster
    # A broker that the tool restarted is no child of this process.
    left = ClusterProcesses.load(cluster.local.run_dir)
    if left is not None:
        left.kill()


@pytest.fixture(scope="module")
def three_controllers(make_shared_cluster: MakeCluster) -> Iterator[Cluster]:
    config = {"broker.heartbeat.interval.ms": "500", "broker.session.timeout.ms": "3000"}
    cluster = make_shared_cluster(controllers=3, config=config)
    yield cluster
    left = ClusterProcesses.load(cluster.local.run_dir)
    if left is not None:
        left.kill()


@pytest.fixture(scope="module")
def own_hosts(make_shared_cluster: MakeCluster) -> Iterator[Cluster]:
    config = {"broker.heartbeat.interval.ms": "500", "broker.session.timeout.ms": "3000"}
    cluster = make_shared_cluster(controllers=3, hosts=True, config=config)
    yield cluster
    left = ClusterProcesses.load(cluster.local.run_dir)
    if left is not None:
        left.kill()


def start(cluster: Cluster, *words: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*prefix, str(TOOL), "--bootstrap-server", cluster.bootstrap, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def gameday(cluster: Cluster, *words: str, prefix: tuple[str, ...] = ()) -> Any:
    """Return the tool's exit code, standard output and standard error."""
    with start(cluster, *words, prefix=prefix) as tool:
        out, err = tool.communicate(timeout=DEADLINE_S)
    return tool.returncode, out, err


def outcome_of(out: str) -> dict[str, Any]:
    """Return the only scenario of a report on standard output, which contains nothing else."""
    document = json.loads(out)
    [scenario] = document["scenarios"]
    assert scenario["good"] is document["good"]
    assert isinstance(scenario, dict)
    return scenario


def nothing_is_wrong(scenario: dict[str, Any]) -> None:
    assert scenario["complaints"] == []
    assert scenario["acknowledged"] > 0
    assert [mark["what"] for mark in scenario["marks"]] == [
        "injected",
        "noticed",
        "healed",
        "back",
        "in sync",
    ]
    assert len(scenario["partitions"]) == 6
    assert any(one["was_hit"] for one in scenario["partitions"])
    for one in scenario["partitions"]:
        assert one["found"] >= one["acknowledged"] > 0


def all_is_as_before(cluster: Cluster) -> None:
    for broker_id in (1, 2, 3):
        assert {d.error for d in cluster.directories(broker_id).values()} == {0}
        for number in (1, 2, 3):
            path = cluster.local.dir_path(broker_id, number)
            assert path.stat().st_mode & 0o700 == 0o700
            assert not os.path.ismount(path)
    with cluster.admin() as admin:
        assert [name for name in admin.list_topics() if name.startswith("gameday")] == []


def test_dead_disk_scenario_reports_gaps_and_restores_the_cluster(
    cluster: Cluster, tmp_path: Path
) -> None:
    svg = tmp_path / "timeline.svg"
    words = ("--scenario", "dead-disk", "--json", "-", "--svg", str(svg), *SHORT)
    code, out, err = gameday(cluster, *words)
    assert code == 0, err
    scenario = outcome_of(out)
    nothing_is_wrong(scenario)
    assert "chmod 000" in scenario["target"]
    assert all(one["leader_changes_ms"] for one in scenario["partitions"] if one["was_hit"])
    assert "longest gap" in err, "the document replaces the tables"
    assert "dead-disk" in "".join(ET.fromstring(svg.read_text()).itertext())
    all_is_as_before(cluster)


def test_gap_above_the_limit_fails_the_game_day(cluster: Cluster) -> None:
    limit = ("--max-gap-ms", "1")
    code, out, _ = gameday(cluster, "--scenario", "dead-disk", *SHORT, *limit)
    assert code == 1
    assert "is above the limit of 1 ms" in out
    all_is_as_before(cluster)


@needs_fuse
def test_hung_disk_scenario_passes_and_restores_the_cluster(cluster: Cluster) -> None:
    code, out, err = gameday(cluster, "--scenario", "hung-disk", "--json", "-", *SHORT)
    assert code == 0, err
    nothing_is_wrong(outcome_of(out))
    all_is_as_before(cluster)


@needs_fuse
def test_game_day_ended_by_signal_restores_the_cluster(cluster: Cluster) -> None:
    with start(cluster, "--scenario", "full-disk", *SHORT, "--fault-seconds", "600") as tool:
        assert tool.stderr is not None
        for line in tool.stderr:
            if "leaders" in line:
                break
        tool.send_signal(signal.SIGTERM)
        _, err = tool.communicate(timeout=DEADLINE_S)
    assert tool.returncode == 128 + signal.SIGTERM, err
    assert "undoing" in err
    all_is_as_before(cluster)
    sources = [mount.source for mount in mounts.mount_table()]
    assert [one for one in sources if one.startswith(f"{mounts.PREFIX}{tool.pid}-")] == []


def test_cold_reader_reports_latency_of_producers(cluster: Cluster) -> None:
    words = ("--scenario", "cold-reader", "--backlog-mb", "12", "--json", "-", *SHORT)
    code, out, err = gameday(cluster, *words)
    assert code == 0, err
    scenario = outcome_of(out)
    assert [mark["what"] for mark in scenario["marks"]] == [
        *("injected", "backlog is read", "healed", "back", "in sync")
    ]
    assert scenario["p99_before_ms"] > 0 and scenario["p99_during_ms"] > 0
    assert "MB on 9 disks" in scenario["target"]
    all_is_as_before(cluster)


def test_broker_kill_scenario_restarts_the_broker(cluster: Cluster) -> None:
    words = ("--scenario", "broker-kill", "--json", "-", *SHORT)
    code, out, err = gameday(cluster, *words)
    assert code == 0, err
    nothing_is_wrong(outcome_of(out))
    again = ClusterProcesses.load(cluster.local.run_dir)
    assert again is not None
    assert again.is_running, "the pid of the new process is recorded"
    all_is_as_before(cluster)


@pytest.mark.parametrize(
    "scenario",
    ["broker-pause", "controller-kill", "controller-pause", "controller-disk", "rolling-restart"],
)
def test_scenarios_pass_with_three_controllers_and_three_brokers(
    three_controllers: Cluster, scenario: str
) -> None:
    code, out, err = gameday(three_controllers, "--scenario", scenario, "--json", "-", *SHORT)
    document = outcome_of(out)
    # The duration depends on the machine; the completion does not.
    gap_ms, limit_ms = document["metadata_gap_ms"], document["metadata_gap_limit_ms"]
    late = [
        f"no controller did what it was asked for {gap_ms} ms, above the limit of {limit_ms} ms"
    ]
    assert document["complaints"] in ([], late), err
    assert (gap_ms is None) == (scenario in ("broker-pause", "host-loss"))
    assert code == (1 if document["complaints"] else 0)
    stories = [mark["what"] for mark in document["marks"]]
    assert [what for what in stories if "is stopped" not in what] == [
        *("injected", "noticed", "healed", "back", "in sync")
    ]
    if scenario == "rolling-restart":
        assert len(stories) == 5 + 6, "three controllers and three brokers"
    assert all(one["found"] >= one["acknowledged"] > 0 for one in document["partitions"])
    all_is_as_before(three_controllers)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("scenario", ["host-loss", "controller-host-loss"])
def test_host_loss_scenarios_pass_with_separate_hosts(own_hosts: Cluster, scenario: str) -> None:
    test_scenarios_pass_with_three_controllers_and_three_brokers(own_hosts, scenario)


def test_successive_failures_lose_no_record(three_controllers: Cluster) -> None:
    words = ("--scenario", "successive-failures", "--json", "-", *SHORT)
    code, out, err = gameday(three_controllers, *words)
    scenario = outcome_of(out)
    assert [one for one in scenario["complaints"] if "no controller did" not in one] == [], err
    assert code == (1 if scenario["complaints"] else 0)
    [broker] = re.findall(r"^\S+ of (broker \d) \(chmod 000\)", scenario["target"])
    marks = [mark["what"] for mark in scenario["marks"]]
    assert marks[:7] == [
        "injected",
        "the disk is offline",
        "every partition has a new leader",
        "the active controller is killed",
        "another controller is active",
        "the killed controller is back",
        f"{broker} is killed",
    ]
    assert set(marks[7:9]) == {"every partition has a new leader", "noticed"}
    assert marks[9:] == ["healed", "back", "in sync"]
    assert all(one["found"] >= one["acknowledged"] > 0 for one in scenario["partitions"])
    all_is_as_before(three_controllers)


def test_host_loss_scenarios_refuse_daemons_without_separate_hosts(
    three_controllers: Cluster,
) -> None:
    for scenario in ("host-loss", "controller-host-loss"):
        code, _, err = gameday(three_controllers, "--scenario", scenario, *SHORT)
        assert code == 1
        assert "kraftjbod-local up --hosts (as root)" in err


def test_gameday_observe_breaks_nothing_and_ends_on_signal(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create_topic("watched", partitions=2, replication_factor=3)
    report = tmp_path / "report.json"
    words = ("--observe", "--topic", "watched", "--rate", "30", "--json", str(report))
    with start(cluster, *words) as tool:
        assert tool.stderr is not None
        for line in tool.stderr:
            if "watching" in line:
                break
        deadline = time.monotonic() + DEADLINE_S
        while not any(d.sizes.get("watched-0") for d in cluster.directories(1).values()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        tool.send_signal(signal.SIGINT)
        out, err = tool.communicate(timeout=DEADLINE_S)
    assert tool.returncode == 0, err
    assert "observe" in out
    scenario = outcome_of(report.read_text())
    assert scenario["complaints"] == []
    assert scenario["marks"] == []
    assert len(scenario["partitions"]) == 2
    # Observe again, for a limited time and with the records of the first time.
    code, out, err = gameday(
        cluster, "--observe", "--topic", "watched", "--seconds", "1", "--json", "-"
    )
    assert code == 0, err
    assert outcome_of(out)["complaints"] == []
    with cluster.admin() as admin:
        assert "watched" in admin.list_topics()


def test_game_day_with_wrong_arguments_fails_with_reason(cluster: Cluster) -> None:
    unreachable = [str(TOOL), "--bootstrap-server", "127.0.0.1:1", "--scenario", "dead-disk"]
    with subprocess.Popen(unreachable, stderr=subprocess.PIPE, text=True) as alone:
        code, _, err = gameday(cluster, "--observe", "--topic", "nowhere")
        assert code == 1
        assert err == (
            "error: topic nowhere: UNKNOWN_TOPIC_OR_PARTITION; "
            "without --topic there will be one to watch\n"
        )
        code, _, err = gameday(cluster, "--scenario", "all", "--observe")
        assert code == 2
        assert "say either --scenario or --observe" in err
        _, err = alone.communicate(timeout=DEADLINE_S)
    assert alone.returncode == 1
    assert err.splitlines()[-1].startswith("error: ")
    assert "127.0.0.1:1" in err


@pytest.mark.disk
@pytest.mark.skipif(os.geteuid() != 0, reason="a new mount namespace needs root")
def test_game_day_leaves_directories_of_another_machine_alone(cluster: Cluster) -> None:
    """On the tool's machine, other files are at the paths that the brokers report."""
    elsewhere = 'mount -t tmpfs none "$1" && shift && exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", elsewhere, "sh", str(cluster.local.run_dir))
    for scenario in ("dead-disk", "broker-kill"):
        code, _, err = gameday(cluster, "--scenario", scenario, *SHORT, prefix=prefix)
        assert code == 1
        assert "cannot be read on this machine: run it on the broker's host" in err
    code, out, err = gameday(cluster, "--scenario", "all", *SHORT, prefix=prefix)
    assert code == 1, "nothing could be played"
    assert out.count("was left out:") == len(SCENARIOS), err
    all_is_as_before(cluster)
