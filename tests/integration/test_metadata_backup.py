"""Metadata that is lost, formatted anew and restored, with real daemons: METADATA_BACKUP.md.

Whatever a controller of another life says, brokers keep their data as it is, and go on with all of
it once the metadata that they know is back.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.integration.clients import read_confluent, write_confluent

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

BIN: Final = Path(__file__).parents[2] / "bin"
TOPIC: Final = "kept"
FIRST: Final = [b"first-%d" % n for n in range(100)]
SECOND: Final = [b"second-%d" % n for n in range(50)]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    config = {"min.insync.replicas": "2"}
    with LocalCluster(brokers=3, dirs=2, disks="plain", config=config) as cluster:
        yield cluster


def storage(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    """``kraftjbod-storage`` as the daemons' user."""
    prefix = cluster.processes.privileges.command_prefix
    return subprocess.run(
        [*prefix, str(BIN / "kraftjbod-storage"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd="/",
    )


def format_anew(cluster: LocalCluster) -> Path:
    """The controller's metadata directory is empty and formatted again; where the old one is."""
    files = cluster.processes.controller.files
    aside = files.metadata_dir.with_name("metadata-of-before")
    files.metadata_dir.rename(aside)
    files.metadata_dir.mkdir()
    cluster.processes.privileges.give(files.metadata_dir)
    words = ("-t", cluster.processes.cluster_id, "-c", str(files.config_path))
    done = storage(cluster, "format", *words)
    if "--replace-lost" in done.stderr:
        done = storage(cluster, "format", *words, "--replace-lost")
    assert done.returncode == 0, done.stderr
    return aside


def put_back(cluster: LocalCluster, original: Path) -> None:
    controller = cluster.processes.controller
    controller.kill()
    shutil.rmtree(controller.files.metadata_dir)
    original.rename(controller.files.metadata_dir)
    controller.start()


def names_in_log_dirs(cluster: LocalCluster) -> set[str]:
    return {
        f"{disk.path}/{entry.name}"
        for broker in cluster.brokers
        for disk in broker.dirs
        for entry in disk.path.iterdir()
        if entry.is_dir()
    }


def has_decided(cluster: LocalCluster, starts: int) -> bool:
    """Each broker has refused the metadata, or has taken it."""
    return all(
        broker.events("metadata_refused") or len(broker.events("broker_started")) > starts
        for broker in cluster.brokers
    )


@pytest.mark.parametrize("brokers_restart", [True, False])
def test_metadata_of_another_life_touches_nothing(
    cluster: LocalCluster, brokers_restart: bool
) -> None:
    cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
    write_confluent(cluster.bootstrap_servers, TOPIC, FIRST)
    before = names_in_log_dirs(cluster)
    if brokers_restart:
        for broker in cluster.brokers:
            broker.kill()
    cluster.processes.controller.kill()
    original = format_anew(cluster)
    cluster.processes.controller.start()
    if brokers_restart:
        for broker in cluster.brokers:
            broker.process.start()
    cluster.wait("every broker to decide", lambda: has_decided(cluster, 1))
    assert names_in_log_dirs(cluster) == before
    assert all(broker.is_running for broker in cluster.brokers)
    put_back(cluster, original)
    cluster.wait_in_sync(TOPIC)
    write_confluent(cluster.bootstrap_servers, TOPIC, SECOND)
    everything = [*FIRST, *SECOND]
    assert read_confluent(cluster.bootstrap_servers, TOPIC, len(everything)) == everything
    assert names_in_log_dirs(cluster) == before
