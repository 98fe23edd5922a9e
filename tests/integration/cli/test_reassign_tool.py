"""``bin/kraftjbod-reassign-partitions`` used like an operator does, on a cluster of real processes.

Another client checks where the replicas are, and whether all records are there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import ConfigResource, ResourceType, describe_configs
from kraftjbod.cli.reassignment.reassignment_throttles import BROKER_THROTTLES, TOPIC_THROTTLES
from tests.integration.clients import read_confluent, write_confluent
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.tools import Done, started, tool

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(120)]

BROKERS = (1, 2, 3)
VALUES = [b"%06d" % index + bytes(1000) for index in range(4000)]
# So slow that a move of VALUES takes more than half a minute; a cancelled move need not end.
SLOW = "100000"


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Iterator[Cluster]:
    yield make_shared_cluster(brokers=3, dirs=2)


class Operator:
    """An operator with a shell, a directory for files, and a cluster."""

    def __init__(self, cluster: Cluster, files: Path) -> None:
        self.cluster = cluster
        self._plan = files / "plan.json"
        self._topics = files / "topics.json"

    def call(self, action: str, *words: str, run: Callable[..., Done] = tool) -> Done:
        if action != "list":
            words = ("--reassignment-json-file", str(self._plan), *words)
        return run("reassign-partitions", self.cluster, f"--{action}", *words)

    def lines(self, action: str, *words: str) -> list[str]:
        done = self.call(action, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def plan(
        self, topic: str, replicas: Sequence[int], log_dirs: Sequence[str] | None = None
    ) -> None:
        """Write a plan that places partition 0 of ``topic``."""
        entry: dict[str, Any] = {"topic": topic, "partition": 0, "replicas": replicas}
        if log_dirs is not None:
            entry["log_dirs"] = log_dirs
        self.use(json.dumps({"version": 1, "partitions": [entry]}))

    def use(self, document: str) -> None:
        self._plan.write_text(document)

    def propose(self, topic: str, brokers: str) -> Done:
        self._topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
        words = ("--topics-to-move-json-file", str(self._topics), "--broker-list", brokers)
        return tool("reassign-partitions", self.cluster, "--generate", *words)

    def where(self, topic: str) -> dict[int, str]:
        """Return the directory of partition 0 on each broker that has it, as log-dirs shows it."""
        answered = tool("log-dirs", self.cluster, "--describe", "--format", "json")
        return {
            broker["broker"]: log_dir["logDir"]
            for broker in json.loads(answered.stdout)["brokers"]
            for log_dir in broker["logDirs"]
            for replica in log_dir["partitions"]
            if replica["partition"] == f"{topic}-0" and not replica["isFuture"]
        }

    def ids(self, broker: int) -> Mapping[str, str]:
        """Return directory ids by path."""
        words = ("--describe", "--format", "json", "--broker-list", str(broker))
        [printed] = json.loads(tool("log-dirs", self.cluster, *words).stdout)["brokers"]
        return {log_dir["logDir"]: log_dir["directoryId"] for log_dir in printed["logDirs"]}

    def throttles(self, topic: str) -> dict[str, str | None]:
        """Return all throttles that are set on the topic or on a broker."""

        async def ask() -> dict[str, str | None]:
            resources = [ConfigResource(ResourceType.BROKER, str(broker)) for broker in BROKERS]
            async with ClusterClient(self.cluster.bootstrap) as client:
                await client.refresh_metadata()
                answered = await describe_configs(
                    client, [ConfigResource(ResourceType.TOPIC, topic), *resources]
                )
            return {
                f"{resource} {name}": entries[name].value
                for resource, entries in answered.items()
                for name in (*TOPIC_THROTTLES, *BROKER_THROTTLES)
                if name in entries and "DYNAMIC" in entries[name].source.name
            }

        return asyncio.run(ask())


@pytest.fixture
def operator(cluster: Cluster, tmp_path: Path) -> Operator:
    return Operator(cluster, tmp_path)


def filled(cluster: Cluster, topic: str, *brokers: int) -> None:
    cluster.create_topic(topic, assignments={0: brokers})
    write_confluent(cluster.bootstrap, topic, VALUES)


def require_complete(cluster: Cluster, topic: str, *brokers: int) -> None:
    """Assert that exactly these brokers are in sync and all records are there."""
    cluster.wait_whole(topic)
    assert cluster.partitions(topic)[0].replicas == brokers
    assert read_confluent(cluster.bootstrap, topic, len(VALUES)) == VALUES


def test_proposal_is_executed_and_rolled_back(cluster: Cluster, operator: Operator) -> None:
    """The rollback file names directories, so that every replica returns to its old disk."""
    filled(cluster, "moved", 1, 2)
    before = operator.where("moved")
    refused = operator.propose("moved", "3")
    assert "Replication factor: 2 larger than available brokers: 1." in refused.stderr
    title, current, _, proposed_title, proposed = operator.propose("moved", "2,3").stdout.split(
        "\n"
    )[:5]
    assert title == "Current partition replica assignment"
    assert proposed_title == "Proposed partition reassignment configuration"
    [shown] = json.loads(current)["partitions"]
    assert shown["replicas"] == [1, 2]
    assert shown["log_dirs"] == [before[1], before[2]]
    [wanted] = json.loads(proposed)["partitions"]
    assert sorted(wanted["replicas"]) == [2, 3]
    operator.use(proposed)
    lines = operator.lines("execute", "--progress")
    assert "Successfully started partition reassignment for moved-0" in lines
    assert "Reassignment of partition moved-0 is completed." in lines
    assert lines[2] == current
    require_complete(cluster, "moved", *wanted["replicas"])

    operator.use(current)
    lines = operator.lines("execute", "--progress")
    assert "Reassignment of replica moved-0-1 completed successfully." in lines
    require_complete(cluster, "moved", 1, 2)
    assert operator.where("moved") == before
    assert "Reassignment of partition moved-0 is completed." in operator.lines("verify")


def test_execute_moves_replica_to_directory_named_by_path_or_id(
    cluster: Cluster, operator: Operator
) -> None:
    filled(cluster, "placed", 1)
    here = operator.where("placed")[1]
    [other] = set(operator.ids(1)) - {here}
    for target in (other, f"dirid:{operator.ids(1)[here]}"):
        operator.plan("placed", [1], [target])
        lines = operator.lines("execute", "--progress")
        path = other if target == other else here
        assert (
            f"Successfully started moving log directory to {path} for replica placed-0 with"
            " broker 1" in lines
        )
        assert "Reassignment of replica placed-0-1 completed successfully." in lines
        assert operator.where("placed") == {1: path}
        require_complete(cluster, "placed", 1)
    for path, directory_id in operator.ids(2).items():
        operator.plan("placed", [2, 1], [f"dirid:{directory_id}", "any"])
        operator.lines("execute", "--progress")
        assert operator.where("placed")[2] == path
        require_complete(cluster, "placed", 2, 1)


def test_execute_to_unknown_directory_is_refused_before_any_move(
    cluster: Cluster, operator: Operator
) -> None:
    filled(cluster, "refused", 1)
    operator.plan("refused", [2], ["/nowhere"])
    done = operator.call("execute", run=started)
    assert done.returncode == 1
    assert "refused-0-2: broker 2 has no log directory /nowhere; it has " in done.stderr
    assert all(directory_id in done.stderr for directory_id in operator.ids(2).values())
    listed = operator.call("list", run=started)
    assert listed.stdout.splitlines() == ["No partition reassignments found."]
    require_complete(cluster, "refused", 1)


@pytest.mark.long
def test_move_between_directories_is_throttled_shown_and_cancelled(
    cluster: Cluster, operator: Operator
) -> None:
    filled(cluster, "slowed", 1)
    here = operator.where("slowed")[1]
    [other] = set(operator.ids(1)) - {here}
    operator.plan("slowed", [1], [other])
    lines = operator.lines("execute", "--replica-alter-log-dirs-throttle", SLOW)
    assert f"The replica-alter-dir throttle limit was set to {SLOW} B/s" in lines
    assert operator.throttles("slowed") == {
        "broker 1 replica.alter.log.dirs.io.max.bytes.per.second": SLOW
    }
    assert operator.lines("verify") == [
        "Status of partition reassignment:",
        "Reassignment of partition slowed-0 is completed.",
        "Reassignment of replica slowed-0-1 is still in progress.",
    ]
    table = tool("log-dirs", cluster, "--describe", "--format", "table").stdout
    assert f"slowed-0 on broker 1: {here} -> {other}, " in table
    assert operator.lines("cancel") == [
        "None of the specified partition reassignments are active.",
        f"Successfully started moving log directory to {here} for replica slowed-0 with broker 1",
        "Clearing broker-level throttles on brokers 1,2,3",
        "Clearing topic-level throttles on topic slowed",
    ]
    assert operator.throttles("slowed") == {}
    assert (
        f"Partition slowed-0 on broker 1 is not being moved from log dir {here} to {other}."
        in operator.lines("verify")
    )
    assert operator.where("slowed") == {1: here}
    require_complete(cluster, "slowed", 1)


def test_move_between_brokers_is_throttled_listed_and_cancelled(
    cluster: Cluster, operator: Operator
) -> None:
    filled(cluster, "listed", 1)
    operator.plan("listed", [2])
    lines = operator.lines("execute", "--throttle", SLOW)
    assert f"The inter-broker throttle limit was set to {SLOW} B/s" in lines
    assert operator.throttles("listed") == {
        "topic listed leader.replication.throttled.replicas": "0:1",
        "topic listed follower.replication.throttled.replicas": "0:2",
        **{
            f"broker {broker} {side}.replication.throttled.rate": SLOW
            for broker in (1, 2)
            for side in ("leader", "follower")
        },
    }
    assert operator.lines("list") == [
        "Current partition reassignments:",
        "listed-0: replicas: 2,1. adding: 2. removing: 1.",
    ]
    assert operator.lines("verify")[1] == (
        "Reassignment of partition listed-0 is still in progress."
    )
    again = operator.call("execute")
    assert again.returncode == 1
    assert again.stderr.startswith("error: Cannot execute because there is an existing partition")
    assert operator.lines("cancel") == [
        "Successfully cancelled partition reassignment for: listed-0",
        "None of the specified partition moves are active.",
        "Clearing broker-level throttles on brokers 1,2,3",
        "Clearing topic-level throttles on topic listed",
    ]
    assert operator.throttles("listed") == {}
    require_complete(cluster, "listed", 1)


@pytest.mark.long
def test_verify_removes_throttle_after_completion(cluster: Cluster, operator: Operator) -> None:
    filled(cluster, "sped", 1)
    operator.plan("sped", [3], [next(iter(operator.ids(3)))])
    words = ("--throttle", SLOW, "--replica-alter-log-dirs-throttle", SLOW)
    operator.lines("execute", *words)
    assert operator.throttles("sped")
    words = ("--throttle", "1000000000", "--replica-alter-log-dirs-throttle", "1000000000")
    operator.lines("execute", "--additional", *words)
    lines = operator.lines("verify", "--progress")
    assert lines == [
        "Status of partition reassignment:",
        "Reassignment of partition sped-0 is completed.",
        "Reassignment of replica sped-0-3 completed successfully.",
        "Clearing broker-level throttles on brokers 1,2,3",
        "Clearing topic-level throttles on topic sped",
    ]
    assert operator.throttles("sped") == {}
    require_complete(cluster, "sped", 3)
