"""Records that brokers write to ``__group_telemetry``, read by a foreign client.

The cluster is real, and samples are taken every few hundred milliseconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, Final

import confluent_kafka
import pytest

from tests.integration.checker import read
from tests.integration.clients import quiet, write_confluent
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(180)]

TOPIC: Final = "__group_telemetry"
CONFIG: Final = {
    "group.telemetry.enable": "true",
    "group.telemetry.interval.ms": "300",
    "group.telemetry.topic.partitions": "1",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
# So many groups that each of three brokers coordinates some.
GROUPS: Final = [f"readers-{n}" for n in range(12)]
_NO_COORDINATOR: Final = {
    confluent_kafka.KafkaError.NOT_COORDINATOR,
    confluent_kafka.KafkaError._WAIT_COORD,
}
Sample = dict[str, Any]


def samples(cluster: Cluster) -> list[Sample]:
    """Return all records of the topic, by partition and in order."""
    if TOPIC not in topics(cluster):
        return []
    return [
        json.loads(value)
        for index in sorted(cluster.partitions(TOPIC))
        for _, value in read(cluster.bootstrap, TOPIC, index)
    ]


def topics(cluster: Cluster) -> list[str]:
    with cluster.admin() as admin:
        found: list[str] = admin.list_topics()
    return found


def commit(cluster: Cluster, group: str, topic: str, *offsets: int) -> None:
    """Commit offsets for the partitions of ``topic`` in order, without group membership."""
    consumer = confluent_kafka.Consumer(
        {**quiet(cluster.bootstrap), "group.id": group, "enable.auto.commit": False}
    )
    committed = [
        confluent_kafka.TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)
    ]

    def is_taken() -> bool:
        try:
            consumer.commit(offsets=committed, asynchronous=False)
        except confluent_kafka.KafkaException as e:
            # librdkafka leaves the retry to the application when a coordinator is new.
            assert e.args[0].retriable() or e.args[0].code() in _NO_COORDINATOR, e
            return False
        return True

    try:
        cluster.wait("a commit", is_taken)
    finally:
        consumer.close()


def wait_samples(
    cluster: Cluster, what: str, groups: Collection[str], holds: Callable[[Sample], object]
) -> list[Sample]:
    """Wait until each group has a record for which ``holds`` is true, and return the first ones."""
    found: dict[str, Sample] = {}

    def look() -> bool:
        for sample in samples(cluster):
            if sample["group_id"] in groups and holds(sample):
                found.setdefault(sample["group_id"], sample)
        return found.keys() == set(groups)

    cluster.wait(f"records of {what}", look, explain=lambda: f"there are {found}")
    return list(found.values())


def test_group_telemetry_continues_after_coordinator_is_killed(
    make_cluster: MakeCluster,
) -> None:
    """The killed broker also leads the only partition of the telemetry topic."""
    cluster = make_cluster(brokers=3, dirs=2, config=CONFIG)
    cluster.create_topic("orders", partitions=2, replication_factor=3)
    write_confluent(cluster.bootstrap, "orders", [b"%d" % n for n in range(10)])
    assert TOPIC not in topics(cluster)
    for group in GROUPS:
        commit(cluster, group, "orders", 6, 0)
    first = wait_samples(
        cluster, "all groups", GROUPS, lambda s: s["partition"] == 0 and s["lag"] is not None
    )
    for reported in first:
        assert (reported["group_type"], reported["state"], reported["members"]) == (
            "classic",
            "Empty",
            0,
        )
        assert (reported["topic"], reported["committed_offset"]) == ("orders", 6)
        assert (reported["log_end_offset"], reported["lag"]) == (10, 4)
    wait_samples(cluster, "no lag", GROUPS, lambda s: s["partition"] == 1 and s["lag"] == 0)

    dead = cluster.partitions(TOPIC)[0].leader
    orphans = [s["group_id"] for s in first if s["broker_id"] == dead]
    assert orphans, "none of so many groups is coordinated there"
    before = [s for s in samples(cluster) if s["broker_id"] == dead]
    cluster.brokers[dead].kill()
    wait_samples(cluster, "others", orphans, lambda s: s["broker_id"] != dead and s["lag"] == 4)
    commit(cluster, orphans[0], "orders", 9, 0)
    wait_samples(cluster, "a new commit", orphans[:1], lambda s: s["lag"] == 1)
    require_reported(cluster, before)
    cluster.start_daemon(cluster.brokers[dead])
    cluster.wait_whole(TOPIC)
    require_reported(cluster, before)


def require_reported(cluster: Cluster, wanted: list[Sample]) -> None:
    there = samples(cluster)
    assert [sample for sample in wanted if sample not in there] == []
