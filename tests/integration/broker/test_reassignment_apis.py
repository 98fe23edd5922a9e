"""Reassignments, throttles, moves, configurations and features, requested by foreign admin clients.

kafka-python has all of these requests, and librdkafka has IncrementalAlterConfigs. Our own client
sends our extension: a target directory in a reassignment."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigSource
from confluent_kafka.admin._config import ConfigResource as ConfluentResource
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, NoError

from kraftjbod.cli.clients import config_admin, replica_admin
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import ConfigChange, ConfigOperation
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from tests.integration import clients
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients]

T = TypeVar("T")
BROKERS = 3
BROKER, TOPIC = ConfigResourceType.BROKER, ConfigResourceType.TOPIC
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
# Replicas are fetched 1 MiB at a time, so that a throttle affects only longer logs.
RECORDS = [bytes(30_000)] * 100
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=BROKERS, dirs=2)


def _name() -> str:
    return f"reassigned-{next(_numbers)}"


def _replicas(cluster: Cluster, topic: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    partition = cluster.partitions(topic)[0]
    return partition.replicas, partition.isr


def _reassign(cluster: Cluster, topic: str, replicas: list[int] | None) -> type[KafkaError] | None:
    """Return kafka-python's error for partition 0, or None."""
    key = kafka.TopicPartition(topic, 0)
    with cluster.admin() as admin:
        outcome = admin.alter_partition_reassignments({key: replicas})[key]
    return None if outcome is NoError else outcome


def _ongoing(cluster: Cluster) -> dict[Any, Any]:
    with cluster.admin() as admin:
        found: dict[Any, Any] = admin.list_partition_reassignments()
    return found


def _configure(cluster: Cluster, kind: ConfigResourceType, name: str, values: Any) -> str:
    """Set ``values`` by key, where None deletes one; return "OK" or kafka-python's error."""
    changes = {
        key: ("DELETE", None) if value is None else ("SET", str(value))
        for key, value in values.items()
    }
    with cluster.admin() as admin:
        answered = admin.alter_configs(
            [ConfigResource(kind, name, changes)], raise_on_unknown=False
        )
    outcome: str = answered[kind.name.lower()][name]
    return outcome


def _ours(cluster: Cluster, ask: Callable[[ClusterClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with ClusterClient(cluster.bootstrap) as client:
            await client.refresh_metadata()
            return await ask(client)

    return asyncio.run(run())


def _reassign_to_dirs(
    cluster: Cluster, reassignment: replica_admin.Reassignment
) -> replica_admin.Refusals:
    return _ours(
        cluster, lambda client: replica_admin.alter_partition_reassignments(client, [reassignment])
    )


def _is_in(cluster: Cluster, topic: str, path: str) -> bool:
    """Return whether broker 2 has an in-sync replica in ``path``."""
    is_there = cluster.replicas_by_dir(2, topic)[path] == [0]
    return is_there and _replicas(cluster, topic)[1] == (1, 2)


def test_reassignment_by_foreign_client_moves_partition_without_loss(cluster: Cluster) -> None:
    name = _name()
    cluster.create_topic(name, assignments={0: [1, 2]})
    values = [b"%d" % i for i in range(200)]
    clients.write_confluent(cluster.bootstrap, name, values)
    assert _reassign(cluster, name, [3, 2]) is None
    cluster.wait(f"{name} on 3 and 2", lambda: _replicas(cluster, name) == ((3, 2), (2, 3)))
    assert _ongoing(cluster) == {}
    assert clients.read_confluent(cluster.bootstrap, name, len(values)) == values
    cluster.wait("1 to delete it", lambda: not any(cluster.replicas_by_dir(1, name).values()))


def test_impossible_reassignment_is_refused_by_partition(cluster: Cluster) -> None:
    name = _name()
    cluster.create_topic(name, assignments={0: [1]})
    refused = _reassign(cluster, name, [9])
    assert refused is not None and refused.errno == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    nothing = _reassign(cluster, name, None)
    assert nothing is not None and nothing.errno == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_throttle_delays_reassignment_until_it_is_lifted(cluster: Cluster) -> None:
    """KIP-73: one byte per second on both sides; replicas that are not listed are not throttled."""
    name, other = _name(), _name()
    cluster.create_topic(name, assignments={0: [1]})
    cluster.create_topic(other, assignments={0: [1, 2]})
    clients.write_confluent(cluster.bootstrap, name, RECORDS)
    listed = {LEADER_REPLICAS: "0:1", FOLLOWER_REPLICAS: "0:2"}
    assert _configure(cluster, BROKER, "1", {LEADER_RATE: 1}) == "OK"
    assert _configure(cluster, BROKER, "2", {FOLLOWER_RATE: 1}) == "OK"
    assert _configure(cluster, TOPIC, name, listed) == "OK"
    key = kafka.TopicPartition(name, 0)
    assert _reassign(cluster, name, [2]) is None
    cluster.wait("some of it on 2", lambda: any(cluster.replicas_by_dir(2, name).values()))
    # acks=all between the same pair of brokers: no fetch loop and no session stops.
    clients.write_confluent(cluster.bootstrap, other, RECORDS[:20], acks="all")
    ongoing = _ongoing(cluster)
    assert ongoing[key]["adding_replicas"] == [2]
    assert ongoing[key]["removing_replicas"] == [1]
    size = sum(d.sizes.get(f"{name}-0", 0) for d in cluster.directories(2).values())
    assert size < sum(map(len, RECORDS))

    assert _reassign(cluster, name, None) is None
    cluster.wait("the cancel", lambda: _replicas(cluster, name) == ((1,), (1,)))
    assert key not in _ongoing(cluster)

    assert _reassign(cluster, name, [2]) is None
    for broker in ("1", "2"):
        rates = {LEADER_RATE: None, FOLLOWER_RATE: None}
        assert _configure(cluster, BROKER, broker, rates) == "OK"
    cluster.wait(f"{name} on 2", lambda: _replicas(cluster, name) == ((2,), (2,)))
    assert clients.read_confluent(cluster.bootstrap, name, len(RECORDS)) == RECORDS


@pytest.mark.parametrize("by_id", [False, True], ids=["by path", "by id"])
def test_reassignment_places_new_replica_in_named_directory(cluster: Cluster, by_id: bool) -> None:
    """The future work of KIP-858: the target directory is part of the request."""
    name = _name()
    cluster.create_topic(name, assignments={0: [1]})
    clients.write_confluent(cluster.bootstrap, name, [b"v"] * 10)
    for target in _ours(cluster, lambda client: replica_admin.describe_log_dirs(client, 2)):
        assert target.directory_id is not None
        path = target.path
        reassignment = replica_admin.Reassignment(
            topic_partition=TopicPartition(name, 0),
            replicas=[1, 2],
            target_dirs=["any", f"dirid:{target.directory_id}" if by_id else path],
        )
        assert _reassign_to_dirs(cluster, reassignment) == {}
        cluster.wait(f"all in sync, one in {path}", partial(_is_in, cluster, name, path))
        assert _reassign(cluster, name, [1]) is None
        cluster.wait("it to go", lambda: not any(cluster.replicas_by_dir(2, name).values()))


def test_reassignment_to_unknown_directory_lists_known_ones(cluster: Cluster) -> None:
    name = _name()
    cluster.create_topic(name, assignments={0: [1]})
    reassignment = replica_admin.Reassignment(
        topic_partition=TopicPartition(name, 0), replicas=[1, 2], target_dirs=["any", "/nowhere"]
    )
    refused = _reassign_to_dirs(cluster, reassignment)
    (error,) = refused.values()
    assert error.code is ErrorCode.LOG_DIR_NOT_FOUND
    assert all(path in error.message for path in cluster.directories(2))


def test_alter_replica_log_dirs_by_foreign_client_moves_replica(cluster: Cluster) -> None:
    name = _name()
    cluster.create_topic(name, assignments={0: [1]})
    values = [b"%d" % i for i in range(50)]
    clients.write_confluent(cluster.bootstrap, name, values)
    by_dir = cluster.replicas_by_dir(1, name)
    (target,) = [path for path, found in by_dir.items() if not found]
    with cluster.admin() as admin:
        (outcome,) = admin.alter_replica_log_dirs({(name, 0, 1): target}).values()
        assert outcome is NoError
        (refused,) = admin.alter_replica_log_dirs({(name, 0, 1): "/nowhere"}).values()
        assert refused.errno == ErrorCode.LOG_DIR_NOT_FOUND
    cluster.wait("the move", lambda: cluster.replicas_by_dir(1, name)[target] == [0])
    assert clients.read_confluent(cluster.bootstrap, name, len(values)) == values


def test_foreign_client_reads_features_and_cannot_update_unknown_one(cluster: Cluster) -> None:
    with cluster.admin() as admin:
        answered = admin.describe_features()
        least, greatest = answered["metadata.version"]["supported"]
        _, level = answered["metadata.version"]["finalized"]
        assert least <= level <= greatest
        with pytest.raises(KafkaError, match="does not know this feature"):
            admin.update_features({"no.such.feature": 1})
        assert admin.describe_features()["metadata.version"]["finalized"] == (level, level)


def test_incremental_alter_configs_by_librdkafka_changes_single_values(cluster: Cluster) -> None:
    name = _name()
    cluster.create_topic(name, segment_ms=9_000)
    admin = AdminClient({**clients.quiet(cluster.bootstrap)})
    resource = ConfluentResource(ConfluentResource.Type.TOPIC, name)
    resource.add_incremental_config(
        ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    )
    resource.add_incremental_config(
        ConfigEntry(FOLLOWER_REPLICAS, "0:1", incremental_operation=AlterConfigOpType.APPEND)
    )
    resource.add_incremental_config(
        ConfigEntry("segment.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    )
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(timeout=20)

    def entries() -> dict[str, Any]:
        asked = ConfluentResource(ConfluentResource.Type.TOPIC, name)
        (described,) = admin.describe_configs([asked]).values()
        found: dict[str, Any] = described.result(timeout=20)
        return found

    dynamic = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    cluster.wait("the change", lambda: entries()["retention.ms"].value == "5000")
    got = entries()
    assert got["retention.ms"].source == got[FOLLOWER_REPLICAS].source == dynamic
    assert got[FOLLOWER_REPLICAS].value == "0:1"
    assert got["segment.ms"].source != dynamic


def test_broker_config_by_kafka_python_shows_its_sources(
    cluster: Cluster,
) -> None:
    def rate() -> dict[str, Any]:
        resource = ConfigResource(BROKER, "3")
        with cluster.admin(3) as admin:
            answered = admin.describe_configs(
                [resource], include_synonyms=True, config_filter="all"
            )
        found: dict[str, Any] = answered["broker"]["3"][LEADER_RATE]
        return found

    def set_for_all(value: str | None) -> None:
        # kafka-python has no resource for the default of all brokers.
        kind = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        everybody = config_admin.ConfigResource(config_admin.ResourceType.BROKER, "")
        change = {everybody: [ConfigChange(LEADER_RATE, value, kind)]}
        _ours(cluster, lambda client: config_admin.incremental_alter_configs(client, change))

    set_for_all("77000")
    assert _configure(cluster, BROKER, "3", {LEADER_RATE: 99_000}) == "OK"
    cluster.wait("the rate", lambda: rate()["value"] == "99000")
    assert [s["value"] for s in rate()["synonyms"]][:2] == ["99000", "77000"]
    assert _configure(cluster, BROKER, "3", {LEADER_RATE: None}) == "OK"
    cluster.wait("the rate of all", lambda: rate()["value"] == "77000")
    set_for_all(None)
    cluster.wait("the default", lambda: rate()["value"] == str(2**63 - 1))


@pytest.mark.parametrize(
    ("kind", "name", "values", "why"),
    [
        (BROKER, "1", {LEADER_RATE: "fast"}, LEADER_RATE),
        (BROKER, "1", {"log.dirs": "/x"}, "cannot change while a broker runs"),
        (TOPIC, "there-is-none", {"retention.ms": 5}, "no topic 'there-is-none'"),
    ],
    ids=["value", "static key", "unknown topic"],
)
def test_invalid_configurations_are_refused(
    cluster: Cluster, kind: ConfigResourceType, name: str, values: Any, why: str
) -> None:
    assert why in _configure(cluster, kind, name, values)
