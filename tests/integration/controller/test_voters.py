"""A quorum that changes while it works: one controller grows to three and shrinks back, under load.

It starts like every cluster before voters were kept in the metadata log."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.integration.controller.test_quorum import Creator, _topics

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BIN = Path(__file__).parents[3] / "bin"


def tool(name: str, *words: str) -> str:
    done = subprocess.run(
        [str(BIN / name), *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, (name, words, done.stdout, done.stderr)
    return done.stdout


class Added:
    """A controller that no configuration file of the others names."""

    def __init__(self, cluster: LocalCluster, run_dir: Path, node_id: int, known: str) -> None:
        self._cluster = cluster
        self.node_id = node_id
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.home = run_dir / f"added-{node_id}"
        self.home.mkdir()
        self.file = self.home / "controller.properties"
        self.file.write_text(
            f"process.roles=controller\nnode.id={node_id}\n"
            f"listeners=CONTROLLER://{self.address}\n"
            f"controller.quorum.bootstrap.servers={known}\n"
            f"metadata.log.dir={self.home}/metadata\nlog.dirs={self.home}/metadata\n"
            f"telemetry.path={self.home}/telemetry.jsonl\n"
            "metadata.log.max.record.bytes.between.snapshots=20000\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def format(self, *words: str) -> None:
        cluster_id = json.loads(Quorum(self._cluster).tell("describe", "--status", "--json"))[
            "clusterId"
        ]
        tool("kraftjbod-storage", "format", "-t", cluster_id, "-c", str(self.file), *words)

    def start(self) -> None:
        command = [sys.executable, "-m", "kraftjbod.daemon.controller_server", str(self.file)]
        self._process = subprocess.Popen(command)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class Quorum:
    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._to = ("--bootstrap-server", cluster.bootstrap_servers)

    def tell(self, *words: str, config: Path | None = None) -> str:
        more = () if config is None else ("--command-config", str(config))
        return tool("kraftjbod-metadata-quorum", *self._to, *more, *words)

    def replicas(self) -> dict[int, dict[str, Any]]:
        found = json.loads(self.tell("describe", "--replication", "--json"))["replicas"]
        # A replaced disk is remembered as an observer for a while, after the voters.
        found.sort(key=lambda one: (one["status"] == "Observer", one["lag"]), reverse=True)
        return {replica["id"]: replica for replica in found}

    def voters(self) -> set[int]:
        found = json.loads(self.tell("describe", "--status", "--json"))
        return {voter["id"] for voter in found["currentVoters"]}

    def registered(self) -> set[int]:
        to = ("--bootstrap-controller", self._cluster.active_controller().address)
        found = json.loads(tool("kraftjbod-cluster", "list-endpoints", *to, "--json"))
        return {one["id"] for one in found["endpoints"]}

    def leader(self) -> int:
        return int(json.loads(self.tell("describe", "--status", "--json"))["leaderId"])

    def wait_observer(self, node_id: int) -> None:
        def follows() -> bool:
            found = self.replicas().get(node_id)
            return found is not None and found["lag"] <= 2

        self._cluster.wait(f"controller {node_id} to follow", follows)

    def add(self, controller: Added) -> None:
        self.wait_observer(controller.node_id)
        said = self.tell("add-controller", config=controller.file)
        assert said.startswith(f"Added controller {controller.node_id} with directory id ")

    def remove(self, node_id: int) -> None:
        directory = self.replicas()[node_id]["directoryId"]
        said = self.tell("remove-controller", "-i", str(node_id), "-d", directory)
        assert said == f"Removed KRaft controller {node_id} with directory id {directory}\n"


def test_quorum_grows_to_three_voters_and_shrinks_back_under_load(tmp_path: Path) -> None:
    snapshots = {"metadata.log.max.record.bytes.between.snapshots": "20000"}
    with (
        LocalCluster(brokers=3, dirs=1, disks="plain", controller_config=snapshots) as cluster,
        Creator(cluster) as creator,
    ):
        quorum = Quorum(cluster)
        first = cluster.active_controller()
        added = [Added(cluster, tmp_path, node_id, first.address) for node_id in (101, 102)]

        def require_progress() -> None:
            count = len(creator.acknowledged)
            cluster.wait("more topics", lambda: len(creator.acknowledged) > count + 3)

        try:
            cluster.wait("some topics", lambda: len(creator.acknowledged) > 5)
            tool(
                "kraftjbod-features",
                *("--bootstrap-server", cluster.bootstrap_servers),
                *("upgrade", "--feature", "kraft.version=1"),
            )
            described = ("--bootstrap-server", cluster.bootstrap_servers, "describe")

            def is_known() -> bool:
                lines = tool("kraftjbod-features", *described).splitlines()
                (line,) = [each for each in lines if each.startswith("Feature: kraft.version ")]
                return "FinalizedVersionLevel: 1 " in line

            cluster.wait("brokers to know", is_known)
            for controller in added:
                controller.format("--no-initial-controllers")
                controller.start()
                quorum.add(controller)
                require_progress()
            assert quorum.voters() == {100, 101, 102}
            # A controller that no broker's file names becomes active.
            first.kill()
            require_progress()
            assert quorum.leader() in (101, 102)
            first.start()
            quorum.wait_observer(100)
            # A replaced disk is another voter, and the former one is removed.
            lost = added[1]
            directory = quorum.replicas()[102]["directoryId"]
            lost.kill()
            (lost.home / "metadata").rename(lost.home / "gone")
            said = quorum.tell("remove-controller", "-i", "102", "-d", directory, "--unregister")
            assert said.endswith("\nUnregistered KRaft controller 102\n")
            assert quorum.registered() == {100, 101}
            lost.format("--no-initial-controllers", "--replace-lost")
            lost.start()
            quorum.add(lost)
            require_progress()
            assert quorum.replicas()[102]["directoryId"] != directory
            # Shrink to one voter; a leader that is removed resigns.
            for node_id in (102, 101):
                quorum.remove(node_id)
                require_progress()
            assert quorum.voters() == {100}
            for controller in added:
                controller.kill()
            require_progress()
            for node_id in ("101", "102"):
                to = ("--bootstrap-server", cluster.bootstrap_servers)
                tool("kraftjbod-cluster", "unregister-controller", *to, "--id", node_id)
            assert quorum.registered() == {100}
        finally:
            for controller in added:
                controller.kill()
        assert set(creator.acknowledged) <= _topics(cluster)
