"""System tests that the KIPs describe, with real processes, a producer and a consumer.

KIP-113, test 1: every replica moves to the other directory, and to the next broker's other
directory. KIP-113, test 2: failures of the second directories do not affect the first ones.
KIP-858: a directory of the leader, or of a follower, fails under load, with either
``min.insync.replicas``, and the broker may be restarted while its directory still fails."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from kraftjbod.testing import mounts
from tests.integration.checker import Load, judge
from tests.integration.cluster import KAFKA_STORAGE_ERROR, Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.live_consumer import LiveConsumer
from tests.integration.tools import tool

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

BROKERS = (1, 2, 3)
IN_PROGRESS = "in progress"
CONFIG = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A topic's producer and consumer."""

    cluster: Cluster
    load: Load
    consumer: LiveConsumer

    def require_progress(self) -> None:
        before = self.load.acked_by_partition()
        self.cluster.wait(
            "progress in every partition",
            lambda: self.load.flowed_since(before, 20),
            explain=self.load.explain,
        )


@contextlib.contextmanager
def traffic(cluster: Cluster, topic: str, partitions: int = 1) -> Iterator[Traffic]:
    """Produce and consume within the block, and check that no record was lost."""
    with (
        Load(cluster.bootstrap, topic, partitions) as load,
        LiveConsumer(cluster.bootstrap, topic, partitions) as consumer,
    ):
        running = Traffic(cluster=cluster, load=load, consumer=consumer)
        running.require_progress()
        yield running
        load.stop()
        assert consumer.finish(load) == []
    assert judge(cluster.bootstrap, topic, load).findings == []


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=3, dirs=2, config=CONFIG)


def test_kip_113_replicas_move_to_other_directories_and_brokers(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic = "kip113-moves"
    cluster.create_topic(topic, assignments={n: [broker] for n, broker in enumerate(BROKERS)})
    homes = {n: (broker, _home(cluster, broker, topic)) for n, broker in enumerate(BROKERS)}
    with traffic(cluster, topic, len(BROKERS)) as running:
        for steps in (0, 1):
            targets = {n: (b - 1 + steps) % len(BROKERS) + 1 for n, (b, _) in homes.items()}
            homes = {n: (b, _other_dir(cluster, b, topic)) for n, b in targets.items()}
            _reassign(cluster, tmp_path, {(topic, n): [home] for n, home in homes.items()})
            cluster.wait_whole(topic)
            for n, (broker, path) in homes.items():
                assert cluster.replicas_by_dir(broker, topic)[path] == [n]
                assert cluster.partitions(topic)[n].replicas == (broker,)
            running.require_progress()


def test_kip_113_failed_second_directories_leave_the_first_ones_serving(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, second = "kip113-first", "kip113-second"
    for number, topic in enumerate((first, second)):
        cluster.create_topic(topic, replication_factor=3, min_insync_replicas=1)
        homes = [(broker, str(cluster.local.dir_path(broker, number + 1))) for broker in BROKERS]
        _reassign(cluster, tmp_path, {(topic, 0): homes})
        assert all(_home(cluster, broker, topic) == path for broker, path in homes)
    follower = next(b for b in BROKERS if b != cluster.partitions(first)[0].leader)
    with (
        traffic(cluster, first) as on_first,
        traffic(cluster, second) as on_second,
        ExitStack() as faults,
    ):
        for broker in (follower, *(b for b in BROKERS if b != follower)):
            logged = len(cluster.brokers[broker].events("log_dir_offline"))
            bad_dir = str(cluster.local.dir_path(broker, 2))
            faults.enter_context(mounts.closed_to_owner(bad_dir))
            cluster.wait_event(cluster.brokers[broker], "log_dir_offline", logged + 1)
            assert cluster.directories(broker)[bad_dir].error == KAFKA_STORAGE_ERROR
            cluster.wait_whole(first)
            on_first.require_progress()
            if broker == follower:
                cluster.wait("it to be reported", lambda: _is_out(cluster, second, follower))
                on_second.require_progress()
        cluster.wait("no leader", lambda: cluster.partitions(second)[0].leader == -1)
        on_first.require_progress()
        faults.close()
        for daemon in cluster.brokers.values():
            cluster.stop_daemon(daemon)
            cluster.start_daemon(daemon)
        cluster.wait_whole(second)
        on_second.require_progress()


@pytest.mark.parametrize("bounce", [False, True], ids=["stays", "bounced"])
@pytest.mark.parametrize("min_isr", [1, 2], ids=["min-isr-1", "min-isr-2"])
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_kip_858_failed_directory_of_one_replica_keeps_the_broker_serving(
    cluster: Cluster, tmp_path: Path, role: str, min_isr: int, bounce: bool
) -> None:
    """Its replica leaves leadership and in-sync set; the broker's other directory serves."""
    name = f"kip858-{next(_numbers)}"
    for topic in (f"{name}-good", f"{name}-bad"):
        cluster.create_topic(topic, replication_factor=3, min_insync_replicas=min_isr)
    good, bad = f"{name}-good", f"{name}-bad"
    leader = cluster.partitions(bad)[0].leader
    victim = leader if role == "leader" else next(b for b in BROKERS if b != leader)
    daemon = cluster.brokers[victim]
    bad_dir = _home(cluster, victim, bad)
    if _home(cluster, victim, good) == bad_dir:
        other = _other_dir(cluster, victim, good)
        replicas = cluster.partitions(good)[0].replicas
        homes = [(broker, other if broker == victim else "any") for broker in replicas]
        _reassign(cluster, tmp_path, {(good, 0): homes})
    with traffic(cluster, good) as on_good, traffic(cluster, bad) as on_bad, ExitStack() as faults:
        logged = len(daemon.events("log_dir_offline"))
        faults.enter_context(mounts.closed_to_owner(bad_dir))
        cluster.wait_event(daemon, "log_dir_offline", logged + 1)
        if bounce:
            cluster.stop_daemon(daemon)
            cluster.start_daemon(daemon)
        cluster.wait("the replica to be reported offline", lambda: _is_out(cluster, bad, victim))
        cluster.wait_whole(good)
        assert cluster.directories(victim)[bad_dir].error == KAFKA_STORAGE_ERROR
        on_good.require_progress()
        on_bad.require_progress()
        if min_isr == 1:
            _serves_alone(cluster, victim, on_good)
        faults.close()
        cluster.stop_daemon(daemon)
        cluster.start_daemon(daemon)
        cluster.wait_whole(bad)
    with cluster.admin() as admin:
        admin.delete_topics([good, bad])


def _serves_alone(cluster: Cluster, victim: int, on_good: Traffic) -> None:
    """Assert that the victim's good directory is written and read when no other broker runs."""
    others = [cluster.brokers[broker] for broker in BROKERS if broker != victim]
    for other in others:
        cluster.stop_daemon(other)
    on_good.require_progress()
    for other in others:
        other.start()
    cluster.wait_healthy()
    on_good.require_progress()


def _reassign(
    cluster: Cluster, files: Path, wanted: Mapping[tuple[str, int], list[tuple[int, str]]]
) -> None:
    """Move partitions to brokers and directories by kraftjbod-reassign-partitions."""
    plan = files / "plan.json"
    entries = [
        {
            "topic": topic,
            "partition": index,
            "replicas": [broker for broker, _ in homes],
            "log_dirs": [path for _, path in homes],
        }
        for (topic, index), homes in wanted.items()
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": entries}))

    def run(action: str) -> str:
        words = (f"--{action}", "--reassignment-json-file", str(plan))
        done = tool("reassign-partitions", cluster, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("execute")
    cluster.wait("the reassignment to end", lambda: IN_PROGRESS not in run("verify"))


def _other_dir(cluster: Cluster, broker: int, topic: str) -> str:
    """Return the directory of a broker that has no partition of the topic."""
    held = cluster.replicas_by_dir(broker, topic)
    return next(path for path, partitions in held.items() if not partitions)


def _home(cluster: Cluster, broker: int, topic: str) -> str:
    """Return the directory of partition 0 on a broker."""
    (path,) = (path for path, held in cluster.replicas_by_dir(broker, topic).items() if held)
    return path


def _is_out(cluster: Cluster, topic: str, broker: int) -> bool:
    part = cluster.partitions(topic)[0]
    return broker in part.offline and broker not in part.isr and part.leader not in (broker, -1)
