"""Compacted topics with real brokers and foreign clients.

Every consumer, from any start offset, ends with the latest value of each key. Replicas may differ
in the remaining older records, but never in the latest ones."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.structs import TopicPartition as AioTopicPartition

from tests.integration import checker, clients
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.clients]

CONFIG: Final = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.segment.delete.delay.ms": "200",
    "log.retention.check.interval.ms": "200",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "metrics.snapshot.interval.ms": "100",
}
SEGMENT_BYTES: Final = 20_000
KEYS: Final = 40
ROUNDS: Final = 60

Found = dict[bytes, bytes | None]


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=3, dirs=2, config=CONFIG)


def write(
    cluster: Cluster,
    topic: str,
    *,
    compression: str = "none",
    rounds: int = ROUNDS,
    keys: int = KEYS,
    tag: str = "",
) -> Found:
    """Write every key once per round, with values of some size; return the last values."""
    producer = confluent_kafka.Producer(
        {
            **clients.quiet(cluster.bootstrap),
            "compression.type": compression,
            "linger.ms": 5,
            "batch.num.messages": 25,
            "enable.idempotence": True,
        }
    )
    latest: Found = {}
    errors: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(error)

    for number, key in itertools.product(range(rounds), range(keys)):
        name = f"{tag}k{key}".encode()
        latest[name] = f"{number}-".encode() + os.urandom(40).hex().encode()
        producer.produce(topic, key=name, value=latest[name], partition=0, on_delivery=on_delivery)
        producer.poll(0)
    assert producer.flush(clients.TIMEOUT_S) == 0
    assert errors == []
    return latest


def bury(cluster: Cluster, topic: str, keys: Sequence[bytes]) -> None:
    """Write tombstones."""
    producer = confluent_kafka.Producer(clients.quiet(cluster.bootstrap))
    for key in keys:
        producer.produce(topic, key=key, value=None, partition=0)
    assert producer.flush(clients.TIMEOUT_S) == 0


# -- readers ---------------------------------------------------------------------------------------


def read_confluent(bootstrap: str, topic: str, start: int) -> list[tuple[int, bytes, bytes | None]]:
    consumer = confluent_kafka.Consumer(
        {**clients.quiet(bootstrap), "group.id": "unused", "enable.auto.commit": False}
    )
    where = confluent_kafka.TopicPartition(topic, 0, start)
    _, end = consumer.get_watermark_offsets(where, timeout=clients.TIMEOUT_S)
    consumer.assign([where])
    found: list[tuple[int, bytes, bytes | None]] = []
    while consumer.position([where])[0].offset < end and (not found or found[-1][0] < end - 1):
        message = consumer.poll(clients.TIMEOUT_S)
        assert message is not None, f"nothing behind {found[-1:]} of {end}"
        assert message.error() is None, message.error()
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def read_kafka_python(
    bootstrap: str, topic: str, start: int
) -> list[tuple[int, bytes, bytes | None]]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), auto_offset_reset="earliest"
    )
    where = kafka.TopicPartition(topic, 0)
    consumer.assign([where])
    consumer.seek(where, start)
    end = consumer.end_offsets([where])[where]
    found: list[tuple[int, bytes, bytes | None]] = []
    while consumer.position(where) < end:
        polled = consumer.poll(timeout_ms=1000 * clients.TIMEOUT_S)
        assert polled, f"nothing behind {found[-1:]} of {end}"
        found += [(r.offset, r.key, r.value) for r in polled[where]]
    consumer.close()
    return found


def read_aiokafka(bootstrap: str, topic: str, start: int) -> list[tuple[int, bytes, bytes | None]]:
    async def read() -> list[tuple[int, bytes, bytes | None]]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        where = AioTopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, start)
        end = (await consumer.end_offsets([where]))[where]
        found: list[tuple[int, bytes, bytes | None]] = []
        try:
            while await consumer.position(where) < end:
                record = await asyncio.wait_for(consumer.getone(where), clients.TIMEOUT_S)
                found.append((record.offset, record.key, record.value))
        finally:
            await consumer.stop()
        return found

    return asyncio.run(read())


READERS: Final = {
    "confluent": read_confluent,
    "kafka-python": read_kafka_python,
    "aiokafka": read_aiokafka,
}
Reader = Callable[[str, str, int], list[tuple[int, bytes, bytes | None]]]


def latest_of(found: Sequence[tuple[int, bytes, bytes | None]]) -> Found:
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    return {key: value for _, key, value in found}


# -- state of the disks ----------------------------------------------------------------------------


def size_on(cluster: Cluster, broker: int, topic: str) -> int:
    directories = cluster.directories(broker).values()
    return sum(found.sizes.get(f"{topic}-0", 0) for found in directories)


def is_compacted(cluster: Cluster, topic: str, replicas: Sequence[int]) -> bool:
    """Return whether every replica has only the latest record per key, and one or two more
    segments."""
    limit = KEYS * 200 + 3 * SEGMENT_BYTES
    return all(0 < size_on(cluster, broker, topic) < limit for broker in replicas)


def wait_compacted(cluster: Cluster, topic: str, replicas: Sequence[int]) -> None:
    cluster.wait("compaction", functools.partial(is_compacted, cluster, topic, replicas))


def names_of(cluster: Cluster, topic: str) -> list[str]:
    return [
        name
        for broker in cluster.brokers
        for number in (1, 2)
        for directory in Path(cluster.local.dir_path(broker, number)).glob(f"{topic}-0")
        for name in os.listdir(directory)
    ]


# -- tests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", clients.COMPRESSIONS)
def test_every_client_reads_latest_values_of_compacted_topic(
    cluster: Cluster, compression: str
) -> None:
    topic = f"codec-{compression}"
    cluster.create_topic(
        topic, replication_factor=3, cleanup_policy="compact", segment_bytes=SEGMENT_BYTES
    )
    latest = write(cluster, topic, compression=compression)
    wait_compacted(cluster, topic, list(cluster.brokers))
    for read in READERS.values():
        found = read(cluster.bootstrap, topic, 0)
        assert latest_of(found) == latest
        assert len(found) < KEYS * ROUNDS / 2
        # A consumer that starts in the middle reads the same, except records that a later pass
        # removed.
        middle = found[len(found) // 2][0] + 1
        rest = read(cluster.bootstrap, topic, middle)
        assert set(rest) <= set(found)
        assert latest_of(rest) == latest_of([one for one in found if one[0] >= middle])


def test_tombstones_are_removed_after_delete_retention_ms(cluster: Cluster) -> None:
    cluster.create_topic(
        "tombstones",
        replication_factor=3,
        cleanup_policy="compact",
        segment_bytes=SEGMENT_BYTES,
        delete_retention_ms=500,
    )
    latest = write(cluster, "tombstones")
    gone = sorted(latest)[:10]
    bury(cluster, "tombstones", gone)

    def has_forgotten() -> bool:
        # New records make the log dirty again, so that another pass cleans it.
        write(cluster, "tombstones", rounds=20, tag="more-")
        found = latest_of(read_confluent(cluster.bootstrap, "tombstones", 0))
        assert all(found.get(key) is None for key in gone)
        return not found.keys() & set(gone)

    cluster.wait("tombstones to go", has_forgotten)
    found = latest_of(read_kafka_python(cluster.bootstrap, "tombstones", 0))
    assert {key: found[key] for key in sorted(latest)[10:]} == {
        key: latest[key] for key in sorted(latest)[10:]
    }


def refusals(producer: confluent_kafka.Producer, topic: str) -> set[int]:
    """Return the error codes of two records without a key."""
    reported: list[Any] = []
    for value in (b"x" * 1000, b"y" * 1000):
        producer.produce(
            topic, value=value, partition=0, on_delivery=lambda *e: reported.append(e[0])
        )
    assert producer.flush(clients.TIMEOUT_S) == 0
    assert len(reported) == 2
    return {error.code() for error in reported}


def test_compacted_topic_refuses_records_without_key(cluster: Cluster) -> None:
    cluster.create_topic("keys-only", replication_factor=3, cleanup_policy="compact")
    for compression in clients.COMPRESSIONS:
        producer = confluent_kafka.Producer(
            {**clients.quiet(cluster.bootstrap), "compression.type": compression}
        )
        assert refusals(producer, "keys-only") == {confluent_kafka.KafkaError.INVALID_RECORD}
    assert list(checker.read(cluster.bootstrap, "keys-only", 0)) == []


def test_compacted_topic_with_delete_policy_is_limited_by_retention_bytes(cluster: Cluster) -> None:
    cluster.create_topic(
        "both",
        replication_factor=3,
        cleanup_policy="compact,delete",
        segment_bytes=SEGMENT_BYTES,
        retention_bytes=4 * SEGMENT_BYTES,
    )
    write(cluster, "both", rounds=4, keys=1000)

    def is_short() -> bool:
        return all(size_on(cluster, b, "both") < 7 * SEGMENT_BYTES for b in cluster.brokers)

    cluster.wait("retention", is_short)
    found = read_confluent(cluster.bootstrap, "both", -2)
    assert found[0][0] > 0


def test_late_replica_of_compacted_log_catches_up_and_leads(make_cluster: MakeCluster) -> None:
    """An absent replica follows a compacted log; then each replica leads and is read."""
    cluster = make_cluster(brokers=3, dirs=2, config=CONFIG)
    cluster.create_topic(
        "late", replication_factor=3, cleanup_policy="compact", segment_bytes=SEGMENT_BYTES
    )
    latest = write(cluster, "late", rounds=10)
    away = cluster.partitions("late")[0].replicas[-1]
    cluster.brokers[away].kill()
    cluster.wait("it to be gone", lambda: away not in cluster.partitions("late")[0].isr)
    latest |= write(cluster, "late")
    rest = [broker for broker in cluster.brokers if broker != away]
    wait_compacted(cluster, "late", rest)
    cluster.start_daemon(cluster.brokers[away])
    cluster.wait_whole("late")
    wait_compacted(cluster, "late", list(cluster.brokers))
    for _ in range(3):
        leader = cluster.partitions("late")[0].leader
        assert latest_of(read_confluent(cluster.bootstrap, "late", 0)) == latest
        assert latest_of(read_kafka_python(cluster.bootstrap, "late", 0)) == latest
        cluster.brokers[leader].kill()
        cluster.wait(
            "another leader",
            lambda leader=leader: cluster.partitions("late")[0].leader not in (-1, leader),
        )
        latest |= write(cluster, "late", rounds=5)
        cluster.start_daemon(cluster.brokers[leader])
        cluster.wait_whole("late")
    cluster.wait("passes to end", lambda: not is_writing(cluster, "late"))


def other_dir(cluster: Cluster, broker: int, topic: str) -> str:
    sizes = {path: found.sizes for path, found in cluster.directories(broker).items()}
    (elsewhere,) = [path for path, found in sizes.items() if f"{topic}-0" not in found]
    return elsewhere


def test_replicas_move_while_they_are_compacted(cluster: Cluster) -> None:
    """Passes yield to moves, and continue on the other disk afterwards."""
    cluster.create_topic(
        "moving", replication_factor=3, cleanup_policy="compact", segment_bytes=SEGMENT_BYTES
    )
    latest: Found = {}
    for _ in range(3):
        latest |= write(cluster, "moving", rounds=20)
        for broker in cluster.brokers:
            target = other_dir(cluster, broker, "moving")
            with cluster.admin(broker) as admin:
                admin.alter_replica_log_dirs({("moving", 0, broker): target})
            latest |= write(cluster, "moving", rounds=5)
            cluster.wait(
                "the move",
                lambda broker=broker, target=target: (
                    "moving-0" in cluster.directories(broker)[target].sizes
                    and other_dir(cluster, broker, "moving") != target
                ),
            )
    wait_compacted(cluster, "moving", list(cluster.brokers))
    assert latest_of(read_confluent(cluster.bootstrap, "moving", 0)) == latest
    assert latest_of(read_kafka_python(cluster.bootstrap, "moving", 0)) == latest


def test_broker_killed_during_compaction_loses_no_record(make_cluster: MakeCluster) -> None:
    """A single broker is killed repeatedly in the middle of slow passes."""
    config = {**CONFIG, "log.cleaner.io.max.bytes.per.second": "150000"}
    cluster = make_cluster(brokers=1, dirs=2, config=config)
    cluster.create_topic("killed", cleanup_policy="compact", segment_bytes=SEGMENT_BYTES)
    latest: Found = {}
    for _ in range(4):
        latest |= write(cluster, "killed", rounds=100)
        cluster.wait("a pass to write", lambda: is_writing(cluster, "killed"))
        cluster.brokers[1].kill()
        cluster.start_daemon(cluster.brokers[1])
        cluster.wait_whole("killed")
        assert latest_of(read_confluent(cluster.bootstrap, "killed", 0)) == latest
    wait_compacted(cluster, "killed", [1])
    assert latest_of(read_confluent(cluster.bootstrap, "killed", 0)) == latest


def is_writing(cluster: Cluster, topic: str) -> bool:
    return any(name.endswith(".cleaned") for name in names_of(cluster, topic))
