"""The writes of a task: in order, with the partitions of Java's clients, complete or with an
error."""

from __future__ import annotations

import threading

import pytest
from kafka.partitioner.default import murmur2

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.connector.record_writer import (
    RecordWriter,
    Row,
    WriteError,
    WrittenRange,
    producer_settings,
    task_writer,
)
from tests.integration import checker
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients]

PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=1, dirs=1, config={"auto.create.topics.enable": "false"})


def settings(cluster: Cluster, **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return {"bootstrap.servers": cluster.bootstrap, **given}


def row(
    topic: str, value: bytes, *, key: bytes | None = None, partition: int = -1
) -> tuple[str, bytes, bytes | None, int, None]:
    return topic, value, key, partition, None


def numbers(topic: str, count: int) -> list[Row]:
    return [row(topic, b"%d" % number, partition=0) for number in range(count)]


def read(cluster: Cluster, topic: str, partition: int) -> list[bytes]:
    return [value for _, value in checker.read(cluster.bootstrap, topic, partition)]


def test_writer_keeps_order_and_reports_every_acknowledgement(cluster: Cluster) -> None:
    cluster.create_topic("ordered")
    writer = RecordWriter(settings(cluster))
    writer.write(numbers("ordered", 2500))
    got = WrittenRange(topic="ordered", partition=0, first_offset=0, last_offset=2499, records=2500)
    assert writer.finish() == (got,)
    assert read(cluster, "ordered", 0) == [b"%d" % number for number in range(2500)]
    writer.write(numbers("ordered", 1))
    assert [found.first_offset for found in writer.finish()] == [2500], (
        "each finish reports its own"
    )


def test_writer_with_full_queue_waits_and_keeps_order(cluster: Cluster) -> None:
    cluster.create_topic("narrow")
    writer = RecordWriter(settings(cluster, queue_buffering_max_messages="7"))
    writer.write(numbers("narrow", 500))
    writer.finish()
    assert read(cluster, "narrow", 0) == [b"%d" % number for number in range(500)]


def test_writer_sends_keys_to_the_partitions_of_javas_producers(cluster: Cluster) -> None:
    cluster.create_topic("keyed", partitions=PARTITIONS)
    keys = [b"key-%d" % number for number in range(60)]
    writer = RecordWriter(settings(cluster))
    writer.write([row("keyed", key, key=key) for key in keys])
    writer.finish()
    found = {key: n for n in range(PARTITIONS) for key in read(cluster, "keyed", n)}
    assert found == {key: (murmur2(key) & 0x7FFFFFFF) % PARTITIONS for key in keys}


def test_writer_to_missing_topic_is_refused(cluster: Cluster) -> None:
    with pytest.raises(WriteError, match=r"topic nowhere cannot be written: .*Unknown topic"):
        RecordWriter(settings(cluster)).write([row("nowhere", b"x")])


def test_writer_waits_for_topic_created_a_moment_later(cluster: Cluster) -> None:
    maker = threading.Timer(0.5, cluster.create_topic, ["late"])
    maker.start()
    try:
        writer = RecordWriter(settings(cluster))
        writer.write([row("late", b"x")])
        assert [written.records for written in writer.finish()] == [1]
    finally:
        maker.join()


def test_writer_to_missing_partition_is_refused(cluster: Cluster) -> None:
    cluster.create_topic("two", partitions=2)
    with pytest.raises(WriteError, match=r"two-2.*Unknown partition"):
        RecordWriter(settings(cluster)).write([row("two", b"x", partition=2)])


def test_writer_refuses_record_too_large_for_the_client(cluster: Cluster) -> None:
    cluster.create_topic("small")
    with pytest.raises(WriteError, match=r"a record of 1100000 bytes for small.*1048576"):
        RecordWriter(settings(cluster)).write([row("small", b"x" * 1_100_000)])


def test_writer_fails_for_record_too_large_for_the_topic(cluster: Cluster) -> None:
    cluster.create_topic("smaller", max_message_bytes=2000)
    writer = RecordWriter(settings(cluster))
    with pytest.raises(WriteError, match=r"1 records not written: smaller-0: .*3000 bytes"):
        writer.write([row("smaller", b"x" * 3000)])
        writer.finish()


def test_writer_without_reachable_broker_raises_an_error_with_broker_and_topic() -> None:
    unreachable = {"bootstrap.servers": "127.0.0.1:1", "delivery.timeout.ms": "1000"}
    with pytest.raises(WriteError, match=r"no broker of 127\.0\.0\.1:1 knows topic t: .*refused"):
        RecordWriter(unreachable).write([row("t", b"x")])


def test_writer_without_acknowledgements_fails(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=1, dirs=1)
    cluster.create_topic("silent")
    writer = RecordWriter(settings(cluster, delivery_timeout_ms="2000"))
    writer.write([row("silent", b"one")])
    writer.finish()
    cluster.brokers[1].kill()
    with pytest.raises(WriteError, match=r"records not written: silent-0: .*timed out"):
        writer.write(numbers("silent", 10))
        writer.finish()


def test_task_writer_reuses_producers_except_of_failed_tasks(cluster: Cluster) -> None:
    cluster.create_topic("again")
    own = settings(cluster, client_id="again")
    with task_writer(own) as first:
        first.write([row("again", b"x")])
        first.finish()
    with task_writer(own) as second, task_writer(own) as beside:
        assert second is first
        assert beside is not first
    with pytest.raises(WriteError, match="Unknown partition"), task_writer(own) as third:
        third.write([row("again", b"x", partition=9)])
    with task_writer(own) as fourth:
        assert fourth is not third


def test_producer_settings_have_acks_all_unless_set_otherwise() -> None:
    ours = producer_settings({})
    assert (ours["acks"], ours["enable.idempotence"]) == ("all", True)
    fewer = producer_settings({"acks": "1"})
    assert (fewer["acks"], fewer["enable.idempotence"]) == ("1", False)
    with pytest.raises(ConfigError, match="must be set to `all`"):
        RecordWriter({"acks": "1", "enable.idempotence": "true"})


@pytest.mark.parametrize("timeout", ["0", "-1", "soon"])
def test_producer_settings_with_unlimited_delivery_timeout_are_refused(timeout: str) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.delivery\.timeout\.ms is"):
        producer_settings({"delivery.timeout.ms": timeout})


def test_writer_with_unknown_setting_names_it() -> None:
    with pytest.raises(ConfigError, match=r'No such configuration property: "wings"'):
        RecordWriter({"wings": "2"})
