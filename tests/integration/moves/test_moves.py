"""Replicas move between the directories of real brokers under load, requested by kafka-python.

Leaders and followers, cancelled moves, a kill during a move, and requests before the replica
exists. Acknowledged records are there afterwards, in order and once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

import pytest

from kraftjbod.local.cluster_process import directory_id
from tests.integration import clients, raw
from tests.integration.checker import Load, judge
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(200)]

PARTITIONS: Final = 3
# Slow enough to interrupt a move, fast enough to wait for its end.
SLOW_BYTES_PER_S: Final = 2_000_000
_RECORD_BYTES: Final = 500_000
_SLOW_RECORDS: Final = 12
_numbers = itertools.count()


@pytest.fixture(scope="module")
def three(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=3, dirs=2)


@pytest.fixture(scope="module")
def slow(make_shared_cluster: MakeCluster) -> Cluster:
    """One broker whose moves take seconds."""
    return make_shared_cluster(
        brokers=1,
        dirs=3,
        config={"replica.alter.log.dirs.io.max.bytes.per.second": str(SLOW_BYTES_PER_S)},
    )


def a_topic(cluster: Cluster, **more: Any) -> str:
    name = f"moves-{next(_numbers)}"
    cluster.create_topic(name, **more)
    return name


def move(cluster: Cluster, topic: str, partition: int, broker: int, where: str) -> str:
    """Request a move, and return the name of the error class."""
    with cluster.admin(broker) as admin:
        answered = admin.alter_replica_log_dirs({(topic, partition, broker): where})
    (error,) = answered.values()
    return str(error.__name__)


def copies(cluster: Cluster, broker: int, topic: str, partition: int = 0) -> dict[str, bool]:
    """Return the directories with the replica, and whether it is a future replica there."""
    with cluster.admin(broker) as admin:
        (answered,) = admin.describe_log_dirs(brokers=[broker])
    return {
        entry["log_dir"]: part["is_future_key"]
        for entry in answered["log_dirs"]
        for found in entry["topics"]
        if found["name"] == topic
        for part in found["partitions"]
        if part["partition_index"] == partition
    }


def other_dir(cluster: Cluster, broker: int, topic: str, partition: int = 0) -> str:
    here = copies(cluster, broker, topic, partition)
    paths = [str(cluster.local.dir_path(broker, n)) for n in (1, 2)]
    return next(path for path in paths if path not in here)


def wait_moved(cluster: Cluster, broker: int, topic: str, partition: int, where: str) -> None:
    """Wait until the replica is only in ``where``, and metadata names that directory."""
    wanted = directory_id(cluster.local.dir_path(broker, 1).parent / where.rpartition("/")[2])

    def moved() -> bool:
        named = cluster.metadata().topic(topic)
        assert named is not None
        place = named.partitions[partition].directory_of(broker)  # type: ignore[arg-type]  # an int
        return copies(cluster, broker, topic, partition) == {where: False} and str(place) == wanted

    cluster.wait(f"{topic}-{partition} of broker {broker} to be in {where}", moved)


def fill(cluster: Cluster, topic: str) -> list[bytes]:
    """Write records whose move takes seconds."""
    values = [b"%03d" % n + b"x" * _RECORD_BYTES for n in range(_SLOW_RECORDS)]
    for value in values:
        assert raw.produce(cluster.brokers[1].address, topic, raw.batch([value]))[0] == 0
    return values


def test_leaders_and_followers_move_under_load(three: Cluster) -> None:
    topic = a_topic(three, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
    with Load(three.bootstrap, topic, PARTITIONS) as load:
        three.wait("load", lambda: load.flowed_since([0] * PARTITIONS, 20), explain=load.explain)
        wanted = {
            (partition, broker): other_dir(three, broker, topic, partition)
            for partition in range(PARTITIONS)
            for broker in three.brokers
        }
        for (partition, broker), where in wanted.items():
            assert move(three, topic, partition, broker, where) == "NoError"
        for (partition, broker), where in wanted.items():
            wait_moved(three, broker, topic, partition, where)
        before = load.acked_by_partition()
        three.wait("load after it", lambda: load.flowed_since(before), explain=load.explain)
        load.stop()
    load.print_gaps("nine replicas moved")
    three.wait_whole(topic)
    assert judge(three.bootstrap, topic, load).findings == []
    gates = [e["gate_ms"] for d in three.brokers.values() for e in d.events("replica_moved")]
    print(f"gates in ms: {sorted(gates)}")


def test_move_resumes_after_kill_of_the_broker(slow: Cluster) -> None:
    topic = a_topic(slow)
    values = fill(slow, topic)
    target = other_dir(slow, 1, topic)
    daemon = slow.brokers[1]
    assert move(slow, topic, 0, 1, target) == "NoError"
    # The directory is reported before the copy is flushed; a kill before would leave nothing to
    # resume.
    copied = f"{topic}-0.*-future/*.log"
    slow.wait("a future copy", lambda: any(f.stat().st_size for f in Path(target).glob(copied)))
    daemon.kill()
    slow.start_daemon(daemon)
    wait_moved(slow, 1, topic, 0, target)
    assert slow.wait_event(daemon, "replica_move_resumed")
    assert clients.read_confluent(slow.bootstrap, topic, _SLOW_RECORDS) == values


@pytest.mark.parametrize("how", ["any", "where it is"])
def test_move_is_cancelled_by_any_or_by_current_directory(slow: Cluster, how: str) -> None:
    topic = a_topic(slow)
    fill(slow, topic)
    (here,) = copies(slow, 1, topic)
    target = other_dir(slow, 1, topic)
    assert move(slow, topic, 0, 1, target) == "NoError"
    slow.wait("a future copy", lambda: copies(slow, 1, topic).get(target) is True)
    assert move(slow, topic, 0, 1, "any" if how == "any" else here) == "NoError"
    wait_moved(slow, 1, topic, 0, here)
    disks = slow.local.dir_path(1, 1).parent
    slow.wait("its files to go", lambda: not list(disks.glob(f"*/{topic}-0.*-future")))


def test_move_to_another_directory_replaces_the_running_one(slow: Cluster) -> None:
    topic = a_topic(slow)
    fill(slow, topic)
    (here,) = copies(slow, 1, topic)
    first, second = (
        str(slow.local.dir_path(1, n)) for n in (1, 2, 3) if str(slow.local.dir_path(1, n)) != here
    )
    assert move(slow, topic, 0, 1, first) == "NoError"
    slow.wait("a future copy", lambda: copies(slow, 1, topic).get(first) is True)
    ids = f"dirid:{directory_id(slow.local.dir_path(1, 1).parent / second.rpartition('/')[2])}"
    assert move(slow, topic, 0, 1, ids) == "NoError"
    wait_moved(slow, 1, topic, 0, second)


def test_replica_is_created_in_directory_requested_before(three: Cluster) -> None:
    for number in (1, 2):
        topic = f"preferred-{number}"
        where = str(three.local.dir_path(2, number))
        assert move(three, topic, 0, 2, where) == "ReplicaNotAvailableError"
        three.create_topic(topic, assignments={0: [2, 1]})
        wait_moved(three, 2, topic, 0, where)


def test_move_refuses_unknown_directory_partition_and_topic(three: Cluster) -> None:
    topic = a_topic(three, replication_factor=3)
    assert move(three, topic, 0, 1, "/nowhere") == "LogDirNotFoundError"
    where = other_dir(three, 1, topic)
    assert move(three, topic, 7, 1, where) == "ReplicaNotAvailableError"
    assert move(three, "x" * 249, 0, 1, where) == "InvalidTopicError"
