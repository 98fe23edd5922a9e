"""A process is killed while a query copies a topic: no record is missing, keys keep their order.

The query uses our source and our sink, from checkpoint to checkpoint, on three brokers with three
directories each. The number of duplicates is printed and not asserted: the sink guarantees at
least once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from kraftjbod.testing import mounts
from tests.checkout import ROOT
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.spark.running import environment
from tests.spark.standalone import Daemon, standalone_cluster
from tests.spark.stream_copy import (
    PARTITIONS,
    PER_BATCH,
    RECORDS,
    count,
    judge,
    produce_numbered,
    start_copy,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

COPY_S = 600.0
VICTIM = 2
SHORT_SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    cluster = make_shared_cluster(brokers=3, dirs=3, config=SHORT_SESSIONS)
    _create(cluster, "numbers")
    produce_numbered(cluster.bootstrap, "numbers")
    return cluster


def _create(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)


def _wait_midway(cluster: Cluster, topic: str, explain: Callable[[], str] = str) -> None:
    """Wait until some batches are copied, and most are not."""
    cluster.wait(
        f"the copy in {topic} to begin",
        lambda: count(cluster.bootstrap, topic) > PER_BATCH,
        timeout_s=COPY_S,
        explain=explain,
    )
    assert count(cluster.bootstrap, topic) < RECORDS, "the copy was over before anything was killed"


def _require_whole(cluster: Cluster, topic: str, what: str) -> None:
    copied = judge(cluster.bootstrap, topic)
    assert copied.findings == []
    print(f"\n{what}: {RECORDS} records copied, {copied.doubled} of them doubled")


def _copy_through(
    spark: SparkSession, cluster: Cluster, to: str, checkpoint: Path, hurt: Callable[[], object]
) -> None:
    """Run one query in this process, which continues during ``hurt``."""
    _create(cluster, to)
    query = start_copy(spark, cluster.bootstrap, "numbers", to, checkpoint)
    try:
        _wait_midway(cluster, to)
        hurt()
        assert query.awaitTermination(int(COPY_S)), f"still copies: {query.lastProgress}"
    finally:
        query.stop()


def test_query_continues_after_kill_of_a_broker(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    victim = cluster.brokers[VICTIM]
    try:
        _copy_through(spark, cluster, "broker-killed", tmp_path / "checkpoint", victim.kill)
        assert not victim.is_running
        _require_whole(cluster, "broker-killed", "kill -9 of a broker")
    finally:
        if not victim.is_running:
            cluster.start_daemon(victim)
        cluster.wait_whole("numbers")


def test_query_continues_after_failure_of_a_disk(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """The failed directory holds the leader of a partition that the query reads."""
    leader = cluster.partitions("numbers")[0].leader
    held = cluster.replicas_by_dir(leader, "numbers")
    (path,) = [path for path, numbers in held.items() if 0 in numbers]
    victim = cluster.brokers[leader]
    with contextlib.ExitStack() as faults:
        _copy_through(
            spark,
            cluster,
            "disk-died",
            tmp_path / "checkpoint",
            lambda: faults.enter_context(mounts.closed_to_owner(path)),
        )
        cluster.wait_event(victim, "log_dir_offline")
        _require_whole(cluster, "disk-died", "chmod 000 of a directory")
    cluster.stop_daemon(victim)
    cluster.start_daemon(victim)
    cluster.wait_whole("numbers")


class Driver:
    """``stream_copy`` in a separate process group, with its Java and its workers."""

    def __init__(self, cluster: Cluster, to: str, folder: Path, *options: str) -> None:
        arguments = (cluster.bootstrap, "numbers", to, str(folder / "checkpoint"))
        self._log = folder / f"{to}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.stream_copy", *arguments, *options],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self) -> None:
        assert self._process.wait(COPY_S) == 0, self.last_words()

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


@contextlib.contextmanager
def _driving(cluster: Cluster, to: str, folder: Path, *options: str) -> Iterator[Driver]:
    driver = Driver(cluster, to, folder, *options)
    try:
        yield driver
    finally:
        driver.kill()


def test_query_continues_from_checkpoint_after_kill_of_the_driver(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A second driver continues from the checkpoint."""
    _create(cluster, "driver-killed")
    options = ("--master", "local[2]")
    with _driving(cluster, "driver-killed", tmp_path, *options) as driver:
        _wait_midway(cluster, "driver-killed", driver.last_words)
    assert judge(cluster.bootstrap, "driver-killed").missing
    with _driving(cluster, "driver-killed", tmp_path, *options) as driver:
        driver.wait()
    _require_whole(cluster, "driver-killed", "kill -9 of the driver")


def _executors(worker: Daemon) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(worker.process.pid).children(recursive=True):
        # Other processes may have ended already.
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                found.append(process)
    return found


def test_query_continues_after_kill_of_an_executor(cluster: Cluster, tmp_path: Path) -> None:
    """One of two, on a standalone cluster."""
    _create(cluster, "executor-killed")
    with standalone_cluster(tmp_path / "spark") as spark_cluster:
        options = [f"--conf={key}={value}" for key, value in spark_cluster.conf.items()]
        master = ("--master", spark_cluster.master_url)
        with _driving(cluster, "executor-killed", tmp_path, *master, *options) as driver:
            _wait_midway(cluster, "executor-killed", driver.last_words)
            killed = [each for worker in spark_cluster.workers for each in _executors(worker)]
            assert len(killed) == 2, killed
            killed[0].kill()
            driver.wait()
    _require_whole(cluster, "executor-killed", "kill -9 of an executor")
