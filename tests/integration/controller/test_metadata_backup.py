"""Lost metadata that is formatted again and restored, with real daemons: docs/metadata-backup.md.

Brokers keep their data unchanged under a controller with another log, and continue with all of it
once their own metadata is restored."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.checkout import BIN, ROOT
from tests.integration.clients import read_confluent, write_confluent

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

PAGE: Final = ROOT / "docs/metadata-backup.md"
TOPIC: Final = "kept"
NEWER: Final = "newer"
FIRST: Final = [b"first-%d" % n for n in range(100)]
SECOND: Final = [b"second-%d" % n for n in range(50)]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    config = {"min.insync.replicas": "2"}
    with LocalCluster(brokers=3, dirs=2, disks="plain", config=config) as cluster:
        yield cluster


def storage(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``kraftjbod-storage`` as the daemons' user."""
    prefix = cluster.processes.privileges.command_prefix
    return subprocess.run(
        [*prefix, str(BIN / "kraftjbod-storage"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd="/",
    )


def reformat(cluster: LocalCluster) -> Path:
    """Empty and format the controller's metadata directory; return the path of the old one."""
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
        if entry.is_dir() and not entry.name.startswith("__")
    }


def has_decided(cluster: LocalCluster, starts: int) -> bool:
    """Return whether each broker has refused or accepted the metadata."""
    return all(
        broker.events("metadata_refused") or len(broker.events("broker_started")) > starts
        for broker in cluster.brokers
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("brokers_restart", [True, False])
def test_brokers_keep_data_unchanged_under_foreign_metadata(
    cluster: LocalCluster, brokers_restart: bool
) -> None:
    cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
    write_confluent(cluster.bootstrap_servers, TOPIC, FIRST)
    before = names_in_log_dirs(cluster)
    if brokers_restart:
        for broker in cluster.brokers:
            broker.kill()
    cluster.processes.controller.kill()
    original = reformat(cluster)
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


def commands() -> dict[str, str]:
    """Return the commands of the page, by the first word that distinguishes them."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = ("backup", "restore", "fork", "format", "forget", "strays")
    return dict(zip(names, blocks, strict=True))


class Operator:
    """Executes the page's commands as the daemons' user."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        controller = cluster.processes.controller.files
        self.backup = controller.directory / "backup"
        self._words = {
            "METADATA_DIR": str(controller.metadata_dir),
            "CONTROLLER_CONFIG": str(controller.config_path),
            "CLUSTER_ID": cluster.processes.cluster_id,
            "BACKUP": str(self.backup),
            "BOOTSTRAP": cluster.bootstrap_servers,
        }

    def types(self, name: str, **more: str) -> str:
        prefix = self._cluster.processes.privileges.command_prefix
        done = subprocess.run(
            [*prefix, "sh", "-euc", commands()[name]],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd="/",
            env={**os.environ, **self._words, **more, "PATH": f"{BIN}:{os.environ['PATH']}"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def restart_controller_after(self, *names: str) -> None:
        self._cluster.processes.controller.kill()
        for name in names:
            self.types(name)
        self._cluster.processes.controller.start()

    def begin_again(self, *names: str) -> None:
        """Stop all daemons, run the controller's commands, forget metadata on every broker, start
        all."""
        cluster = self._cluster
        for broker in cluster.brokers:
            broker.kill()
        self.restart_controller_after(*names)
        for broker in cluster.brokers:
            self.types("forget", BROKER_CONFIG=str(broker.process.files.config_path))
        starts = {broker: len(broker.events("broker_started")) for broker in cluster.brokers}
        for broker in cluster.brokers:
            broker.process.start()
        cluster.wait(
            "every broker to serve",
            lambda: all(len(b.events("broker_started")) > n for b, n in starts.items()),
        )


def everything_is_there(cluster: LocalCluster) -> None:
    for topic, values in ((TOPIC, FIRST), (NEWER, SECOND)):
        cluster.wait_in_sync(topic)
        assert read_confluent(cluster.bootstrap_servers, topic, len(values)) == values


@pytest.mark.long
def test_metadata_backup_page_restores_old_and_newest_metadata(cluster: LocalCluster) -> None:
    operator, controller = Operator(cluster), cluster.processes.controller
    cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
    write_confluent(cluster.bootstrap_servers, TOPIC, FIRST)
    operator.restart_controller_after("backup")
    # Nothing but the start of the controller has changed since the copy.
    operator.restart_controller_after("restore")
    cluster.wait_in_sync(TOPIC)
    cluster.create_topic(NEWER, partitions=1, replication_factor=3)
    write_confluent(cluster.bootstrap_servers, NEWER, SECOND)
    files = names_in_log_dirs(cluster)
    # The copy ends before that topic, and brokers refuse it.
    operator.restart_controller_after("restore")
    cluster.wait("every broker to refuse it", lambda: has_decided(cluster, 1))
    cluster.wait(
        "the controller to say so", lambda: controller.events("broker_knows_other_metadata")
    )
    assert names_in_log_dirs(cluster) == files
    (original,) = sorted(controller.files.directory.glob("metadata.lost-*"))[-1:]
    # Assume that no newer copy exists.
    operator.begin_again("fork")
    assert controller.events("metadata_log_forked")
    cluster.wait_in_sync(TOPIC)
    assert read_confluent(cluster.bootstrap_servers, TOPIC, len(FIRST)) == FIRST
    cluster.wait("the newer topic to be set aside", lambda: NEWER not in served(cluster))
    # A reader makes the cluster create a topic for consumer groups, which is not counted here.
    printed = [line for line in operator.types("strays").splitlines() if line[:2] != "__"]
    assert len(printed) == 3
    assert all(line.startswith(f"{NEWER}-0 ") and "topic unknown" in line for line in printed)
    # Now the lost directory is found.
    controller.kill()
    shutil.rmtree(controller.files.metadata_dir)
    original.rename(controller.files.metadata_dir)
    operator.begin_again()
    everything_is_there(cluster)
    assert names_in_log_dirs(cluster) == files
    assert f"{NEWER}-0 " not in operator.types("strays")


def served(cluster: LocalCluster) -> set[str]:
    return {
        replica.topic
        for broker in cluster.brokers
        for disk in broker.dirs
        for replica in disk.describe().replicas
    }


@pytest.mark.long
def test_empty_log_for_used_cluster_keeps_strays_until_the_old_log_returns(
    cluster: LocalCluster,
) -> None:
    operator, controller = Operator(cluster), cluster.processes.controller
    for topic, values in ((TOPIC, FIRST), (NEWER, SECOND)):
        cluster.create_topic(topic, partitions=1, replication_factor=3)
        write_confluent(cluster.bootstrap_servers, topic, values)
    files = names_in_log_dirs(cluster)
    aside = controller.files.directory / "aside"
    controller.kill()
    controller.files.metadata_dir.rename(aside)
    operator.begin_again("format")
    assert served(cluster) == set()
    assert len(operator.types("strays").splitlines()) == 6
    # A topic of the same name starts empty; it does not replace the original.
    cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
    controller.kill()
    shutil.rmtree(controller.files.metadata_dir)
    aside.rename(controller.files.metadata_dir)
    operator.begin_again()
    everything_is_there(cluster)
    assert files <= names_in_log_dirs(cluster)
