"""Offset requests of the driver: no topic creation, waits for leaders, omission of deleted
topics."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Final

import pytest
from confluent_kafka import OFFSET_INVALID

from kraftjbod.core.errors import (
    ConfigError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.connector.offset_lookup import OffsetLookup
from kraftjbod.spark.connector.options import (
    EARLIEST,
    LATEST,
    AtOffset,
    AtOffsets,
    parse_source_options,
)
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.spark import live

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

SHORT_SESSIONS: Final = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=2, dirs=1, config=SHORT_SESSIONS)


def lookup(cluster: Cluster, **options: str) -> OffsetLookup:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, **options}
    return OffsetLookup(parse_source_options(given, is_streaming=True))


def test_offset_lookup_returns_offsets_of_every_leader(cluster: Cluster) -> None:
    cluster.create_topic("wide", partitions=6, retention_ms=-1)
    written = live.write(cluster.bootstrap, "wide", live.values(60, partitions=6))
    asking = lookup(cluster, subscribe="wide")
    found = asking.assigned(must_exist=True)
    assert found.partitions == {TopicPartition("wide", index) for index in range(6)}
    assert found.topic_ids.keys() == {"wide"}
    assert {part.leader for part in cluster.partitions("wide").values()} == {1, 2}
    assert asking.earliest(found.partitions) == dict.fromkeys(found.partitions, 0)
    assert asking.latest(found.partitions) == dict.fromkeys(found.partitions, len(written) // 6)


def test_offset_lookup_of_missing_topic_does_not_create_it(cluster: Cluster) -> None:
    asking = lookup(cluster, subscribe="never-made, wide-2")
    for _ in range(2):
        with pytest.raises(UnknownTopicOrPartitionError, match="no such topic: never-made, wide-2"):
            asking.assigned(must_exist=True)
    left_out = asking.assigned({"also-gone"}, must_exist=False)
    assert (left_out.partitions, left_out.topic_ids) == (frozenset(), {})
    assert (
        not {"never-made", "wide-2", "also-gone"}
        & live.admin(cluster.bootstrap).list_topics(timeout=10).topics.keys()
    )


def test_offset_lookup_omits_topic_deleted_between_two_requests(cluster: Cluster) -> None:
    cluster.create_topic("stays", retention_ms=-1)
    cluster.create_topic("goes", retention_ms=-1)
    asking = lookup(cluster, subscribe="stays, goes")
    partitions = asking.assigned(must_exist=True).partitions
    live.delete_topic(cluster.bootstrap, "goes")
    assert asking.latest(partitions) == {TopicPartition("stays", 0): 0}
    assert asking.earliest([TopicPartition("goes", 0)]) == {}
    for offset, found in ((EARLIEST, 0), (LATEST, 0), (7, 7)):
        there = asking.resolve(AtOffset(offset=offset), partitions, is_start=True)
        gone = {TopicPartition("goes", 0): 7} if offset == 7 else {}
        assert there == {TopicPartition("stays", 0): found, **gone}


def test_offset_lookup_retries_a_stale_end_until_its_limit(cluster: Cluster) -> None:
    """A leader with a lower end than the consumed offset is asked again, up to a limit."""
    cluster.create_topic("stale", retention_ms=-1)
    live.write(cluster.bootstrap, "stale", live.values(3))
    partition = TopicPartition("stale", 0)
    asking = lookup(
        cluster,
        subscribe="stale",
        **{"fetchOffset.numRetries": "20", "fetchOffset.retryIntervalMs": "500"},
    )
    more = threading.Timer(0.5, live.write, (cluster.bootstrap, "stale", live.values(2, first=3)))
    more.start()
    try:
        assert asking.latest([partition], {partition: 5}) == {partition: 5}
    finally:
        more.join()
    hasty = lookup(cluster, subscribe="stale")
    assert hasty.latest([partition], {partition: 9}) == {partition: 5}


def test_resolve_requires_a_position_for_every_partition(cluster: Cluster) -> None:
    cluster.create_topic("named", partitions=2, retention_ms=-1)
    asking = lookup(cluster, subscribe="named")
    one, two = TopicPartition("named", 0), TopicPartition("named", 1)
    found = asking.resolve(AtOffsets(offsets={one: -2, two: 7}), [one, two], is_start=True)
    assert found == {one: 0, two: 7}
    with pytest.raises(ConfigError, match="startingOffsets names no offset for named-1"):
        asking.resolve(AtOffsets(offsets={one: -2}), [one, two], is_start=True)


def test_offset_lookup_waits_for_partition_without_leader(make_cluster: MakeCluster) -> None:
    """Its broker is killed and restarts while the driver asks."""
    cluster = make_cluster(brokers=2, dirs=1, config=SHORT_SESSIONS)
    cluster.create_topic("lone", assignments={0: [1]}, retention_ms=-1)
    cluster.create_topic("other", assignments={0: [2]}, retention_ms=-1)
    live.write(cluster.bootstrap, "lone", live.values(3))
    asking = lookup(cluster, subscribe="lone,other")
    lone = TopicPartition("lone", 0)
    partitions = asking.assigned(must_exist=True).partitions
    cluster.brokers[1].kill()
    cluster.wait("no leader", lambda: cluster.partitions("lone", ask=2)[0].leader < 0)
    back = threading.Timer(1.0, cluster.brokers[1].start)
    back.start()
    try:
        assert asking.latest(partitions)[lone] == 3
    finally:
        back.join()
        cluster.wait_healthy()


def test_offset_lookup_without_offset_in_the_answer_asks_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client library has no error for a lost leader: it occasionally returned the offset
    -1001."""
    cluster.create_topic("lost", retention_ms=-1)
    asking = lookup(cluster, subscribe="lost")
    nothing: Future[SimpleNamespace] = Future()
    nothing.set_result(SimpleNamespace(offset=OFFSET_INVALID))
    lost = SimpleNamespace(list_offsets=lambda asked, **_: dict.fromkeys(asked, nothing))
    monkeypatch.setattr(asking, "_admin", lost)
    assert asking.latest([TopicPartition("lost", 0)]) == {TopicPartition("lost", 0): 0}


@pytest.mark.parametrize("topics", [{"subscribe": "t"}, {"subscribePattern": "t.*"}])
@pytest.mark.parametrize(
    ("server", "security", "why"),
    [
        ("127.0.0.1:1", {}, "Connection refused"),
        ("no-such-host.invalid:9092", {}, "Failed to resolve"),
        (None, {"kafka.security.protocol": "SSL"}, "SSL (hand|conn)"),
    ],
)
def test_offset_lookup_first_contact_failure_reports_the_reason(
    cluster: Cluster,
    topics: dict[str, str],
    server: str | None,
    security: dict[str, str],
    why: str,
) -> None:
    server = server or cluster.bootstrap
    options = {"kafka.bootstrap.servers": server, **topics, **security}
    asking = OffsetLookup(parse_source_options(options, is_streaming=False), patience_s=2)
    with pytest.raises(RequestTimedOutError, match=f"^{server} cannot be reached .*{why}"):
        asking.assigned(must_exist=True)


@pytest.mark.parametrize("name", ["no.such.name", "fetch.min.bites"])
def test_offset_lookup_with_unknown_client_setting_names_it(name: str) -> None:
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", f"kafka.{name}": "1"}
    with pytest.raises(ConfigError, match=name):
        OffsetLookup(parse_source_options(options, is_streaming=False))


def test_offset_lookup_with_consumer_settings_prints_no_warning(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """The driver is no consumer, and its client warns about unused settings."""
    asking = lookup(cluster, subscribePattern="wi.*", **{"kafka.fetch.min.bytes": "7"})
    asking.assigned(must_exist=True)
    assert capfd.readouterr().err == ""
