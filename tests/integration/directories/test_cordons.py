"""Cordoned directories (KIP-1066) on a cluster of real processes, by our tools and by foreign ones.

The scenarios of KIP-1066's own test plan: from the file, while brokers run, all at once, through
the controllers, and the retirement of a directory and of a broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import confluent_kafka
import kafka.errors
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType

from kraftjbod.core.ids import BrokerId
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.tools import Done, called, started, tool

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(180)]

CORDONS = "cordoned.log.dirs"
_names = (f"cordons-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Iterator[Cluster]:
    yield make_shared_cluster(brokers=2, dirs=2, broker_config={2: {"broker.rack": "r"}})


@pytest.fixture(autouse=True)
def nothing_set(cluster: Cluster) -> Iterator[None]:
    yield
    for name in ("1", "2", ""):
        words = ("--entity-default",) if not name else ("--entity-name", name)
        tool(
            "configs", cluster, "--alter", "--entity-type", "brokers", *words,
            "--delete-config", CORDONS,
        )  # fmt: skip
    _wait_cordoned(cluster, 1)
    _wait_cordoned(cluster, 2)


def _path(cluster: Cluster, broker_id: int, number: int) -> str:
    return str(cluster.local.dir_path(broker_id, number))


def _configs(cluster: Cluster, *words: str) -> str:
    done = tool("configs", cluster, "--entity-type", "brokers", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _cordon(cluster: Cluster, broker_id: int, *paths: str) -> None:
    added = f"{CORDONS}=[{','.join(paths)}]"
    words = ("--alter", "--entity-name", str(broker_id), "--add-config", added)
    assert _configs(cluster, *words) == f"Completed updating config for broker {broker_id}.\n"


def _cordoned(cluster: Cluster, broker_id: int) -> set[str]:
    """Return the cordoned directories that log-dirs shows."""
    answered = tool("log-dirs", cluster, "--describe", "--format", "json")
    return {
        log_dir["logDir"]
        for broker in json.loads(answered.stdout)["brokers"]
        for log_dir in broker["logDirs"]
        if broker["broker"] == broker_id and log_dir["isCordoned"]
    }


def _wait_cordoned(cluster: Cluster, broker_id: int, *paths: str) -> None:
    """Wait for the cordons at the broker and in the committed metadata."""

    def is_reached() -> bool:
        broker = cluster.metadata().brokers[BrokerId(broker_id)]
        known = {broker.log_dir_paths[d] for d in broker.cordoned_log_dirs}
        return known == set(paths) == _cordoned(cluster, broker_id)

    cluster.wait(f"{paths} to be what broker {broker_id} has cordoned", is_reached)


def test_cordoned_directory_gets_no_new_replicas(cluster: Cluster) -> None:
    before, after = next(_names), next(_names)
    one, two = _path(cluster, 1, 1), _path(cluster, 1, 2)
    cluster.create_topic(before, assignments={n: [1] for n in range(4)})
    had = cluster.replicas_by_dir(1, before)
    _cordon(cluster, 1, f"{one}/.")
    assert _configs(cluster, "--describe", "--entity-name", "1") == (
        "Dynamic configs for broker 1 are:\n"
        f"  {CORDONS}={one} sensitive=false "
        f"synonyms={{DYNAMIC_BROKER_CONFIG:{CORDONS}={one}, DEFAULT_CONFIG:{CORDONS}=}}\n"
    )
    _wait_cordoned(cluster, 1, one)
    cluster.create_topic(after, assignments={n: [1] for n in range(4)})
    assert cluster.replicas_by_dir(1, after) == {one: [], two: [0, 1, 2, 3]}
    assert cluster.replicas_by_dir(1, before) == had


def test_refusals_by_cordons_name_the_reason(cluster: Cluster) -> None:
    here, name = next(_names), next(_names)
    cluster.create_topic(here, assignments={0: [1]})
    _cordon(cluster, 2, "*")
    with cluster.admin() as admin:
        with pytest.raises(kafka.errors.InvalidReplicationFactorError) as few:
            admin.create_topics({name: {"num_partitions": 1, "replication_factor": 2}})
        assert "have all their log directories cordoned" in str(few.value)
        with pytest.raises(kafka.errors.InvalidReplicationAssignmentError) as manual:
            admin.create_topics({name: {"assignments": {0: [1, 2]}}})
        assert "broker 2, but all its log directories are cordoned" in str(manual.value)
        key = kafka.TopicPartition(here, 0)
        outcome = admin.alter_partition_reassignments({key: [1, 2]})[key]
        assert outcome.errno == 107  # INELIGIBLE_REPLICA
    there = [path for path, found in cluster.replicas_by_dir(1, here).items() if not found]
    _cordon(cluster, 1, *there)
    plan = {
        "version": 1,
        "partitions": [{"topic": here, "partition": 0, "replicas": [1], "log_dirs": there}],
    }
    path = cluster.local.run_dir / "plan.json"
    path.write_text(json.dumps(plan))
    done = tool("reassign-partitions", cluster, "--execute", "--reassignment-json-file", str(path))
    assert done.returncode == 1
    assert f"log directory {there[0]} of broker 1 is cordoned" in done.stderr


def test_impossible_cordons_are_refused_with_kafkas_sentences(cluster: Cluster) -> None:
    words = ("--entity-type", "brokers", "--entity-name", "1", "--alter", "--add-config")
    for added, why in (
        (
            "/nowhere",
            "Invalid entry in cordoned.log.dirs: /nowhere. All cordoned log dirs must be ",
        ),
        ("[*,/nowhere]", "When cordoned.log.dirs is set to *, it must not contain other values"),
    ):
        done = tool("configs", cluster, *words, f"{CORDONS}={added}")
        assert done.returncode == 1
        assert why in done.stderr
    assert _cordoned(cluster, 1) == set()


def test_default_cordon_applies_to_all_brokers_except_overrides(cluster: Cluster) -> None:
    everything = {n: [_path(cluster, n, 1), _path(cluster, n, 2)] for n in (1, 2)}
    assert _configs(cluster, "--alter", "--entity-default", "--add-config", f"{CORDONS}=*") == (
        "Completed updating default config for brokers in the cluster.\n"
    )
    for broker_id, paths in everything.items():
        _wait_cordoned(cluster, broker_id, *paths)
    _cordon(cluster, 1)
    _wait_cordoned(cluster, 1)
    name = next(_names)
    cluster.create_topic(name, partitions=3)
    assert {p.replicas for p in cluster.partitions(name).values()} == {(1,)}


def test_dynamic_cordon_survives_restart_and_overrides_the_file(cluster: Cluster) -> None:
    one, two = _path(cluster, 2, 1), _path(cluster, 2, 2)
    _cordon(cluster, 2, two)
    broker = cluster.brokers[2]
    cluster.stop_daemon(broker)
    config = broker.files.config_path
    text = config.read_text()
    try:
        config.write_text(f"{text}\n{CORDONS}={one}/\n")
        cluster.start_daemon(broker)
        _wait_cordoned(cluster, 2, two)
        shown = _configs(cluster, "--describe", "--entity-name", "2")
        assert f"STATIC_BROKER_CONFIG:{CORDONS}={one}," in shown
        _configs(cluster, "--alter", "--entity-name", "2", "--delete-config", CORDONS)
        _wait_cordoned(cluster, 2, one)
        cluster.stop_daemon(broker)
    finally:
        config.write_text(text)
    cluster.start_daemon(broker)
    _wait_cordoned(cluster, 2)


def test_cordon_of_stopped_broker_is_changed_at_the_controller_and_lifted_at_a_broker(
    cluster: Cluster,
) -> None:
    one, two = _path(cluster, 2, 1), _path(cluster, 2, 2)
    _cordon(cluster, 2, one, two)
    broker = cluster.brokers[2]
    cluster.stop_daemon(broker)
    try:
        assert _at_controller(cluster, "--add-config", f"{CORDONS}=*").returncode == 1
        done = _at_controller(cluster, "--add-config", f"{CORDONS}=[{one}]")
        assert done.stdout == "Completed updating config for broker 2.\n", done.stderr
        state = cluster.metadata().brokers[BrokerId(2)]
        assert [state.log_dir_paths[d] for d in state.cordoned_log_dirs] == [one]
        # Any other broker forwards changes that need no check.
        words = ("--alter", "--entity-name", "2", "--delete-config", CORDONS)
        assert _configs(cluster, *words) == "Completed updating config for broker 2.\n"
        assert cluster.metadata().brokers[BrokerId(2)].cordoned_log_dirs == ()
    finally:
        cluster.start_daemon(broker)
    _wait_cordoned(cluster, 2)


def _at_controller(cluster: Cluster, *words: str) -> Done:
    there = ("--bootstrap-controller", cluster.local.controller.address)
    entity = ("--entity-type", "brokers", "--entity-name", "2")
    return called("configs", *there, *entity, "--alter", *words)


def test_confluent_client_alters_cordons_and_topic_configs(cluster: Cluster) -> None:
    one, two = _path(cluster, 1, 1), _path(cluster, 1, 2)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    name = next(_names)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()

    def alter(kind: ResourceType, of: str, key: str, value: str, what: AlterConfigOpType) -> None:
        entry = ConfigEntry(key, value, incremental_operation=what)
        resource = ConfigResource(kind, of, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result()

    def value(kind: ResourceType, of: str, key: str) -> tuple[str, int]:
        resource = ConfigResource(kind, of)
        found = admin.describe_configs([resource])[resource].result()[key]
        return found.value, found.source

    broker, topic, how = ResourceType.BROKER, ResourceType.TOPIC, AlterConfigOpType
    alter(broker, "1", CORDONS, one, how.SET)
    _wait_cordoned(cluster, 1, one)
    assert value(broker, "1", CORDONS) == (one, 2)
    alter(broker, "1", CORDONS, two, how.APPEND)
    _wait_cordoned(cluster, 1, one, two)
    alter(broker, "1", CORDONS, one, how.SUBTRACT)
    _wait_cordoned(cluster, 1, two)
    with pytest.raises(confluent_kafka.KafkaException, match="Invalid entry"):
        alter(broker, "1", CORDONS, "/nowhere", how.SET)
    alter(topic, name, "retention.ms", "5000", how.SET)
    assert value(topic, name, "retention.ms") == ("5000", 1)


def test_kafka_python_alters_cordons(cluster: Cluster) -> None:
    one = _path(cluster, 1, 1)
    for change, expected in ((("SET", one), (one,)), (("DELETE", None), ())):
        with cluster.admin() as admin:
            resource = PythonResource(ConfigResourceType.BROKER, "1", {CORDONS: change})
            answered = admin.alter_configs([resource], raise_on_unknown=False)
        assert answered["broker"]["1"] == "OK"
        _wait_cordoned(cluster, 1, *expected)


def test_configs_tool_of_topic_prints_kafkas_lines(cluster: Cluster) -> None:
    name = next(_names)
    cluster.create_topic(name)
    entity = ("--entity-type", "topics", "--entity-name", name)
    words = ("--alter", *entity, "--add-config", "retention.ms=5000,cleanup.policy=delete")
    printed = started("configs", cluster, *words).stdout
    assert printed == f"Completed updating config for topic {name}.\n"
    lines = started("configs", cluster, "--describe", *entity).stdout.splitlines()
    assert lines[0] == f"Dynamic configs for topic {name} are:"
    assert lines[3].startswith(
        "  retention.ms=5000 sensitive=false "
        "synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000, DEFAULT_CONFIG:log.retention.hours=168"
    )
    # The other lines: the second key set here, and the one set at the topic's creation.
    assert len(lines) == 4
