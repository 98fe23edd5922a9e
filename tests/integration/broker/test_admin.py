"""Topics, configurations, directories and the cluster, as foreign admin clients see them."""

from __future__ import annotations

import itertools
import os
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource as ConfluentResource
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tests.integration import clients
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients]

_numbers = itertools.count()
BROKERS = 3


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(
        brokers=BROKERS, dirs=2, config={"num.partitions": "2", "default.replication.factor": "2"}
    )


def _name() -> str:
    return f"admin-{next(_numbers)}"


@pytest.fixture
def confluent(cluster: Cluster) -> AdminClient:
    """librdkafka's admin client; its futures end with it, so a test has to keep a reference."""
    return AdminClient(clients.quiet(cluster.bootstrap))


def test_create_topic_spreads_replicas_over_brokers_and_directories(cluster: Cluster) -> None:
    name = _name()
    cluster.create_topic(name, partitions=12, replication_factor=3)
    parts = cluster.partitions(name)
    assert sorted(parts) == list(range(12))
    leaders = [part.leader for part in parts.values()]
    assert {leaders.count(broker) for broker in (1, 2, 3)} == {4}
    for broker in cluster.brokers:
        by_dir = cluster.replicas_by_dir(broker, name)
        assert sorted(itertools.chain(*by_dir.values())) == list(range(12))
        assert all(by_dir.values()), "every directory has replicas"


def test_create_topic_with_assignment_places_replicas_as_given(cluster: Cluster) -> None:
    name = _name()
    cluster.create_topic(name, assignments={0: [3, 1], 1: [2, 3]})
    parts = cluster.partitions(name)
    assert (parts[0].replicas, parts[0].leader) == ((3, 1), 3)
    assert (parts[1].replicas, parts[1].leader) == ((2, 3), 2)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_partitions": 1, "replication_factor": 4}, InvalidReplicationFactorError),
        ({"num_partitions": 0, "replication_factor": 1}, InvalidPartitionsError),
        ({"assignments": {0: [1, 9]}}, KafkaError),
        ({"assignments": {0: [1, 1]}}, KafkaError),
        ({"num_partitions": 1, "configs": {"no.such.key": "1"}}, KafkaError),
        ({"num_partitions": 1, "configs": {"retention.ms": "soon"}}, KafkaError),
    ],
    ids=["too few brokers", "no partitions", "unknown broker", "twice", "key", "value"],
)
def test_create_topic_with_impossible_values_is_refused(
    cluster: Cluster, options: dict[str, Any], error: type[KafkaError]
) -> None:
    name = _name()
    with cluster.admin() as admin:
        with pytest.raises(error):
            admin.create_topics({name: options})
        assert name not in admin.list_topics()


def test_create_topic_refuses_existing_and_illegal_names(cluster: Cluster) -> None:
    name = _name()
    cluster.create_topic(name)
    with cluster.admin() as admin:
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics({name: {}})
        with pytest.raises(InvalidTopicError):
            admin.create_topics({"not/a name": {}})


def test_create_topic_with_validate_only_creates_nothing(cluster: Cluster) -> None:
    name = _name()
    with cluster.admin() as admin:
        admin.create_topics({name: {}}, validate_only=True)
        assert name not in admin.list_topics()


def test_create_topic_without_counts_uses_cluster_defaults(cluster: Cluster) -> None:
    name = _name()
    with cluster.admin() as admin:
        admin.create_topics({name: {}})
    cluster.wait_whole(name)
    parts = cluster.partitions(name)
    assert [len(part.replicas) for part in parts.values()] == [2, 2]


def test_create_partitions_adds_partitions_and_refuses_fewer(
    cluster: Cluster, confluent: AdminClient
) -> None:
    name = _name()
    cluster.create_topic(name, partitions=2, replication_factor=2)
    futures = confluent.create_partitions([NewPartitions(name, 5)])
    futures[name].result(clients.TIMEOUT_S)
    cluster.wait("five partitions", lambda: len(cluster.partitions(name)) == 5)
    cluster.wait_whole(name)
    with cluster.admin() as admin, pytest.raises(InvalidPartitionsError):
        admin.create_partitions({name: 3})


def test_recreated_topic_has_new_id_and_no_old_records(
    cluster: Cluster, confluent: AdminClient
) -> None:
    """No record of the first topic appears in the second."""
    name = _name()
    cluster.create_topic(name, replication_factor=3)
    clients.write_confluent(cluster.bootstrap, name, [b"old"] * 10)
    with cluster.admin() as admin:
        first = admin.describe_topics([name])[0]["topic_id"]
    confluent.delete_topics([name])[name].result(clients.TIMEOUT_S)
    cluster.wait("it to be gone", lambda: not _exists(cluster, name))
    cluster.create_topic(name, replication_factor=3)
    with cluster.admin() as admin:
        assert admin.describe_topics([name])[0]["topic_id"] != first
    assert clients.write_confluent(cluster.bootstrap, name, [b"new"]) == [0]
    assert clients.read_kafka_python(cluster.bootstrap, name, 1) == [b"new"]


def test_delete_of_missing_topic_is_refused(cluster: Cluster) -> None:
    with cluster.admin() as admin, pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([_name()])


def test_produce_to_missing_topic_creates_it(cluster: Cluster) -> None:
    """auto.create.topics.enable: the first record to an unknown topic creates the topic."""
    name = _name()
    producer = confluent_kafka.Producer(clients.quiet(cluster.bootstrap))
    producer.produce(name, value=b"first")
    assert producer.flush(clients.TIMEOUT_S) == 0
    assert len(cluster.partitions(name)) == 2


def test_describe_of_missing_topic_does_not_create_it(cluster: Cluster) -> None:
    name = _name()
    with cluster.admin() as admin:
        (answered,) = admin.describe_topics([name])
        assert answered["error_code"] == UnknownTopicOrPartitionError.errno
        assert name not in admin.list_topics()


def test_describe_configs_of_topic_has_values_and_sources(
    cluster: Cluster, confluent: AdminClient
) -> None:
    name = _name()
    cluster.create_topic(name, retention_ms=12_345)
    wanted = ConfluentResource(ConfluentResource.Type.TOPIC, name)
    found = confluent.describe_configs([wanted])[wanted].result(clients.TIMEOUT_S)
    assert found["retention.ms"].value == "12345"
    assert not found["retention.ms"].is_default
    assert found["segment.bytes"].value == str(1024**3)
    assert found["segment.bytes"].is_default


def test_describe_configs_of_broker_has_actual_values(cluster: Cluster) -> None:
    with cluster.admin() as admin:
        answered = admin.describe_configs(
            [ConfigResource(ConfigResourceType.BROKER, "2")], config_filter="all"
        )
    values = next(iter(answered.values()))["2"]
    assert values["node.id"]["value"] == "2"
    assert values["num.partitions"]["value"] == "2"
    assert str(cluster.local.dir_path(2, 1)) in values["log.dirs"]["value"]


def test_describe_cluster_lists_all_brokers(cluster: Cluster) -> None:
    with cluster.admin() as admin:
        answered = admin.describe_cluster()
    assert answered["cluster_id"] == cluster.local.cluster_id
    ports = {
        broker.get("node_id", broker.get("broker_id")): broker["port"]
        for broker in answered["brokers"]
    }
    assert ports == {id_: broker.files.port for id_, broker in cluster.brokers.items()}


def test_describe_log_dirs_reports_actual_sizes(cluster: Cluster) -> None:
    name = _name()
    cluster.create_topic(name, assignments={0: [2]})
    clients.write_confluent(cluster.bootstrap, name, [os.urandom(10_000)] * 10)
    directories = cluster.directories(2)
    assert set(directories) == {str(cluster.local.dir_path(2, n)) for n in (1, 2)}
    (home,) = [path for path, found in directories.items() if f"{name}-0" in found.sizes]
    assert directories[home].error == 0
    on_disk = sum(
        entry.stat().st_size
        for entry in os.scandir(f"{home}/{name}-0")
        if entry.name.endswith(".log")
    )
    assert directories[home].sizes[f"{name}-0"] == on_disk > 100_000
    space = os.statvfs(home)
    assert directories[home].total_bytes == space.f_blocks * space.f_frsize
    assert 0 < directories[home].usable_bytes <= directories[home].total_bytes


def test_min_insync_replicas_above_replication_factor_means_all(cluster: Cluster) -> None:
    """As in Kafka, acks=all then needs all replicas."""
    name = _name()
    cluster.create_topic(name, assignments={0: [1]}, min_insync_replicas=2)
    assert clients.write_confluent(cluster.bootstrap, name, [b"v"], acks="all") == [0]


def test_concurrent_creation_of_same_topic_succeeds_once(
    cluster: Cluster, confluent: AdminClient
) -> None:
    """One client succeeds, the other one gets an error, and there is a single topic."""
    name = _name()
    new = [NewTopic(name, num_partitions=3, replication_factor=3)]
    second = AdminClient(clients.quiet(cluster.bootstrap))
    futures = [admin.create_topics(new)[name] for admin in (confluent, second)]
    outcomes = [future.exception(clients.TIMEOUT_S) for future in futures]
    failures = [outcome for outcome in outcomes if outcome is not None]
    assert len(failures) == 1
    assert failures[0].args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    cluster.wait_whole(name)


def _exists(cluster: Cluster, name: str) -> bool:
    with cluster.admin() as admin:
        return name in admin.list_topics()
