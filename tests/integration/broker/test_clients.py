"""Foreign clients as the oracle: if independent clients agree, the protocol is right."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from kafka.admin import KafkaAdminClient

from tests.integration import checker, clients
from tests.integration.clients import COMPRESSIONS, READERS, WRITERS
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=3, dirs=2, config={"log.segment.bytes": "1048576"})


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A new topic with one partition and replicas on all brokers."""
    name = f"clients-{next(_numbers)}"
    cluster.create_topic(name, replication_factor=3, min_insync_replicas=2)
    return name


def _need(*names: str) -> None:
    if "kcat" in names and shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")


def _values(count: int = 300) -> list[bytes]:
    """Return compressible text lines, some of them long."""
    return [b"line %d %s" % (n, b"of many words " * (n % 40)) for n in range(count)]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("writer", WRITERS)
def test_records_of_each_client_are_read_by_all_others(
    cluster: Cluster, topic: str, writer: str, compression: str
) -> None:
    _need(writer)
    values = _values()
    offsets = WRITERS[writer](cluster.bootstrap, topic, values, compression=compression)
    assert offsets in ([], list(range(len(values))))
    for name, read in READERS.items():
        if name != "kcat" or shutil.which("kcat"):
            assert read(cluster.bootstrap, topic, len(values)) == values, name


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("writer", ["confluent", "kafka_python", "aiokafka"])
def test_produce_with_each_acks_setting_delivers_all_records(
    cluster: Cluster, topic: str, writer: str, acks: int | str
) -> None:
    settings: dict[str, Any] = {"acks": acks}
    if writer == "kafka_python":
        settings["enable_idempotence"] = acks == "all"
    values = _values(20)
    WRITERS[writer](cluster.bootstrap, topic, values, **settings)
    assert clients.read_confluent_until(cluster.bootstrap, topic, len(values)) == values


@pytest.mark.parametrize("writer", ["confluent", "kafka_python", "aiokafka"])
def test_idempotent_producers_get_consecutive_offsets(
    cluster: Cluster, topic: str, writer: str
) -> None:
    values = _values(100)
    offsets = WRITERS[writer](cluster.bootstrap, topic, values, enable_idempotence=True)
    assert offsets == list(range(100))
    assert clients.read_kafka_python(cluster.bootstrap, topic, 100) == values


def test_keys_headers_and_timestamps_are_preserved(cluster: Cluster, topic: str) -> None:
    producer = confluent_kafka.Producer(clients.quiet(cluster.bootstrap))
    headers: list[tuple[str, str | bytes | None]] = [("trace", b"\x00\xff"), ("empty", None)]
    producer.produce(topic, value=None, key=b"k", headers=headers, timestamp=1_700_000_000_123)
    assert producer.flush(clients.TIMEOUT_S) == 0
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap.split(","), group_id=None)
    consumer.assign([kafka.TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    record = next(consumer)
    consumer.close()
    assert (record.key, record.value, record.timestamp) == (b"k", None, 1_700_000_000_123)
    assert list(record.headers) == [("trace", b"\x00\xff"), ("empty", None)]


def test_offsets_for_times_finds_first_record_not_older(cluster: Cluster, topic: str) -> None:
    """Beyond the last timestamp there is no offset."""
    producer = confluent_kafka.Producer(clients.quiet(cluster.bootstrap))
    for n in range(10):
        producer.produce(topic, value=b"v", partition=0, timestamp=1_000_000 + 1000 * n)
        # One batch per record, so that the offset is not just that of a batch's first record.
        assert producer.flush(clients.TIMEOUT_S) == 0
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap.split(","), group_id=None)
    partition = kafka.TopicPartition(topic, 0)
    try:
        for wanted, offset in [(0, 0), (1_000_000, 0), (1_004_500, 5), (1_009_000, 9)]:
            assert consumer.offsets_for_times({partition: wanted})[partition].offset == offset
        assert consumer.offsets_for_times({partition: 1_009_001})[partition] is None
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 10}
    finally:
        consumer.close()


def test_offsets_for_times_finds_record_inside_compressed_batch(
    cluster: Cluster, topic: str
) -> None:
    producer = confluent_kafka.Producer(
        {**clients.quiet(cluster.bootstrap), "linger.ms": 200, "compression.type": "lz4"}
    )
    for n in range(10):
        producer.produce(topic, value=b"v", partition=0, timestamp=1_000_000 + 1000 * n)
    assert producer.flush(clients.TIMEOUT_S) == 0
    consumer = confluent_kafka.Consumer({**clients.quiet(cluster.bootstrap), "group.id": "times"})
    try:
        (found,) = consumer.offsets_for_times(
            [confluent_kafka.TopicPartition(topic, 0, 1_004_500)], timeout=clients.TIMEOUT_S
        )
        assert found.error is None
        assert found.offset == 5
    finally:
        consumer.close()


async def test_fetch_at_log_end_waits_for_the_next_record(cluster: Cluster, topic: str) -> None:
    """A fetch at the end of the log is answered with the record that arrives next."""
    async with aiokafka.AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap, group_id=None, fetch_max_wait_ms=20_000
    ) as consumer:
        partition = aiokafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_end(partition)
        assert await consumer.position(partition) == 0
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait(topic, b"late", partition=0)
            assert (await consumer.getone()).value == b"late"


def test_fetch_returns_records_larger_than_fetch_limits(cluster: Cluster, topic: str) -> None:
    """KIP-74: the first batch is returned completely, even if it exceeds the limits."""
    values = [bytes([n]) * 200_000 for n in range(5)]
    clients.write_confluent(cluster.bootstrap, topic, values, linger_ms=0)
    settings = {"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1_000_000}
    found = [value for _, value in checker.read(cluster.bootstrap, topic, 0, settings)]
    assert found == values


def test_produce_above_max_message_bytes_is_refused(cluster: Cluster) -> None:
    name = f"clients-{next(_numbers)}"
    cluster.create_topic(name, max_message_bytes=1000)
    with pytest.raises(confluent_kafka.KafkaException) as refusal:
        clients.write_confluent(cluster.bootstrap, name, [b"x" * 5000])
    assert refusal.value.args[0].code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE


def test_fetch_beyond_log_end_is_out_of_range(cluster: Cluster, topic: str) -> None:
    clients.write_confluent(cluster.bootstrap, topic, [b"only"])
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap.split(","), group_id=None, auto_offset_reset="none"
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 100)
    with pytest.raises(kafka.errors.OffsetOutOfRangeError):
        consumer.poll(timeout_ms=clients.TIMEOUT_S * 1000)
    consumer.close()


def test_api_versions_omit_unsupported_apis(cluster: Cluster) -> None:
    """An unsupported API is absent from ApiVersions; no API is supported partially."""
    # The client's thread would disturb later tests if it were not closed.
    with contextlib.closing(
        KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    ) as admin:
        served = set(admin.api_versions())
    names = {getattr(key, "name", str(key)) for key in served}
    assert {"Produce", "Fetch", "Metadata", "InitProducerId", "DescribeLogDirs"} <= names, names
    assert {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"} <= names, names
    assert not names & {"ShareFetch", "StreamsGroupHeartbeat"}


def test_kcat_lists_brokers_and_in_sync_replicas(cluster: Cluster, topic: str) -> None:
    _need("kcat")
    done = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, "-L", "-J", "-t", topic],
        capture_output=True,
        timeout=clients.TIMEOUT_S,
        check=True,
    )
    printed = json.loads(done.stdout)
    assert {broker["id"] for broker in printed["brokers"]} == {1, 2, 3}
    (entry,) = printed["topics"]
    assert sorted(replica["id"] for replica in entry["partitions"][0]["isrs"]) == [1, 2, 3]
