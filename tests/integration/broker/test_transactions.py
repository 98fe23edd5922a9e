"""Transactions with foreign clients: all records or none despite failures."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient

from kraftjbod.broker.internal.coordinators import java_hash
from kraftjbod.testing.local_cluster import Broker, LocalCluster
from tests.checkout import ROOT
from tests.integration import transactional_copier as copier
from tests.integration.cluster import WAIT_S, Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.long]

STATE_PARTITIONS = 3
QUICK = {
    "group.initial.rebalance.delay.ms": "200",
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
}
PARTITIONS = 3
ROUNDS = 6

# Each seed uses all faults, in its own order.
FAULTS = ["kill", "eio", "full", "hang", "client", "zombie", "kill", "eio"]
SENT_A_ROUND = 200
# Until copies arrive; the open transaction of a dead client may have to time out first.
SEARCH_WAIT_S = 180.0
# A copier without progress for so long is killed and restarted, as a supervisor would do.
STUCK_S = 60.0


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=3, dirs=2, config=QUICK)


def values(number: int) -> list[tuple[int, bytes]]:
    """Return the values of one transaction, with the partition of each."""
    return [(index, f"{number}-{index}".encode()) for index in range(PARTITIONS)]


def write_by_confluent(bootstrap: str, topic: str) -> None:
    """Write transactions of which every other one is aborted, and fence the producer by a second
    one."""
    settings = {"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(WAIT_S)
    for number in range(ROUNDS):
        producer.begin_transaction()
        for partition, value in values(number):
            producer.produce(topic, value, partition=partition)
        producer.flush(WAIT_S)
        end = producer.abort_transaction if number % 2 else producer.commit_transaction
        end(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"of a zombie", partition=0)
    producer.flush(WAIT_S)
    confluent_kafka.Producer(settings).init_transactions(WAIT_S)
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        producer.commit_transaction(WAIT_S)
    assert fenced.value.args[0].code() == confluent_kafka.KafkaError._FENCED


def write_by_aiokafka(bootstrap: str, topic: str) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
        await producer.start()
        for number in range(ROUNDS):
            await producer.begin_transaction()
            for partition, value in values(number):
                await producer.send_and_wait(topic, value, partition=partition)
            await (producer.abort_transaction if number % 2 else producer.commit_transaction)()
        await producer.stop()

    asyncio.run(write())


def write_by_kafka_python(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic)
    producer.init_transactions()
    for number in range(ROUNDS):
        producer.begin_transaction()
        for partition, value in values(number):
            producer.send(topic, value, partition=partition)
        producer.flush()
        (producer.abort_transaction if number % 2 else producer.commit_transaction)()
    producer.close()


def committed(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Read committed records until ``count`` were found or the end is reached."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    found: list[bytes] = []
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(WAIT_S)
        assert message is not None, found
        if message.error() is None:
            found.append(message.value() or b"")
        elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ends += 1
    consumer.close()
    assert len(found) == count, found
    return sorted(found)


@pytest.mark.parametrize("write", [write_by_confluent, write_by_aiokafka, write_by_kafka_python])
def test_aborted_transactions_are_invisible_to_committed_readers(
    cluster: Cluster, write: object
) -> None:
    topic = f"t-{write.__name__}"  # type: ignore[attr-defined]  # functions of this module
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    write(cluster.bootstrap, topic)  # type: ignore[operator]  # functions of this module
    wanted = [value for number in range(0, ROUNDS, 2) for _, value in values(number)]
    assert committed(cluster.bootstrap, topic, len(wanted)) == sorted(wanted)


class Copiers:
    """One copier at a time, besides zombies: a newer copier fences it, or it was killed before."""

    def __init__(self, bootstrap: str, errors: Path) -> None:
        self._arguments = [bootstrap, "numbers", "copies", "copier"]
        self._errors = errors
        self._running: list[subprocess.Popen[bytes]] = []
        self.codes: list[int] = []

    def start(self) -> None:
        command = [sys.executable, "-m", copier.__name__, *self._arguments]
        with self._errors.open("ab") as errors:
            self._running.append(subprocess.Popen(command, cwd=ROOT, stderr=errors))

    def kill(self) -> None:
        """Kill all copiers without waiting for them, like a machine that lost power."""
        for one in self._running:
            one.kill()
            self.codes.append(one.wait())
        self._running.clear()

    def revive(self) -> None:
        """Start a copier if none runs; it may have failed on a fault that lasted too long."""
        for one in list(self._running):
            code = one.poll()
            if code is not None:
                self._running.remove(one)
                self.codes.append(code)
        if not self._running:
            self.start()

    def story(self) -> str:
        return f"ended with {self.codes}: {self._errors.read_text()[-2000:]}"


class Judge:
    """Reads committed records continuously; records once read must stay."""

    def __init__(self, bootstrap: str) -> None:
        self.found: list[list[int]] = [[] for _ in range(copier.COPIES)]
        self._reader = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "judge",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._reader.assign(
            [confluent_kafka.TopicPartition("copies", each, 0) for each in range(copier.COPIES)]
        )

    def read_until(self, count: int, copiers: Copiers | None) -> None:
        """Read until each partition has ``count`` records; ``copiers`` are revived meanwhile."""
        deadline_s = time.monotonic() + SEARCH_WAIT_S
        stuck_at_s = time.monotonic() + STUCK_S
        while min(map(len, self.found)) < count:
            message = self._reader.poll(0.2)
            if message is not None and message.error() is None:
                self.found[message.partition() or 0].append(int(message.value() or b""))
                stuck_at_s = time.monotonic() + STUCK_S
            if copiers is not None:
                if time.monotonic() > stuck_at_s:
                    copiers.kill()
                    stuck_at_s = time.monotonic() + STUCK_S
                copiers.revive()
            assert time.monotonic() < deadline_s, (
                f"{[len(each) for each in self.found]} of {count} copied; "
                f"{copiers.story() if copiers is not None else 'no copiers'}"
            )

    def expect_nothing(self) -> None:
        """Expect no further record. The judge is not used afterwards."""
        message = self._reader.poll(2)
        assert message is None, message.value()
        self._reader.close()


def leader_of(cluster: LocalCluster, topic: str, partition: int) -> Broker:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    found: list[int] = []

    def is_led() -> bool:
        found[:] = [admin.list_topics(timeout=30).topics[topic].partitions[partition].leader]
        return found[0] >= 0

    cluster.wait(f"{topic}-{partition} has a leader", is_led)
    return cluster.broker(found[0])


def hurt(
    cluster: LocalCluster, copiers: Copiers, chooser: random.Random, fault: str
) -> Callable[[], None]:
    """Break something that a transaction needs, and return a function that repairs it."""
    if fault == "client":
        copiers.kill()
        return _nothing
    if fault == "zombie":
        copiers.start()
        return _nothing
    coordinated = abs(java_hash("copier")) % STATE_PARTITIONS
    topic, partition = chooser.choice(
        [("__transaction_state", coordinated), ("__consumer_offsets", coordinated), ("copies", 0)]
    )
    broker = leader_of(cluster, topic, partition)
    if fault == "kill":
        broker.kill()
        return broker.start
    (directory,) = [one for one in broker.dirs if (one.path / f"{topic}-{partition}").exists()]
    directory.fail(fault)

    def mend() -> None:
        directory.heal()
        cluster.wait("it settles", lambda: directory.state in ("online", "offline"))
        if directory.state == "offline":
            directory.reattach()

    return mend


def _nothing() -> None:
    pass


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
def test_transactional_copies_are_exact_over_faults(seed: int, tmp_path: Path) -> None:
    """Brokers, disks and the client itself fail during reading, writing and committing."""
    chooser = random.Random(seed)
    config = {**QUICK, "offsets.topic.num.partitions": str(STATE_PARTITIONS)}
    with LocalCluster(brokers=3, dirs=2, disks="fuse", config=config) as cluster:
        cluster.create_topic("numbers", partitions=2)
        cluster.create_topic("copies", partitions=copier.COPIES)
        copiers = Copiers(cluster.bootstrap_servers, tmp_path / "copiers.txt")
        judge = Judge(cluster.bootstrap_servers)
        sender = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
        sent = 0

        def send() -> None:
            nonlocal sent
            for number in range(sent, sent + SENT_A_ROUND):
                sender.produce("numbers", str(number))
            assert sender.flush(WAIT_S) == 0
            sent += SENT_A_ROUND

        try:
            send()
            judge.read_until(SENT_A_ROUND // 2, copiers)
            for fault in chooser.sample(FAULTS, len(FAULTS)):
                send()
                time.sleep(chooser.random())
                mend = hurt(cluster, copiers, chooser, fault)
                judge.read_until(sent - chooser.randrange(SENT_A_ROUND), copiers)
                mend()
            judge.read_until(sent, copiers)
        finally:
            copiers.kill()
        for reader in (judge, Judge(cluster.bootstrap_servers)):
            reader.read_until(sent, None)
            reader.expect_nothing()
            assert [sorted(each) for each in reader.found] == [list(range(sent))] * copier.COPIES
            # Transactions follow each other in the same order in all partitions.
            assert reader.found == [judge.found[0]] * copier.COPIES
