"""``kraftjbod-pipeline plan`` on a real uneven cluster, and on its tables.

The real tool executes the plan and an independent client checks the result."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kraftjbod.cli.reassignment.reassignment_plan import ReassignmentError, parse_reassignment
from kraftjbod.spark.plan import plan_job
from kraftjbod.spark.tables.schemas import LOG_DIR_SAMPLES, PLAN_DIRS, PLAN_MOVES, REPLICA_SAMPLES
from kraftjbod.spark.tables.stored_tables import read_table
from tests.integration.clients import quiet
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.tools import tool

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(600)]

Plan = Callable[..., dict[str, Any]]
VALUE: Final = bytes(1000)
_names = (f"plan-{n}" for n in itertools.count())
RACKS: Final = {1: "a", 2: "b", 3: "a"}


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Iterator[Cluster]:
    yield make_shared_cluster(
        brokers=3,
        dirs=3,
        config={"storage.telemetry.enable": "false"},
        broker_config={n: {"broker.rack": rack} for n, rack in RACKS.items()},
    )


@pytest.fixture(autouse=True)
def empty_again(cluster: Cluster) -> Iterator[None]:
    yield
    with cluster.admin() as admin:
        admin.delete_topics([name for name in admin.list_topics() if name.startswith("plan-")])


@pytest.fixture
def plan(spark: SparkSession, tmp_path: Path, cluster: Cluster) -> Plan:
    """Runs the command in this process, in the session of the run."""

    def run(*words: str, code: int = 0, live: bool = True) -> dict[str, Any]:
        server = ("--bootstrap-server", cluster.bootstrap) if live else ()
        out = ("--out", str(tmp_path / "plan.json"), "--tables", str(tmp_path / "tables"))
        result = CliRunner().invoke(plan_job.command, [*server, "--json", *out, *words])
        assert result.exit_code == code, result.output
        printed: dict[str, Any] = {"error": result.stderr} if code else json.loads(result.stdout)
        return printed

    return run


def filled_topic(
    cluster: Cluster, assignments: Mapping[int, Sequence[int]], records: Mapping[int, int]
) -> str:
    """Create a topic with a number of one-kilobyte records by partition."""
    name = next(_names)
    cluster.create_topic(name, assignments=assignments)
    producer = confluent_kafka.Producer(quiet(cluster.bootstrap))
    for partition, count in records.items():
        for _ in range(count):
            producer.produce(name, value=VALUE, partition=partition)
    assert producer.flush(60) == 0
    cluster.wait_whole(name)
    return name


def put(cluster: Cluster, topic: str, places: Mapping[tuple[int, int], int]) -> None:
    """Move replicas, by partition and broker, into directories by number."""
    for (partition, broker), number in places.items():
        with cluster.admin(broker) as admin:
            path = str(cluster.local.dir_path(broker, number))
            admin.alter_replica_log_dirs({(topic, partition, broker): path})
    for (partition, broker), number in places.items():
        path = str(cluster.local.dir_path(broker, number))

        def where(broker: int = broker, partition: int = partition) -> list[str]:
            """Return the directories of a replica: two during a move."""
            held = cluster.replicas_by_dir(broker, topic)
            return [path for path, partitions in held.items() if partition in partitions]

        cluster.wait(f"{topic}-{partition} in {path} only", lambda w=where, p=path: w() == [p])


def execute(cluster: Cluster, tmp_path: Path) -> None:
    """Execute the plan with the real tool until it is complete."""
    file = ("--reassignment-json-file", str(tmp_path / "plan.json"))
    begun = tool("reassign-partitions", cluster, "--execute", "--progress", *file)
    assert begun.returncode == 0, begun.stderr


def held(cluster: Cluster, broker: int) -> list[int]:
    """Return the bytes of the tests' topics in each directory of a broker."""
    return [
        sum(size for name, size in one.sizes.items() if name.startswith("plan-"))
        for _, one in sorted(cluster.directories(broker).items())
    ]


def test_plan_of_uneven_directories_evens_them_out(
    cluster: Cluster, plan: Plan, tmp_path: Path
) -> None:
    topic = filled_topic(cluster, dict.fromkeys(range(6), (1, 2)), dict.fromkeys(range(6), 200))
    put(cluster, topic, {(n, b): 1 for n in range(6) for b in (1, 2)})
    before = held(cluster, 1)
    assert min(before) == 0
    picture, rollback = tmp_path / "plan.svg", tmp_path / "rollback.json"
    printed = plan("--observe", "0", "--picture", str(picture), "--rollback-out", str(rollback))
    assert printed["moves"] == 8 and printed["moves_across"] == 0
    assert printed["before"]["skew"] > 1.9 > 1.6 > printed["after"]["skew"]
    assert printed["moved_bytes"] >= printed["least_bytes"] > 0
    assert b"<svg" in picture.read_bytes()
    way_back = parse_reassignment(rollback.read_text())
    assert set(way_back.log_dirs.values()) == {str(cluster.local.dir_path(b, 1)) for b in (1, 2)}
    execute(cluster, tmp_path)
    for broker in (1, 2):
        assert max(held(cluster, broker)) <= 1.05 * sum(before) / 3
    again = plan("--observe", "0")
    assert (again["moves"], again["partitions"]) == (0, 0)
    with pytest.raises(ReassignmentError, match="cannot be empty"):
        parse_reassignment((tmp_path / "plan.json").read_text())


def test_plan_across_brokers_evens_them_out_and_keeps_racks(
    cluster: Cluster, plan: Plan, tmp_path: Path, spark: SparkSession
) -> None:
    """Broker 3 is empty; it is in the rack of broker 1, so broker 2's replicas stay.

    Broker 1 gives away replicas for both."""
    topic = filled_topic(cluster, dict.fromkeys(range(8), (1, 2)), dict.fromkeys(range(8), 200))
    printed = plan("--observe", "0", "--across-brokers")
    assert printed["moves_across"] > 0
    moves = read_table(spark, str(tmp_path / "tables"), "plan_moves", PLAN_MOVES)
    assert moves is not None
    crossing = moves.where(F.col("from_broker") != F.col("to_broker")).collect()
    assert {(row.from_broker, row.to_broker) for row in crossing} == {(1, 3)}
    execute(cluster, tmp_path)
    parts = cluster.partitions(topic)
    assert {part.replicas for part in parts.values()} == {(1, 2), (3, 2)}
    assert all(len({RACKS[b] for b in part.replicas}) == 2 for part in parts.values())
    assert 0.4 < sum(held(cluster, 3)) / sum(held(cluster, 2)) < 0.6


def test_plan_with_drains_empties_directories_and_brokers_and_respects_cordons(
    cluster: Cluster, plan: Plan, tmp_path: Path
) -> None:
    topic = filled_topic(cluster, dict.fromkeys(range(6), (1,)), dict.fromkeys(range(6), 50))
    put(cluster, topic, {(n, 1): 1 + n % 3 for n in range(6)})
    drained, cordoned = (str(cluster.local.dir_path(1, n)) for n in (1, 2))
    entity = ("--alter", "--entity-type", "brokers", "--entity-name", "1")
    done = tool("configs", cluster, *entity, "--add-config", f"cordoned.log.dirs={cordoned}")
    assert done.returncode == 0, done.stderr
    try:
        printed = plan("--observe", "0", "--drain", f"1:{drained}", "--tolerance", "1")
        assert printed["moves"] >= 2 and printed["missed"] == []
        execute(cluster, tmp_path)
        first, second, third = held(cluster, 1)
        assert (first == 0, second > 0, third > second) == (True, True, True)
    finally:
        tool("configs", cluster, *entity, "--delete-config", "cordoned.log.dirs")
    emptied = plan("--observe", "0", "--drain", "1", "--across-brokers")
    assert emptied["missed"] == []
    execute(cluster, tmp_path)
    assert sum(held(cluster, 1)) == 0
    assert {part.replicas for part in cluster.partitions(topic).values()} <= {(2,), (3,)}


def test_plan_with_observation_measures_write_rates(
    cluster: Cluster, plan: Plan, spark: SparkSession, tmp_path: Path
) -> None:
    """Only writes between the two observations count; a limit restricts the plan."""
    topic = filled_topic(cluster, dict.fromkeys(range(4), (1,)), dict.fromkeys(range(4), 20))
    put(cluster, topic, {(n, 1): 1 for n in range(4)})
    with written(cluster, topic, partition=2):
        printed = plan("--observe", "2", "--max-moves", "1")
    assert printed["moves"] == 1
    dirs = read_table(spark, str(tmp_path / "tables"), "plan_dirs", PLAN_DIRS)
    assert dirs is not None
    rates = {
        row.path: row.write_rate_before for row in dirs.where("write_rate_before > 0").collect()
    }
    assert list(rates) == [str(cluster.local.dir_path(1, 1))]


@contextlib.contextmanager
def written(cluster: Cluster, topic: str, *, partition: int) -> Iterator[None]:
    """Run a producer from before the block until its end."""
    ended = threading.Event()
    producer = confluent_kafka.Producer(quiet(cluster.bootstrap))
    producer.produce(topic, value=VALUE, partition=partition)
    assert producer.flush(60) == 0

    def produce() -> None:
        while not ended.wait(0.02):
            producer.produce(topic, value=VALUE, partition=partition)
            producer.poll(0)
        producer.flush(60)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "give either --bootstrap-server or --from-tables"),
        (("--from-tables", "--drain", "1"), 2, "give --across-brokers too"),
        (("--from-tables", "--drain", "disk"), 2, "'disk' is neither a broker id nor BROKER:PATH"),
    ],
)
def test_plan_with_wrong_usage_is_refused(
    plan: Plan, words: tuple[str, ...], code: int, said: str
) -> None:
    assert said in plan(*words, code=code, live=False)["error"]


def test_plan_with_drain_of_unknown_directory_or_broker_is_refused(plan: Plan) -> None:
    said = plan("--observe", "0", "--drain", "1:/nowhere", code=1)["error"]
    assert "--drain 1:/nowhere: there is no such directory" in said
    unknown = plan("--observe", "0", "--drain", "9", "--across-brokers", code=1)["error"]
    assert "brokers [1, 2, 3]" in unknown


def test_plan_with_drain_of_lost_broker_uses_metadata(
    cluster: Cluster, plan: Plan, tmp_path: Path
) -> None:
    topic = filled_topic(cluster, dict.fromkeys(range(4), (3, 1)), dict.fromkeys(range(4), 50))
    cluster.brokers[3].kill()
    try:
        cluster.wait(
            "broker 1 to lead",
            lambda: {part.leader for part in cluster.partitions(topic, ask=1).values()} == {1},
        )
        printed = plan("--observe", "0", "--drain", "3", "--across-brokers", "--max-moves", "100")
        assert printed["moves_across"] >= 4
        assert not any(line.startswith("3:") for line in printed["missed"])
        execute(cluster, tmp_path)
        assert {part.replicas for part in cluster.partitions(topic, ask=1).values()} == {(2, 1)}
    finally:
        cluster.start_daemon(cluster.brokers[3])


def samples(spark: SparkSession, tables: Path, *, age_s: float) -> None:
    """Write telemetry of one broker with two directories, one of which holds all replicas."""
    now = datetime.fromtimestamp(time.time() - age_s, tz=UTC)
    earlier = now - timedelta(seconds=60)
    origin = ("cluster", 1, None, "incarnation")
    dirs: list[dict[str, Any]] = [
        {
            "path": path,
            "state": "online",
            "is_cordoned": False,
            "total_bytes": 1000,
            "free_bytes": 900,
        }
        for path in ("/a", "/b")
    ]
    replicas: list[dict[str, Any]] = [
        {
            "path": "/a",
            "topic": "t",
            "partition": n,
            "is_future": False,
            "is_leader": True,
            "size_bytes": 10,
            "appended_bytes_total": 600 * n * late,
            "brokers": [1],
            "late": late,
        }
        for n in range(4)
        for late in (0, 1)
    ]
    names = ("cluster_id", "broker_id", "rack", "incarnation", "time")
    for table, schema, rows in (
        ("log_dir_samples", LOG_DIR_SAMPLES, dirs),
        ("replica_samples", REPLICA_SAMPLES, replicas),
    ):
        full = [
            {
                **dict.fromkeys(schema.fieldNames()),
                **dict(zip(names, (*origin, now if row.pop("late", 1) else earlier), strict=True)),
                **row,
            }
            for row in rows
        ]
        frame = spark.createDataFrame([tuple(row.values()) for row in full], schema)
        frame.write.mode("overwrite").parquet(str(tables / table))


def test_plan_from_recent_tables_evens_write_rates(
    plan: Plan, spark: SparkSession, tmp_path: Path
) -> None:
    samples(spark, tmp_path / "tables", age_s=30)
    printed = plan("--from-tables", live=False)
    assert (printed["moves"], printed["moved_bytes"]) == (2, 20)
    assert printed["after"]["rate_skew"] < printed["before"]["rate_skew"] == 2
    file = json.loads((tmp_path / "plan.json").read_text())
    assert {entry["log_dirs"][0] for entry in file["partitions"]} == {"/b"}


def test_plan_from_tables_with_old_samples_is_refused(
    plan: Plan, spark: SparkSession, tmp_path: Path
) -> None:
    said = plan("--from-tables", live=False, code=1)["error"]
    assert "there is no table" in said and "run the telemetry job first" in said
    samples(spark, tmp_path / "tables", age_s=3600)
    said = plan("--from-tables", live=False, code=1)["error"]
    assert "telemetry is too old to plan by: broker 1 36" in said and "--max-age" in said
    assert plan("--from-tables", "--max-age", "7200", live=False)["moves"] == 2
