"""The job ``audit`` on a real cluster, with true and with altered acknowledgements."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from kafka import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kraftjbod.spark.audit import audit_frames, audit_job
from kraftjbod.spark.audit.audit_job import TABLE, command
from kraftjbod.spark.audit.audit_material import Material
from kraftjbod.spark.report.report_data import ReportData, read_report_data
from kraftjbod.spark.report.report_sections import ReportSections
from kraftjbod.spark.report.report_summary import summary
from kraftjbod.spark.session.job import Job
from kraftjbod.spark.tables.schemas import AUDIT_DIFFERENCES, SKEW
from kraftjbod.spark.tables.stored_tables import publish, read_folder
from tests.integration.checker import Load
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

TOPIC = "audited"
PARTITIONS = 3
PER_PARTITION = 50
Line = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=3, dirs=2)


@pytest.fixture(scope="module")
def acknowledged(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The acknowledgements of :data:`TOPIC`, which no test changes."""
    cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
    path = tmp_path_factory.mktemp("load") / "acknowledged.jsonl"
    with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        cluster.wait("load", lambda: load.flowed_since([0] * PARTITIONS, PER_PARTITION))
        load.stop()
    load.write_acknowledged(path)
    return path


@pytest.fixture
def audit(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Callable[..., Any]:
    """Runs the job in this process; returns its exit code, and its summary or its error."""

    def run(*options: str, fails: bool = False) -> tuple[int, Any]:
        tables = ["--tables", str(tmp_path / "tables"), "--json"]
        asked = ["--bootstrap-server", cluster.bootstrap, *tables, *options]
        done = CliRunner().invoke(command, asked, catch_exceptions=False)
        assert bool(done.stdout) is not fails, done.stderr
        return done.exit_code, done.stderr if fails else json.loads(done.stdout)

    return run


def doctored(acknowledged: Path, path: Path, change: Callable[[list[Line]], Any]) -> Path:
    lines = [json.loads(line) for line in acknowledged.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_audit_of_sound_topic_passes_without_unchecked_records(
    audit: Callable[..., Any], acknowledged: Path
) -> None:
    code, printed = audit("--acknowledged", str(acknowledged), "--records-are-unique")
    records = len(acknowledged.read_text().splitlines())
    assert (code, printed["differences"], printed["unchecked"]) == (0, {}, [])
    assert printed["standings"] == {"found": records}
    assert (printed["records"], printed["partitions"], printed["replicas"]) == (records, 3, 9)
    assert printed["batches"] % 3 == 0 and printed["batches"] > 0
    assert printed["topics"] == [TOPIC]


def test_audit_of_altered_acknowledgements_reports_differences_and_fails(
    audit: Callable[..., Any], acknowledged: Path, spark: SparkSession, tmp_path: Path
) -> None:
    def change(lines: list[Line]) -> None:
        first = [line for line in lines if line["partition"] == 0]
        first[1]["value_crc"] = 1
        beyond = {**first[-1], "offset": 10**6, "sequence": 10**6}
        strange = {**beyond, "partition": 9}
        lines += [beyond, strange, {**beyond, "topic": "another"}]

    path = doctored(acknowledged, tmp_path / "a.jsonl", change)
    code, printed = audit("--acknowledged", str(path), "--no-replicas", "--topics", TOPIC)
    assert (code, printed["missing"], printed["differences"]) == (
        1,
        2,
        {"missing": 2, "changed": 1},
    )
    assert printed["unchecked"] == [
        "replicas, which were not to be compared",
        "1 lines of acknowledgements that are of other topics",
    ]
    rows = read_folder(spark, printed["table"], AUDIT_DIFFERENCES)
    assert rows is not None and printed["table"].endswith(TABLE)
    found = {(r.difference, r.partition, r.offset): r.detail for r in rows.collect()}
    assert found.keys() == {("missing", 0, 10**6), ("missing", 9, 10**6), ("changed", 0, 1)}
    assert found["missing", 9, 10**6] == "there is no such partition"


def test_audit_counts_repetitions_unless_duplicates_are_allowed(
    audit: Callable[..., Any], acknowledged: Path, tmp_path: Path
) -> None:
    def change(lines: list[Line]) -> None:
        # The second record repeats the first one, and the next one has an older sequence.
        first = [line for line in lines if line["partition"] == 0]
        first[1]["sequence"] = first[0]["sequence"]
        first[3]["sequence"] = first[2]["sequence"] - 1

    path = str(doctored(acknowledged, tmp_path / "a.jsonl", change))
    code, printed = audit("--acknowledged", path, "--no-replicas")
    assert (code, printed["differences"]) == (1, {"duplicate": 1, "out_of_order": 1})
    code, printed = audit("--acknowledged", path, "--no-replicas", "--allow-duplicates")
    assert (code, printed["differences_that_count"]) == (0, 0)


def test_audit_of_parquet_and_batches_reports_unchecked_parts(
    audit: Callable[..., Any], acknowledged: Path, spark: SparkSession, tmp_path: Path
) -> None:
    places = spark.read.json(str(acknowledged)).select("topic", "partition", "offset")
    places.write.parquet(str(tmp_path / "acked"))
    code, printed = audit("--acknowledged", str(tmp_path / "acked"), "--no-replicas")
    records = printed["records"]
    assert (code, printed["standings"]) == (0, {"found": records})
    assert printed["unchecked"] == [
        f"contents of {records:,} acknowledged records that came without a CRC",
        f"order of {records:,} acknowledged records without producer and sequence",
        "replicas, which were not to be compared",
    ]
    ranges = tmp_path / "ranges.jsonl"
    line = {"topic": TOPIC, "partition": 1, "offset": 0, "count": PER_PARTITION}
    ranges.write_text(json.dumps(line))
    code, printed = audit("--acknowledged", str(ranges), "--no-replicas")
    assert (code, printed["standings"]) == (0, {"found": PER_PARTITION})


def test_report_after_interrupted_audit_states_that_it_did_not_end(
    audit: Callable[..., Any],
    acknowledged: Path,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A report shows the findings of the last complete audit, and that a later one did not end."""
    tables = tmp_path / "tables"
    publish(spark.createDataFrame([], SKEW), str(tables / "skew"))

    def breaking_off(_: Job, material: Material, *_more: object) -> DataFrame:
        broken = F.raise_error(F.lit("the disk of the tables is full"))
        records = material.rows(acknowledged=False)
        return audit_frames.differences(records, "missing", broken.cast("string"))

    def report_after_a_broken_audit() -> ReportData:
        with monkeypatch.context() as during:
            during.setattr(audit_job, "judged_differences", breaking_off)
            _, said = audit("--acknowledged", str(acknowledged), "--no-replicas", fails=True)
        assert "the disk of the tables is full" in said
        return read_report_data(Job(spark=spark, tables=str(tables)), hours=None)

    data = report_after_a_broken_audit()
    assert data.audit_counts is None and TABLE in data.missing
    assert ReportSections(data, "T").audit().missing
    publish(spark.createDataFrame([], AUDIT_DIFFERENCES), str(tables / TABLE))
    data = report_after_a_broken_audit()
    assert ReportSections(data, "T").audit().lead == (
        "0 differences found by the last audit that ended. A later one has not ended."
    )
    assert 'class="tile warn"' in summary(data)


def test_audit_counts_trimmed_and_compacted_records_as_no_loss(
    audit: Callable[..., Any], cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create_topic("kept", cleanup_policy="compact")
    cluster.create_topic("trimmed")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    for topic in ("kept", "trimmed"):
        for number in range(4):
            producer.produce(topic, key=b"k", value=b"%d" % number)
            producer.flush()
    with cluster.admin() as admin:
        admin.delete_records({TopicPartition("trimmed", 0): 3})
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(
            json.dumps({"topic": topic, "partition": 0, "offset": 0, "count": 4}) + "\n"
            for topic in ("kept", "trimmed")
        )
    )
    code, printed = audit("--acknowledged", str(path))
    assert (code, printed["differences"], printed["standings"]) == (
        0,
        {},
        {"found": 5, "trimmed": 3},
    )
    assert printed["unchecked"][:2] == [
        "3 acknowledged records are before the start of their logs",
        "offsets and replicas of compacted topics: kept",
    ]


@pytest.mark.parametrize(
    ("lines", "options", "says"),
    [
        ('{"topic": "nowhere", "partition": 0, "offset": 1}', [], "topic nowhere"),
        ('{"topic": 1,', [], "a.jsonl"),
        ("", [], "no topic to audit"),
    ],
)
def test_audit_error_states_the_reason(
    audit: Callable[..., Any], tmp_path: Path, lines: str, options: list[str], says: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines)
    code, printed = audit("--acknowledged", str(path), *options, fails=True)
    assert code == 1 and says in printed.splitlines()[-1]


def test_audit_without_json_prints_missing_records(
    cluster: Cluster, acknowledged: Path, spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"topic": TOPIC, "partition": 0, "offset": 10**6}))
    options = ["--tables", str(tmp_path), "--acknowledged", str(path), "--no-replicas"]
    done = CliRunner().invoke(command, ["--bootstrap-server", cluster.bootstrap, *options])
    assert done.exit_code == 1
    assert f"  missing: {TOPIC}-0 at 1000000: the log holds 0 up to before" in done.stdout
    assert done.stdout.endswith("1 differences count\n")
