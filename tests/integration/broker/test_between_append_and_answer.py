"""The coordinator's disk fails between the append of a request and the response to it.

The trap of :mod:`tests.integration.faulty_broker` fails the operation itself: once when only the
leader's file has the batch, and once after a follower has fetched it. Acknowledged data must be
there, unacknowledged data must be there completely or not at all, and no member may be removed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from kraftjbod.broker.internal.coordinators import java_hash
from kraftjbod.local.daemon_process import DaemonProcess
from tests.integration import faulty_broker
from tests.integration.cluster import WAIT_S, Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.faulty_broker import Trap

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.long, pytest.mark.timeout(180)]

PARTITIONS: Final = 3
CONFIG: Final = {
    "group.initial.rebalance.delay.ms": "200",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
# The append to the leader's file, and the data that a follower has fetched of it.
APPENDED, GIVEN = "write_at", "read_cached_at"


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    made = make_cluster(brokers=3, dirs=2, broker_command=faulty_broker.COMMAND, config=CONFIG)
    made.create_topic("t", partitions=PARTITIONS, replication_factor=3)
    return made


def trap(cluster: Cluster, topic: str, name: str, kind: str) -> DaemonProcess:
    """Set the trap at the coordinator of ``name``, and return that broker."""
    index = abs(java_hash(name)) % 4
    leader = cluster.partitions(topic)[index].leader
    broker = cluster.brokers[leader]
    of_partition = f"{topic}-{index}"
    (dying,) = (path for path in broker.files.log_dirs if (Path(path) / of_partition).exists())
    faulty_broker.arm(
        broker, Trap(kind=kind, path=f"*/{of_partition}/*.log", after=True, fail_dir=str(dying))
    )
    return broker


def wait_sprung(cluster: Cluster, broker: DaemonProcess) -> None:
    cluster.wait("the disk to die", lambda: faulty_broker.sprung(broker))
    cluster.wait_event(broker, "log_dir_offline")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("kind", [APPENDED, GIVEN])
def test_offset_commit_is_acknowledged_and_stored_or_neither(
    cluster: Cluster, kind: str, protocol: str
) -> None:
    changes: list[str] = []
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "g",
        "group.protocol": protocol,
        "enable.auto.commit": False,
    }
    member = confluent_kafka.Consumer(settings)
    member.subscribe(
        ["t"],
        on_assign=lambda _, given: changes.append(f"{len(given)} assigned"),
        on_lost=lambda *_: changes.append("lost"),
        on_revoke=lambda *_: changes.append("revoked"),
    )
    end_s = time.monotonic() + WAIT_S
    while len(member.assignment()) < PARTITIONS:
        assert time.monotonic() < end_s, changes
        member.poll(0.1)
    before = list(changes)
    wanted = [TopicPartition("t", index, 7) for index in range(PARTITIONS)]
    member.commit(offsets=[TopicPartition("t", 0, 3)], asynchronous=False)
    broker = trap(cluster, "__consumer_offsets", "g", kind)
    acknowledged = committed(member, wanted)
    wait_sprung(cluster, broker)
    offsets = [one.offset for one in member.committed(wanted, timeout=WAIT_S)]
    assert offsets == [7, 7, 7] or (not acknowledged and offsets == [3, -1001, -1001])
    # The member continues in the same generation at the next coordinator, and commits there.
    end_s = time.monotonic() + WAIT_S
    while not committed(member, wanted):
        assert time.monotonic() < end_s
    for _ in range(20):
        member.poll(0.1)
    assert changes == before
    member.close()
    other = confluent_kafka.Consumer(settings)
    assert [one.offset for one in other.committed(wanted, timeout=WAIT_S)] == [7, 7, 7]
    other.close()


def committed(member: confluent_kafka.Consumer, wanted: list[TopicPartition]) -> bool:
    """Return whether the commit was acknowledged; the code shows if the member was removed."""
    try:
        member.commit(offsets=wanted, asynchronous=False)
    except confluent_kafka.KafkaException as e:
        assert e.args[0].retriable(), e
        return False
    return True


@pytest.mark.parametrize("kind", [APPENDED, GIVEN])
def test_transaction_ends_the_same_way_on_all_partitions(cluster: Cluster, kind: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": "tx", "log_level": 0}
    )
    producer.init_transactions(WAIT_S)
    for number, is_trapped in enumerate((False, True, False)):
        producer.begin_transaction()
        for index in range(PARTITIONS):
            producer.produce("t", f"{number}-{index}".encode(), partition=index)
        assert producer.flush(WAIT_S) == 0
        if is_trapped:
            broker = trap(cluster, "__transaction_state", "tx", kind)
        # After any failure of the coordinator's disk, the client asks the next one and gets a
        # response.
        producer.commit_transaction(WAIT_S)
        if is_trapped:
            wait_sprung(cluster, broker)
    wanted = {f"{number}-{index}".encode() for number in range(3) for index in range(PARTITIONS)}
    assert read_committed(cluster) == sorted(wanted)


def read_committed(cluster: Cluster) -> list[bytes]:
    """Return all committed records once no transaction is open any more."""
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    reader.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
    found: list[bytes] = []
    end_s = time.monotonic() + WAIT_S
    while len(found) < 3 * PARTITIONS:
        assert time.monotonic() < end_s, found
        message = reader.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    # No record follows.
    message = reader.poll(1)
    assert message is None or message.error() is not None
    reader.close()
    return sorted(found)
