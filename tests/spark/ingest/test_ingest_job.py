"""The job ``ingest`` on a real cluster: its tables, and its results after a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.audit import audit_job
from kraftjbod.spark.ingest.ingest_job import command, read_schema
from kraftjbod.spark.tables.schemas import INGESTED
from tests.checkout import ROOT
from tests.integration.checker import Load
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.spark.running import environment

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(1200)]

HOUR_MS = 3_600_000
# For a job that starts and runs a few batches, on a busy machine.
LONGEST_S = 400.0
Ingest = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=1, dirs=2)


@pytest.fixture
def ingest(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Ingest:
    """Runs the job in this process; returns its summary, or the last line of its error."""

    def run(*options: str, fails: bool = False) -> Any:
        common = ["--bootstrap-server", cluster.bootstrap, "--tables", str(tmp_path), "--json"]
        done = CliRunner().invoke(command, [*common, *options], catch_exceptions=False)
        assert (done.exit_code != 0) is fails, done.stderr
        return done.stderr.splitlines()[-1] if fails else json.loads(done.stdout)

    return run


def produce(cluster: Cluster, topic: str, *values: bytes, timestamp_ms: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for value in values:
        producer.produce(topic, value, key=b"k", partition=0, timestamp=timestamp_ms)
    assert producer.flush(30) == 0


def test_ingest_writes_good_late_and_corrupt_records_to_folders_of_one_table(
    cluster: Cluster, ingest: Ingest, spark: SparkSession, tmp_path: Path
) -> None:
    cluster.create_topic("mixed")
    now_ms = time.time_ns() // 1_000_000
    values = [b'{"at": %d}' % now_ms, b'{"at": %d}' % (now_ms - 2 * HOUR_MS), b"\xff\x00 no JSON"]
    produce(cluster, "mixed", *values, timestamp_ms=now_ms)
    options = ["--topics", "mixed", "--value-schema", "at BIGINT", "--event-time", "at"]
    options += ["--late-after", "1 hour", "--partition-by", "topic"]
    printed = ingest(*options)
    assert printed["topics"] == {"mixed": {"good": 1, "late": 1, "corrupt": 1}}
    assert printed["partitions"] == [
        {"topic": "mixed", "partition": 0, "rows": 3, "first": 0, "last": 2}
    ]
    assert printed["table"] == str(tmp_path / "ingested")
    rows = spark.read.schema(INGESTED).parquet(printed["table"]).orderBy("offset").collect()
    assert [(bytes(r.value), r.status) for r in rows] == list(
        zip(values, ("good", "late", "corrupt"), strict=True)
    )
    folders = {path.parent.relative_to(printed["table"]) for path in tmp_path.rglob("*.parquet")}
    assert folders == {Path(f"status={s}/topic=mixed") for s in ("good", "late", "corrupt")}
    # A second run begins at the end of the first one.
    produce(cluster, "mixed", b'{"at": %d}' % now_ms, timestamp_ms=now_ms)
    again = ingest(*options)
    assert (again["rows"], again["batches"]) == (4, printed["batches"] + 1)


def test_ingest_with_pattern_reads_matching_topics_with_and_without_records(
    cluster: Cluster, ingest: Ingest
) -> None:
    for topic in ("wide-1", "wide-2", "other"):
        cluster.create_topic(topic)
    assert ingest("--topics-pattern", "wide-.*", "--name", "wide")["rows"] == 0
    for topic in ("wide-1", "wide-2", "other"):
        produce(cluster, topic, b"v", b"w")
    printed = ingest(
        "--topics-pattern", "wide-.*", "--name", "wide", "--max-records-per-trigger", "2"
    )
    good = {"good": 2, "late": 0, "corrupt": 0}
    assert printed["topics"] == {"wide-1": good, "wide-2": good}
    assert printed["batches"] >= 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give either --topics or --topics-pattern"),
        (["--topics", "a", "--topics-pattern", "b"], "give either --topics or --topics-pattern"),
        (["--topics", "nowhere"], "nowhere"),
        (["--topics", "a", "--event-time", "at"], "give its --value-schema"),
        (["--topics", "a", "--value-schema", "id BIGINT,,"], "Syntax error"),
        (["--topics", "a", "--late-after", "soon"], "expected a duration such as"),
        (["--topics", "a", "--trigger", "soon"], "--trigger 'soon': expected a duration"),
        (["--topics", "a", "--option", "maxOffsets=5"], "'maxOffsets' is no kafka.NAME"),
        (["--topics", "a", "--option", "kafka.bootstrap.servers=b:1"], "say --bootstrap-server"),
        (["--topics", "a", "--option", "kafka.metric.reporters=x"], "of Java's client only"),
        (["--topics", "a", "--option", "kafka.no.such=1"], 'property: "no.such"'),
    ],
)
def test_ingest_error_states_the_reason(ingest: Ingest, options: list[str], says: str) -> None:
    assert says in ingest(*options, fails=True)


def test_read_schema_accepts_ddl_or_a_file_with_it(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "values.ddl"
    path.write_text("id BIGINT NOT NULL,\n  at TIMESTAMP\n")
    assert read_schema(str(path)) == read_schema("id BIGINT NOT NULL, at TIMESTAMP")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot read --value-schema"):
        read_schema(str(path))
    with pytest.raises(ConfigError, match="names no fields"):
        read_schema("BIGINT")


def test_ingest_after_kill_has_every_record_once(
    cluster: Cluster, ingest: Ingest, spark: SparkSession, tmp_path: Path
) -> None:
    """The job and its Java process die by SIGKILL during the load; then it runs to the end. The
    audit compares table and acknowledgements."""
    topic, seed = "killed", random.randrange(2**32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    cluster.create_topic(topic, partitions=3)
    with Load(cluster.bootstrap, topic, 3, in_flight=10, pause_s=0.05) as load:
        for batches in (2, 4):
            _kill_after_batches(cluster, topic, tmp_path, batches, moments.uniform(0, 1.5))
        before = load.acked_by_partition()
        cluster.wait("more records", lambda: load.flowed_since(before, 50))
        load.stop()
    load.write_acknowledged(tmp_path / "acknowledged.jsonl")
    printed = ingest("--topics", topic)
    assert printed["rows"] == load.acked
    table = spark.read.schema(INGESTED).parquet(printed["table"])
    offsets = Counter(
        (r.partition, r.offset) for r in table.select("partition", "offset").collect()
    )
    assert set(offsets.values()) == {1}
    asked = ["--bootstrap-server", cluster.bootstrap, "--tables", str(tmp_path), "--json"]
    asked += ["--acknowledged", str(tmp_path / "acknowledged.jsonl"), "--ingested", "--no-replicas"]
    audited = CliRunner().invoke(audit_job.command, asked, catch_exceptions=False)
    assert audited.exit_code == 0, audited.output
    assert json.loads(audited.stdout)["standings"] == {"found": load.acked}


def _kill_after_batches(
    cluster: Cluster, topic: str, tables: Path, batches: int, wait_s: float
) -> None:
    """Start the job as a user does, and kill it ``wait_s`` after a number of committed batches."""
    asked = ["--bootstrap-server", cluster.bootstrap, "--tables", str(tables), "--topics", topic]
    asked += ["--continuous", "--trigger", "0 seconds", "--max-records-per-trigger", "300"]
    asked += [
        "--master",
        "local[2]",
        "--conf",
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
    ]
    job = subprocess.Popen(
        [str(ROOT / "bin/kraftjbod-pipeline"), "ingest", *asked],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    commits = tables / "_checkpoints/ingested/commits"
    try:

        def is_far_enough() -> bool:
            assert job.poll() is None, job.communicate()[1]
            return commits.is_dir() and (commits / str(batches)).exists()

        cluster.wait(f"{batches} batches of the job", is_far_enough, timeout_s=LONGEST_S)
        time.sleep(wait_s)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
