"""Transactions with clients that are not ours: all or nothing, also if a coordinator is killed."""

from __future__ import annotations

import asyncio

import aiokafka
import confluent_kafka
import kafka
import pytest

from kraftjbod.broker.internal.coordinators import java_hash
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


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=3, dirs=2, config=QUICK)


def values(number: int) -> list[tuple[int, bytes]]:
    """What one transaction writes, with the partition of each."""
    return [(index, f"{number}-{index}".encode()) for index in range(PARTITIONS)]


def write_by_confluent(bootstrap: str, topic: str) -> None:
    """Every other transaction is aborted, and a second producer fences the first."""
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
    """What a reader of committed records finds, until it has met ``count`` or the end."""
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
def test_all_or_nothing(cluster: Cluster, write: object) -> None:
    topic = f"t-{write.__name__}"  # type: ignore[attr-defined]  # functions of this module
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    write(cluster.bootstrap, topic)  # type: ignore[operator]  # functions of this module
    wanted = [value for number in range(0, ROUNDS, 2) for _, value in values(number)]
    assert committed(cluster.bootstrap, topic, len(wanted)) == sorted(wanted)


def test_what_is_read_and_written_is_one_thing_also_when_the_coordinator_is_killed(
    cluster: Cluster,
) -> None:
    topic = "t-killed"
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": topic, "log_level": 0}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(WAIT_S)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "log_level": 0}
    )
    offset = confluent_kafka.TopicPartition(topic, 0, 7)
    producer.begin_transaction()
    for partition, value in values(0):
        producer.produce(topic, value, partition=partition)
    producer.send_offsets_to_transaction([offset], consumer.consumer_group_metadata(), WAIT_S)
    state = cluster.partitions("__transaction_state")
    coordinator = cluster.brokers[state[abs(java_hash(topic)) % STATE_PARTITIONS].leader]
    coordinator.kill()
    producer.commit_transaction(WAIT_S)
    cluster.start_daemon(coordinator)
    (held,) = consumer.committed([offset], timeout=WAIT_S)
    assert held.offset == 7
    consumer.close()
    wanted = sorted(value for _, value in values(0))
    assert committed(cluster.bootstrap, topic, len(wanted)) == wanted
