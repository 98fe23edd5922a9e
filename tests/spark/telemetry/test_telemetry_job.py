"""The job ``telemetry`` on real clusters: its tables, from test records and records of brokers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from kraftjbod.protocol.telemetry.group_telemetry import TOPIC as GROUPS_TOPIC
from kraftjbod.protocol.telemetry.group_telemetry import LagSample
from kraftjbod.protocol.telemetry.group_telemetry import encode as encode_lag
from kraftjbod.protocol.telemetry.storage_telemetry import TOPIC, encode, record_key
from kraftjbod.spark.tables import schemas as tables
from kraftjbod.spark.tables.stored_tables import read_table
from kraftjbod.spark.telemetry.telemetry_job import command
from tests.checkout import ROOT
from tests.integration.clients import quiet
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.spark.running import environment
from tests.spark.samples import GIB, at, log_dir, log_dir_frame, origin, replica

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(1500)]

# For one event on a machine that runs many other tests.
LONGEST_S = 400
Telemetry = Callable[..., Any]
Sample = tuple[Any, Any]


def runner(bootstrap: str, folder: Path) -> Telemetry:
    """Return a function that runs the job in this process; it returns the summary or the error's
    last line."""

    def run(*options: str, fails: bool = False) -> Any:
        common = ["--bootstrap-server", bootstrap, "--tables", str(folder), "--json"]
        done = CliRunner().invoke(command, [*common, *options], catch_exceptions=False)
        assert (done.exit_code != 0) is fails, done.stderr
        return done.stderr.splitlines()[-1] if fails else json.loads(done.stdout)

    return run


@pytest.fixture
def quiet_cluster(make_cluster: MakeCluster) -> Cluster:
    """A cluster whose broker reports nothing; tests send samples after they create the topic."""
    return make_cluster(brokers=1, dirs=1)


def lag(seconds: float, records: int) -> bytes:
    return encode_lag(
        origin(seconds),
        LagSample(
            group_id="g",
            group_type="classic",
            state="Stable",
            members=1,
            topic="t",
            topic_id="id-of-t",
            partition=0,
            committed_offset=5,
            committed_ms=0,
            log_end_offset=5 + records,
            lag=records,
        ),
    )


def send(cluster: Cluster, *said: Sample | bytes, topic: str = TOPIC) -> None:
    """Send as brokers do: one partition per broker."""
    producer = Producer(quiet(cluster.bootstrap))
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            refused.append(error)

    for one in said:
        if isinstance(one, bytes):
            producer.produce(topic, one, partition=0, on_delivery=delivered)
        else:
            who, _ = one
            producer.produce(
                TOPIC,
                encode(*one),
                key=record_key(*one),
                partition=who.broker_id % 2,
                timestamp=who.time_ms,
                on_delivery=delivered,
            )
    assert producer.flush(30) == 0
    assert not refused


def filling(seconds: Sequence[float], broker_id: int = 1, path: str = "/d1") -> list[Sample]:
    """A gibibyte in ten seconds, appended and kept."""
    return [
        (
            origin(second, broker_id=broker_id),
            log_dir(
                path,
                free_bytes=round((60 - second / 10) * GIB),
                replica_bytes=round((30 + second / 10) * GIB),
                appended_bytes_total=round(second / 10 * GIB),
            ),
        )
        for second in seconds
    ]


def windows_of(spark: SparkSession, folder: Path) -> list[tuple[float, int]]:
    """Return start and samples of every window, including open ones."""
    windows = read_table(spark, str(folder), "log_dir_windows", tables.LOG_DIR_WINDOWS)
    assert windows is not None
    start = F.col("window_start").cast("double") - at(0).timestamp()
    return sorted(tuple(row) for row in windows.select(start, "samples").collect())


def test_telemetry_writes_tables_and_continues_at_the_last_end(
    spark: SparkSession, quiet_cluster: Cluster, tmp_path: Path
) -> None:
    telemetry = runner(quiet_cluster.bootstrap, tmp_path)
    assert TOPIC in telemetry(fails=True), "there is no such topic"
    # Timestamps in the future are accepted only if a topic allows it.
    quiet_cluster.create_topic(
        TOPIC, partitions=2, retention_ms=-1, message_timestamp_after_max_ms=2**63 - 1
    )
    first = filling(range(0, 60, 10))
    send(
        quiet_cluster,
        *first,
        (origin(5), replica("t", size_bytes=500)),
        b"no JSON",
        # A broker whose clock is a century ahead of all others.
        *filling([3e9], broker_id=2),
    )
    printed = telemetry()
    assert printed["rejects"] == {"no JSON object with fields of the right types": 1}
    assert (printed["log_dirs"]["samples"], printed["replicas"]["samples"]) == (7, 1)
    # No window is closed, and all are in a table.
    assert windows_of(spark, tmp_path) == [(0, 6)]
    [forecast] = printed["fullest"]
    assert forecast["growth_bytes_per_s"] == pytest.approx(GIB / 10)
    assert forecast["full_at"] == pytest.approx(at(600).timestamp())
    assert printed["topics"][0]["size_bytes"] == 500
    second = filling(range(60, 310, 10))
    send(quiet_cluster, *second)
    # Groups are added after the first run.
    quiet_cluster.create_topic(GROUPS_TOPIC, partitions=2)
    send(quiet_cluster, *(lag(n, 9 - n) for n in range(3)), topic=GROUPS_TOPIC)
    printed = telemetry()
    assert printed["log_dirs"]["samples"] == 7 + 25
    [behind] = printed["groups"]
    assert (behind["group_id"], behind["lag"], behind["partitions"]) == ("g", 7, 1)
    lags = read_table(spark, str(tmp_path), "group_lag", tables.GROUP_LAG)
    assert lags is not None
    assert sorted((row.time.second, row.lag) for row in lags.collect()) == [(0, 9), (1, 8), (2, 7)]
    assert windows_of(spark, tmp_path) == [(60 * n, 6) for n in range(5)] + [(300, 1)]
    # Too late for its closed window; its sample is in the table.
    late = filling([1])
    send(quiet_cluster, *late, *filling([310]))
    printed = telemetry()
    assert windows_of(spark, tmp_path) == [(60 * n, 6) for n in range(5)] + [(300, 2)]
    samples = read_table(spark, str(tmp_path), "log_dir_samples", tables.LOG_DIR_SAMPLES)
    assert samples is not None
    assertDataFrameEqual(
        samples.where(F.col("broker_id") == 1),
        log_dir_frame(spark, [*first, *second, *late, *filling([310])]),
    )
    assert "expected a duration" in telemetry("--watermark", "soon", fails=True)
    assert "holds windows of 60 s" in telemetry("--window", "30 s", fails=True)
    assert 'property: "no.such"' in telemetry("--option", "kafka.no.such=1", fails=True)
    elsewhere = str(tmp_path / "elsewhere")
    assert "another checkpoint" in telemetry("--checkpoint", elsewhere, fails=True)
    kept = tmp_path / "_checkpoints" / "telemetry"
    fresh = runner(quiet_cluster.bootstrap, tmp_path / "fresh")
    assert "remembers batches that are not in" in fresh("--checkpoint", str(kept), fails=True)


def test_telemetry_after_kill_has_each_sample_once(
    spark: SparkSession, quiet_cluster: Cluster, tmp_path: Path
) -> None:
    """A continuous run is killed, another is stopped by a signal, and a third reads the rest."""
    parts = [filling(range(first, first + 100, 10)) for first in range(0, 500, 100)]
    quiet_cluster.create_topic(TOPIC, partitions=2, retention_ms=-1)
    send(quiet_cluster, *parts[0])
    with continuous(quiet_cluster, tmp_path) as job:
        wait(lambda: generations(tmp_path, "skew") > 0, job)
        send(quiet_cluster, *parts[1])
        wait(lambda: len(list((tmp_path / "log_dir_samples").glob("*.parquet"))) > 1, job)
        send(quiet_cluster, *parts[2])
        os.kill(job.pid, signal.SIGKILL)
    with continuous(quiet_cluster, tmp_path) as job:
        before = generations(tmp_path, "skew")
        wait(lambda: generations(tmp_path, "skew") > before, job)
        send(quiet_cluster, *parts[3])
        job.send_signal(signal.SIGTERM)
        assert job.wait(LONGEST_S) == 128 + signal.SIGTERM
    send(quiet_cluster, *parts[4])
    runner(quiet_cluster.bootstrap, tmp_path)()
    samples = read_table(spark, str(tmp_path), "log_dir_samples", tables.LOG_DIR_SAMPLES)
    assert samples is not None
    assertDataFrameEqual(samples, log_dir_frame(spark, [one for part in parts for one in part]))
    assert windows_of(spark, tmp_path) == [(60 * n, 6) for n in range(8)] + [(480, 2)]


def test_telemetry_of_brokers_appears_in_tables(
    make_cluster: MakeCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """From bytes on disks to findings, including a failed directory."""
    cluster = make_cluster(
        brokers=2,
        dirs=2,
        config={
            "storage.telemetry.enable": "true",
            "storage.telemetry.log.dir.interval.ms": "500",
            "storage.telemetry.replica.interval.ms": "500",
            "storage.telemetry.topic.replication.factor": "2",
        },
    )
    cluster.create_topic("load", partitions=4, replication_factor=2)
    producer = Producer(quiet(cluster.bootstrap))
    for number in range(2000):
        producer.produce("load", os.urandom(1000), partition=number % 4)
    assert producer.flush(30) == 0
    options = ("--window", "2 seconds", "--watermark", "2 seconds")
    telemetry = runner(cluster.bootstrap, tmp_path)
    wait_sent(
        cluster,
        lambda said: said["kind"] == "replica" and said["topic"] == "load",
        lambda said: (said["broker_id"], said["partition"]) if said["size_bytes"] else None,
        count=8,
    )
    printed = telemetry(*options)
    assert (printed["log_dirs"]["things"], printed["log_dirs"]["brokers"]) == (4, 2)
    assert printed["rejects"] == {}
    topics = {row["name"]: row for row in printed["topics"]}
    assert topics["load"]["replicas"] == 8
    assert topics["load"]["size_bytes"] >= 2 * 2_000_000
    forecasts = read_table(spark, str(tmp_path), "log_dir_forecasts", tables.LOG_DIR_FORECASTS)
    windows = read_table(spark, str(tmp_path), "log_dir_windows", tables.LOG_DIR_WINDOWS)
    assert forecasts is not None
    assert windows is not None
    assert forecasts.where("used_bytes > 0").count() == 4
    assert not windows.where("p99_latency_ms > 0 AND append_bytes_per_s > 0").isEmpty()
    [victim, *_] = cluster.directories(1)
    Path(victim).chmod(0)
    try:
        wait_sent(
            cluster,
            lambda said: said["kind"] == "log_dir" and said["state"] == "offline",
            lambda said: said["path"],
            count=1,
        )
    finally:
        Path(victim).chmod(0o755)
    offline = [row for row in telemetry(*options)["outliers"] if row["finding"] == "offline"]
    assert [(row["broker_id"], row["path"]) for row in offline] == [(1, victim)]


def wait_sent(
    cluster: Cluster,
    is_meant: Callable[[dict[str, Any]], bool],
    what: Callable[[dict[str, Any]], object],
    *,
    count: int,
) -> None:
    """Wait until brokers have reported a number of different samples."""
    consumer = Consumer(
        {**quiet(cluster.bootstrap), "group.id": "unused", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(3)])
        seen: set[object] = set()
        deadline = time.monotonic() + LONGEST_S
        while len(seen) < count:
            assert time.monotonic() < deadline, seen
            message = consumer.poll(1)
            if message is None or message.error() is not None:
                continue
            value = message.value()
            assert value is not None
            said = json.loads(value)
            if is_meant(said) and (thing := what(said)) is not None:
                seen.add(thing)
    finally:
        consumer.close()


# --- the job in a separate process ---------------------------------------------------------------


class continuous:
    """The job as a service runs it; its last output is shown if it ends early."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._command = [
            *(sys.executable, "-m", "kraftjbod.spark.pipeline_tool", "telemetry"),
            *("--bootstrap-server", cluster.bootstrap, "--tables", str(folder)),
            *("--continuous", "--trigger", "5 seconds", "--every", "1 second"),
            *("--master", "local[2]"),
        ]

    def __enter__(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=LONGEST_S)


def generations(folder: Path, table: str) -> int:
    """Return the number of the newest complete generation."""
    complete = (folder / table).glob("generation=*/_SUCCESS")
    return max((int(path.parent.name.removeprefix("generation=")) for path in complete), default=0)


def wait(condition: Callable[[], bool], job: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        if job.poll() is not None:
            assert job.stdout is not None
            raise AssertionError(f"the job ended with {job.returncode}: {job.stdout.read()}")
        assert time.monotonic() < deadline
        time.sleep(0.2)
