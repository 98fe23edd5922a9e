"""DeleteRecords (KIP-107) requested by foreign clients, and the remaining records."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka.errors import OffsetOutOfRangeError

from kraftjbod.protocol.messages import DeleteRecordsRequest, ListOffsetsRequest
from tests.integration import raw
from tests.integration.checker import read
from tests.integration.clients import quiet, write_confluent
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.tools import Done, started, tool

pytestmark = [
    pytest.mark.process,
    pytest.mark.clients,
    pytest.mark.timeout(300),
]

RECORDS = 100
NONE, OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER = 0, 1, 3, 6
_LIST = ListOffsetsRequest
_DELETE = DeleteRecordsRequest


def by_kafka_python(cluster: Cluster, topic: str, offset: int) -> int:
    partition = kafka.TopicPartition(topic, 0)
    with cluster.admin() as admin:
        answered = admin.delete_records({partition: offset})
    low_watermark: int = answered[partition]["low_watermark"]
    return low_watermark


def by_confluent(cluster: Cluster, topic: str, offset: int) -> int:
    admin = AdminClient({**quiet(cluster.bootstrap)})
    (future,) = admin.delete_records(
        [confluent_kafka.TopicPartition(topic, 0, offset)], operation_timeout=20
    ).values()
    return int(future.result(timeout=30).low_watermark)


def by_tool(cluster: Cluster, topic: str, offset: int) -> int:
    ended = _tool(cluster, {"topic": topic, "partition": 0, "offset": offset})
    assert ended.returncode == 0, ended
    talk, done, line = ended.stdout.splitlines()
    assert talk == "Executing records delete operation"
    assert done == "Records delete operation completed:"
    head, low_watermark = line.split("\tlow_watermark: ")
    assert head == f"partition: {topic}-0"
    return int(low_watermark)


def _tool(cluster: Cluster, *partitions: dict[str, Any], run: Callable[..., Done] = tool) -> Done:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"version": 1, "partitions": partitions}, file)
        file.flush()
        return run("delete-records", cluster, "--offset-json-file", file.name)


CLIENTS = [by_kafka_python, by_confluent, by_tool]
Delete = Callable[[Cluster, str, int], int]


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Iterator[Cluster]:
    yield make_shared_cluster(brokers=3, dirs=1, config={"broker.session.timeout.ms": "6000"})


def _fill(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, replication_factor=3, min_insync_replicas=2)
    values = [b"%d" % number for number in range(RECORDS)]
    assert write_confluent(cluster.bootstrap, topic, values) == list(range(RECORDS))


def _leader(cluster: Cluster, topic: str) -> int:
    return cluster.partitions(topic)[0].leader


def _starts(cluster: Cluster, topic: str) -> int:
    """Return the log start offset that the leader reports."""
    request = _LIST(
        replica_id=-1,
        topics=[
            _LIST.ListOffsetsTopic(
                name=topic,
                partitions=[_LIST.ListOffsetsPartition(partition_index=0, timestamp=-2)],
            )
        ],
    )
    leader = cluster.brokers[_leader(cluster, topic)]
    part = raw.exchange(leader.address, request, 4).topics[0].partitions[0]
    assert part.error_code == NONE
    offset: int = part.offset
    return offset


@pytest.mark.parametrize("delete", CLIENTS)
def test_delete_records_returns_low_watermark_to_clients(cluster: Cluster, delete: Delete) -> None:
    topic = f"low-{delete.__name__.replace('_', '-')}"
    _fill(cluster, topic)
    assert delete(cluster, topic, 30) == 30
    assert [offset for offset, _ in read(cluster.bootstrap, topic, 0)] == list(range(30, RECORDS))
    assert delete(cluster, topic, 10) == 30
    assert delete(cluster, topic, -1) == RECORDS
    assert list(read(cluster.bootstrap, topic, 0)) == []
    assert write_confluent(cluster.bootstrap, topic, [b"more"]) == [RECORDS]
    assert list(read(cluster.bootstrap, topic, 0)) == [(RECORDS, b"more")]


def test_delete_records_refusals_have_kafkas_codes(cluster: Cluster) -> None:
    _fill(cluster, "refused")
    leader = _leader(cluster, "refused")
    other = next(broker for broker in cluster.brokers if broker != leader)

    def code(broker: int, topic: str, offset: int) -> int:
        request = _DELETE(
            topics=[
                _DELETE.DeleteRecordsTopic(
                    name=topic,
                    partitions=[_DELETE.DeleteRecordsPartition(partition_index=0, offset=offset)],
                )
            ],
            timeout_ms=10_000,
        )
        part = raw.exchange(cluster.brokers[broker].address, request, 2).topics[0].partitions[0]
        assert part.low_watermark == -1
        found: int = part.error_code
        return found

    assert code(leader, "refused", RECORDS + 1) == OUT_OF_RANGE
    assert code(other, "refused", 5) == NOT_LEADER
    assert code(leader, "absent", 5) == UNKNOWN_TOPIC
    with pytest.raises(OffsetOutOfRangeError):
        by_kafka_python(cluster, "refused", RECORDS + 1)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        by_confluent(cluster, "refused", RECORDS + 1)
    assert refused.value.args[0].code() == OUT_OF_RANGE
    ended = _tool(
        cluster,
        {"topic": "refused", "partition": 0, "offset": RECORDS + 1},
        run=started,
    )
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1] == (
        "partition: refused-0\terror: refused-0: OFFSET_OUT_OF_RANGE"
    )
    assert _starts(cluster, "refused") == 0


def test_consumers_below_new_log_start_are_reset_or_fail(cluster: Cluster) -> None:
    _fill(cluster, "below")
    partition = kafka.TopicPartition("below", 0)

    def consumer(reset: str) -> Any:
        made = kafka.KafkaConsumer(
            bootstrap_servers=cluster.bootstrap.split(","),
            auto_offset_reset=reset,
            consumer_timeout_ms=30_000,
        )
        made.assign([partition])
        made.seek(partition, 5)
        return made

    strict, lenient = consumer("none"), consumer("earliest")
    try:
        assert by_confluent(cluster, "below", 40) == 40
        assert next(lenient).offset == 40
        with pytest.raises(OffsetOutOfRangeError):
            next(strict)
    finally:
        strict.close()
        lenient.close()


def _kill(cluster: Cluster, broker: int) -> None:
    daemon = cluster.brokers[broker]
    assert daemon.pid is not None
    os.kill(daemon.pid, signal.SIGKILL)
    cluster.wait_exit(daemon)


def _wait_led_by_another(cluster: Cluster, topic: str, broker: int) -> None:
    cluster.wait("another leader", lambda: _leader(cluster, topic) not in (broker, -1))


def test_deleted_records_stay_deleted_after_leader_changes(cluster: Cluster) -> None:
    """The leader dies right after its response, and so does the next one."""
    _fill(cluster, "after")
    for offset in (30, 60):
        leader = _leader(cluster, "after")
        assert by_kafka_python(cluster, "after", offset) == offset
        _kill(cluster, leader)
        try:
            _wait_led_by_another(cluster, "after", leader)
            assert _starts(cluster, "after") == offset
            offsets = [at for at, _ in read(cluster.bootstrap, "after", 0)]
            assert offsets == list(range(offset, RECORDS))
        finally:
            cluster.start_daemon(cluster.brokers[leader])
        cluster.wait_whole("after")


def test_deleted_records_stay_deleted_after_restart_of_all_brokers(cluster: Cluster) -> None:
    _fill(cluster, "restart")
    cluster.create_topic("alone")
    assert write_confluent(cluster.bootstrap, "alone", [b"x"] * 9) == list(range(9))
    assert by_confluent(cluster, "restart", 42) == 42
    assert by_confluent(cluster, "alone", 5) == 5
    for daemon in cluster.brokers.values():
        cluster.stop_daemon(daemon)
    for daemon in cluster.brokers.values():
        daemon.start()
    cluster.wait_healthy()
    for topic, start in (("restart", 42), ("alone", 5)):
        cluster.wait_whole(topic)
        assert _starts(cluster, topic) == start


@pytest.mark.long
def test_returned_replica_adopts_log_start_offset(cluster: Cluster) -> None:
    """DeleteRecords does not wait for the absent replica, which later leads without the records."""
    _fill(cluster, "away")
    leader = _leader(cluster, "away")
    away = next(broker for broker in cluster.brokers if broker != leader)
    _kill(cluster, away)
    cluster.wait(
        "the cluster to know", lambda: away not in cluster.partitions("away", ask=leader)[0].isr
    )
    assert by_confluent(cluster, "away", 70) == 70
    cluster.start_daemon(cluster.brokers[away])
    cluster.wait_whole("away")
    others = [broker for broker in cluster.brokers if broker != away]
    for broker in others:
        _kill(cluster, broker)
    try:
        cluster.wait("it to lead", lambda: cluster.partitions("away", ask=away)[0].leader == away)
        assert _starts(cluster, "away") == 70
    finally:
        for broker in others:
            cluster.brokers[broker].start()
        cluster.wait_healthy()
