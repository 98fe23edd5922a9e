"""Records that brokers write to ``__storage_telemetry``, read by a foreign client.

The clusters are real, and samples are taken every few hundred milliseconds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.local.cluster_process import directory_id
from kraftjbod.local.daemon_process import DaemonProcess
from tests.integration import raw
from tests.integration.checker import read
from tests.integration.cluster import Cluster, read_metrics
from tests.integration.conftest import MakeCluster
from tests.integration.full_disks import logs_on, small_disks, wait_state
from tests.integration.tools import tool

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(180)]

TOPIC: Final = "__storage_telemetry"
ON: Final = {
    "storage.telemetry.enable": "true",
    "storage.telemetry.log.dir.interval.ms": "300",
    "storage.telemetry.replica.interval.ms": "600",
}
VALUE: Final = b"x" * 10_000
Sample = dict[str, Any]
_names = (f"telemetry-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def three(make_shared_cluster: MakeCluster) -> Cluster:
    return started(make_shared_cluster, brokers=3, dirs=2)


def started(make: MakeCluster, **parameters: Any) -> Cluster:
    """Start a cluster whose brokers send telemetry, and wait until the topic exists."""
    cluster = make(**{**parameters, "config": {**ON, **parameters.get("config", {})}})
    wait_topic(cluster)
    return cluster


def wait_topic(cluster: Cluster) -> None:
    def is_there() -> bool:
        with cluster.admin() as admin:
            return TOPIC in admin.list_topics()

    cluster.wait(f"{TOPIC} to be there", is_there)


def samples(cluster: Cluster) -> list[Sample]:
    """Return all records of the topic, by partition and in order."""
    return [
        json.loads(value)
        for index in sorted(cluster.partitions(TOPIC))
        for _, value in read(cluster.bootstrap, TOPIC, index)
    ]


def wait_sample(
    cluster: Cluster, what: str, holds: Callable[[Sample], object], **wanted: object
) -> Sample:
    """Wait for a record with the ``wanted`` fields for which ``holds``, and return the newest
    one."""
    found: list[Sample] = []

    def look() -> bool:
        all_wanted = [s for s in samples(cluster) if wanted.items() <= s.items()]
        found[:] = [s for s in all_wanted if holds(s)] or all_wanted[-1:]
        return bool(found) and bool(holds(found[-1]))

    cluster.wait(f"a record of {what}", look, explain=lambda: f"the last one is {found}")
    return found[-1]


def produce(cluster: Cluster, topic: str, count: int = 3) -> int:
    """Produce to partition 0 of ``topic``, and return the size of the batches in bytes."""
    leader = cluster.brokers[cluster.partitions(topic)[0].leader]
    records = raw.batch([VALUE])
    for _ in range(count):
        assert raw.produce(leader.address, topic, records)[0] == 0
    return count * len(records)


def figure(daemon: DaemonProcess, name: str) -> float:
    return read_metrics(daemon).get(name, 0)


# --- contents ------------------------------------------------------------------------------------


def test_samples_describe_replicas_and_directories(three: Cluster) -> None:
    topic = next(_names)
    three.create_topic(topic, replication_factor=3)
    size_bytes = produce(three, topic)
    assert len(list(read(three.bootstrap, topic, 0))) == 3
    part = three.partitions(topic)[0]
    for broker_id in three.brokers:
        is_leader = broker_id == part.leader
        answered = wait_sample(
            three,
            f"all of {topic} on broker {broker_id}",
            # Two followers and a consumer fetched it from the leader.
            lambda s, least=3 * size_bytes if is_leader else 0: (
                s["appended_bytes_total"] == size_bytes and s["fetched_bytes_total"] >= least
            ),
            kind="replica",
            topic=topic,
            broker_id=broker_id,
        )
        ((path, _),) = (
            (path, found)
            for path, found in three.directories(broker_id).items()
            if f"{topic}-0" in found.sizes
        )
        assert answered["path"] == path
        assert answered["directory_id"] == directory_id(
            three.local.dir_path(broker_id, 1).parent / path
        )
        assert (answered["is_leader"], answered["is_future"]) == (is_leader, False)
        assert (answered["size_bytes"], answered["log_end_offset"]) == (size_bytes, 3)
        assert tuple(answered["brokers"]) == part.replicas
        log_dir = wait_sample(
            three,
            f"{path} with {topic} in it",
            lambda s: s["replica_bytes"] >= size_bytes <= s["appended_bytes_total"],
            kind="log_dir",
            path=path,
        )
        assert log_dir["state"] == "online"
        assert log_dir["total_bytes"] >= log_dir["free_bytes"] > 0
        assert log_dir["io_total"] == sum(log_dir["io_counts"]) > 0
        assert log_dir["cluster_id"] == three.local.cluster_id


def test_sample_shows_cordon(three: Cluster) -> None:
    path = str(three.local.dir_path(3, 2))
    words = ("--alter", "--entity-type", "brokers", "--entity-name", "3")
    done = tool("configs", three, *words, "--add-config", f"cordoned.log.dirs=[{path}]")
    assert done.returncode == 0, done.stderr
    wait_sample(three, "a cordon", lambda s: s["is_cordoned"], kind="log_dir", path=path)
    assert tool("configs", three, *words, "--delete-config", "cordoned.log.dirs").returncode == 0


def test_samples_show_move_in_progress_and_its_end(three: Cluster) -> None:
    topic = next(_names)
    three.create_topic(topic, assignments={0: [2]})
    size_bytes = produce(three, topic, 100)
    words = ("--alter", "--entity-type", "brokers", "--entity-name", "2")
    slow = "replica.alter.log.dirs.io.max.bytes.per.second"
    assert tool("configs", three, *words, "--add-config", f"{slow}=150000").returncode == 0
    (source,) = (p for p, held in three.replicas_by_dir(2, topic).items() if held)
    (target,) = (p for p in three.directories(2) if p != source)
    with three.admin(2) as admin:
        admin.alter_replica_log_dirs({(topic, 0, 2): target})
    into = wait_sample(
        three, "a move into it", lambda s: s["moves_in"] == 1, kind="log_dir", path=target
    )
    assert 0 < into["moves_remaining_bytes"] <= size_bytes
    wait_sample(three, "a move out", lambda s: s["moves_out"] == 1, kind="log_dir", path=source)
    future = wait_sample(
        three, "a future copy", lambda s: s["is_future"], kind="replica", topic=topic
    )
    assert (future["path"], future["is_leader"]) == (target, False)
    assert tool("configs", three, *words, "--delete-config", slow).returncode == 0
    moved = wait_sample(
        three,
        "the replica in its new place",
        lambda s: s["path"] == target and not s["is_future"],
        kind="replica",
        topic=topic,
    )
    assert (moved["size_bytes"], moved["appended_bytes_total"]) == (size_bytes, size_bytes)


# --- the topic ------------------------------------------------------------------------------------


def test_telemetry_topic_is_internal_with_replicas_and_retention(three: Cluster) -> None:
    assert {len(part.replicas) for part in three.partitions(TOPIC).values()} == {3}
    shown = json.loads(tool("topics", three, "--describe", "--topic", TOPIC, "--json").stdout)
    assert [topic["is_internal"] for topic in shown["topics"]] == [True]
    assert TOPIC in tool("topics", three, "--list").stdout.split()
    assert TOPIC not in tool("topics", three, "--list", "--exclude-internal").stdout.split()
    configs = tool(
        "configs", three, "--describe", "--entity-type", "topics", "--entity-name", TOPIC
    )
    for bound in ("retention.ms=604800000", "retention.bytes=134217728", "segment.bytes=16777216"):
        assert bound in configs.stdout


def test_telemetry_topic_of_single_broker_is_recreated_after_deletion(
    make_cluster: MakeCluster,
) -> None:
    cluster = started(make_cluster, brokers=1, dirs=1)
    assert {len(part.replicas) for part in cluster.partitions(TOPIC).values()} == {1}
    wait_sample(cluster, "itself", bool, broker_id=1)
    before = cluster.metadata().topic_ids[TOPIC]
    assert tool("topics", cluster, "--delete", "--topic", TOPIC).returncode == 0
    cluster.wait("another one", lambda: cluster.metadata().topic_ids.get(TOPIC, before) != before)
    wait_sample(cluster, "itself again", bool, broker_id=1)


def test_broker_with_disabled_telemetry_sends_none(make_cluster: MakeCluster) -> None:
    off = {2: {"storage.telemetry.enable": "false"}}
    cluster = started(make_cluster, brokers=2, dirs=1, broker_config=off)
    wait_sample(cluster, "the other one", bool, broker_id=1)
    assert {s["broker_id"] for s in samples(cluster)} == {1}


# --- faults ---------------------------------------------------------------------------------------


def test_telemetry_continues_over_leader_death_and_directory_failure(
    make_cluster: MakeCluster,
) -> None:
    """A sample of the failed directory reports only that it is offline."""
    cluster = started(
        make_cluster,
        brokers=3,
        dirs=2,
        config={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"},
    )
    cluster.create_topic("t", assignments={0: [2, 1]})
    size_bytes = produce(cluster, "t")
    first = wait_sample(
        cluster,
        "broker 2's counters",
        lambda s: s["appended_bytes_total"] == size_bytes,
        kind="replica",
        topic="t",
        broker_id=2,
    )
    cluster.brokers[2].kill()
    cluster.wait(
        "other leaders",
        lambda: 2 not in {p.leader for p in cluster.partitions(TOPIC, ask=1).values()},
    )
    reported_ms = max(sample["time_ms"] for sample in samples(cluster))
    for broker_id in (1, 3):
        wait_sample(
            cluster,
            f"broker {broker_id} without broker 2",
            lambda s: s["time_ms"] > reported_ms,
            broker_id=broker_id,
        )
    cluster.start_daemon(cluster.brokers[2])
    again = wait_sample(
        cluster,
        "another life of broker 2",
        lambda s: s["incarnation"] != first["incarnation"],
        kind="replica",
        topic="t",
        broker_id=2,
    )
    # The replica was complete, so this incarnation has appended nothing.
    assert (again["size_bytes"], again["appended_bytes_total"]) == (size_bytes, 0)
    path = cluster.local.dir_path(1, 2)
    before = wait_sample(cluster, "a directory", bool, kind="log_dir", path=str(path))
    path.chmod(0)
    try:
        dead = wait_sample(
            cluster,
            "a dead directory",
            lambda s: s["state"] == "offline",
            kind="log_dir",
            path=str(path),
        )
    finally:
        path.chmod(0o755)
    assert (dead["total_bytes"], dead["io_total"], dead["io_counts"]) == (0, 0, [])
    back = tool("log-dirs", cluster, "--reattach", f"1:{path}")
    assert back.returncode == 0, back.stdout + back.stderr
    alive = wait_sample(
        cluster,
        "the directory again",
        lambda s: s["state"] == "online" and s["since_ms"] > before["since_ms"],
        kind="log_dir",
        path=str(path),
    )
    assert alive["directory_id"] == before["directory_id"]


def test_samples_are_dropped_while_the_topic_has_no_leader(
    make_cluster: MakeCluster,
) -> None:
    """The topic's only replica is on one of two brokers."""
    alone = {
        "storage.telemetry.topic.partitions": "1",
        "storage.telemetry.topic.replication.factor": "1",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
    cluster = started(make_cluster, brokers=2, dirs=1, config=alone)
    (leader_id,) = cluster.partitions(TOPIC)[0].replicas
    leader, other = cluster.brokers[leader_id], cluster.brokers[3 - leader_id]
    wait_sample(cluster, "the other one", bool, broker_id=3 - leader_id)
    cluster.create_topic("t", assignments={0: [3 - leader_id]})
    leader.kill()
    dropped = figure(other, "StorageTelemetryDroppedTotal")
    cluster.wait_event(other, "samples_dropped")
    cluster.wait(
        "more to be dropped",
        lambda: figure(other, "StorageTelemetryDroppedTotal") > dropped + 10,
    )
    assert len(other.events("samples_dropped")) == 1
    assert raw.produce(other.address, "t", raw.batch([VALUE]))[0] == 0
    cluster.start_daemon(leader)
    cluster.wait_event(other, "samples_sent_again")
    wait_sample(cluster, "both", bool, broker_id=leader_id)


@pytest.mark.disk
def test_sample_of_full_disk_arrives_at_leader_elsewhere(make_cluster: MakeCluster) -> None:
    with small_disks(1) as disks:
        (path,) = logs_on(disks)
        cluster = started(make_cluster, brokers=3, dirs=1, log_dirs={2: [path]})
        try:
            disks[0].fill()
            wait_state(cluster, 2, path, LogDirState.SATURATED)
            full = wait_sample(
                cluster,
                "a full disk",
                lambda s: s["state"] == "saturated",
                kind="log_dir",
                path=str(path),
            )
            assert full["broker_id"] == 2
            assert full["free_bytes"] < full["total_bytes"] / 10
        finally:
            # Open files would keep the disk from being unmounted.
            cluster.local.kill()
