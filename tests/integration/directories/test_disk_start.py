"""Start of a broker with directories that are unreadable, missing, foreign or duplicated."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from kraftjbod.local.cluster_process import BROKER_COMMAND
from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.storage.dir_names import KNOWN_LOG_DIRS
from kraftjbod.testing import mounts
from tests.checkout import BIN
from tests.integration import clients
from tests.integration.cluster import KAFKA_STORAGE_ERROR, Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients]

BROKER = 1
EXIT_STARTUP = 1
EXIT_INCONSISTENT_STORAGE = 65
EXIT_LOG_DIRS_LOST = 73
META = "meta.properties"


@pytest.fixture
def stopped(make_cluster: MakeCluster) -> Cluster:
    """Two brokers with two directories each, a topic with records on both, and broker 1 stopped."""
    cluster = make_cluster(
        brokers=2,
        dirs=2,
        config={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"},
    )
    cluster.create_topic("kept", partitions=4, replication_factor=2)
    clients.write_confluent(cluster.bootstrap, "kept", [b"a", b"b", b"c"])
    cluster.stop_daemon(cluster.brokers[BROKER])
    return cluster


def _dir(cluster: Cluster, number: int) -> Path:
    return cluster.local.dir_path(BROKER, number)


def _refuses(cluster: Cluster) -> str:
    """Start the broker, assert that it refuses, and return its output."""
    daemon = cluster.brokers[BROKER]
    said_before = daemon.files.telemetry_path.read_text()
    daemon.start()
    assert cluster.wait_exit(daemon) == EXIT_INCONSISTENT_STORAGE
    return daemon.files.telemetry_path.read_text()[len(said_before) :]


def _errors(cluster: Cluster) -> dict[str, int]:
    return {path: found.error for path, found in cluster.directories(BROKER).items()}


def test_unreadable_directory_is_offline_from_the_start(stopped: Cluster) -> None:
    bad, good = str(_dir(stopped, 1)), str(_dir(stopped, 2))
    with mounts.closed_to_owner(bad):
        stopped.start_daemon(stopped.brokers[BROKER])
        assert _errors(stopped) == {bad: KAFKA_STORAGE_ERROR, good: 0}
        answered = stopped.partitions("kept")
        offline = {index for index, part in answered.items() if BROKER in part.offline}
        assert offline == set(range(4)) - set(stopped.replicas_by_dir(BROKER, "kept")[good])
        stopped.stop_daemon(stopped.brokers[BROKER])
    stopped.start_daemon(stopped.brokers[BROKER])
    stopped.wait_whole("kept")
    assert _errors(stopped) == {bad: 0, good: 0}


def test_start_with_links_in_directory_keeps_records_of_only_replica(
    make_cluster: MakeCluster,
) -> None:
    """Dangling links are ignored; a link in place of a log file takes the directory offline."""
    cluster = make_cluster(brokers=1, dirs=2)
    cluster.create_topic("kept", assignments={0: [BROKER]})
    values = [b"%d" % number for number in range(10)]
    clients.write_confluent(cluster.bootstrap, "kept", values)
    daemon = cluster.brokers[BROKER]
    cluster.stop_daemon(daemon)
    (replica,) = (path for n in (1, 2) for path in _dir(cluster, n).glob("kept-0"))
    held, log = str(replica.parent), replica / "00000000000000000000.log"
    for place in (replica.parent, replica):
        (place / "dangling").symlink_to("nowhere")
    cluster.start_daemon(daemon)
    assert clients.read_confluent(cluster.bootstrap, "kept", 10) == values
    cluster.stop_daemon(daemon)

    elsewhere = replica.parent.parent / "elsewhere"
    log.rename(elsewhere)
    log.symlink_to(elsewhere)
    cluster.start_daemon(daemon)
    assert _errors(cluster)[held] == KAFKA_STORAGE_ERROR
    assert f"{log} is a symbolic link" in cluster.wait_event(daemon, "log_dir_offline")["reason"]
    cluster.stop_daemon(daemon)
    log.unlink()
    elsewhere.rename(log)
    cluster.start_daemon(daemon)
    assert clients.read_confluent(cluster.bootstrap, "kept", 10) == values
    assert not list(replica.parent.glob("*-stray"))


def test_format_replace_lost_restores_broker_without_log_directories(stopped: Cluster) -> None:
    """The metadata directory is kept. The instructions of the errors and of docs/situations
    work."""
    daemon = stopped.brokers[BROKER]
    stopped.start_daemon(daemon)
    stopped.create_topic("alone", assignments={0: [BROKER]})
    clients.write_confluent(stopped.bootstrap, "alone", [b"lost"])
    stopped.stop_daemon(daemon)
    for number in (1, 2):
        shutil.rmtree(_dir(stopped, number))
        _dir(stopped, number).mkdir()
        stopped.local.privileges.give(_dir(stopped, number))
    said_before = daemon.files.telemetry_path.read_text()
    daemon.start()
    assert stopped.wait_exit(daemon) == EXIT_LOG_DIRS_LOST
    said = daemon.files.telemetry_path.read_text()[len(said_before) :]
    assert "kraftjbod-storage format --ignore-formatted --replace-lost" in said
    assert said.count("--forget") == said.count("while the broker runs from other directories")

    words = ("format", "-g", "-t", stopped.local.cluster_id, "-c", str(daemon.files.config_path))
    refused = _storage_tool(*words)
    assert refused.returncode == 1
    assert "use --replace-lost" in refused.stderr
    assert _storage_tool(*words, "--replace-lost").returncode == 0
    for path in (
        _dir(stopped, 1) / META,
        _dir(stopped, 2) / META,
        daemon.files.metadata_dir / KNOWN_LOG_DIRS,
    ):
        stopped.local.privileges.give(path)
    stopped.start_daemon(daemon)
    stopped.wait_whole("kept")
    assert clients.read_confluent(stopped.bootstrap, "kept", 3) == [b"a", b"b", b"c"]
    assert stopped.partitions("alone")[0].leader == -1, "no empty replica replaces lost records"
    assert not [path for n in (1, 2) for path in _dir(stopped, n).glob("alone-*")]


def _storage_tool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (BIN / "kraftjbod-storage", *words),
        capture_output=True,
        text=True,
        check=False,
    )


def test_empty_mount_point_of_known_disk_is_not_formatted(stopped: Cluster) -> None:
    """An empty directory in place of a disk means a missing mount, so that nothing is written
    there."""
    gone, good = _dir(stopped, 1), _dir(stopped, 2)
    aside = gone.with_name("aside")
    gone.rename(aside)
    gone.mkdir()
    stopped.start_daemon(stopped.brokers[BROKER])
    assert _errors(stopped) == {str(gone): KAFKA_STORAGE_ERROR, str(good): 0}
    assert os.listdir(gone) == []
    stopped.stop_daemon(stopped.brokers[BROKER])
    gone.rmdir()
    aside.rename(gone)
    stopped.start_daemon(stopped.brokers[BROKER])
    stopped.wait_whole("kept")
    assert clients.read_confluent(stopped.bootstrap, "kept", 3) == [b"a", b"b", b"c"]


@pytest.mark.long
def test_new_directory_is_formatted_at_start_and_used(stopped: Cluster) -> None:
    """The broker itself formats a path that this node never had before."""
    daemon = stopped.brokers[BROKER]
    new = daemon.files.directory / "disk-3"
    new.mkdir()
    stopped.local.privileges.give(new)
    config = daemon.files.config_path.read_text()
    both = ",".join(str(_dir(stopped, n)) for n in (1, 2))
    # Keys and values are escaped in property files; a later line wins.
    daemon.files.config_path.write_text(f"{config}\nlog.dirs={both},{new}\n")
    stopped.start_daemon(daemon)
    assert _errors(stopped) == {str(_dir(stopped, 1)): 0, str(_dir(stopped, 2)): 0, str(new): 0}
    assert "directory.id" in (new / META).read_text()
    stopped.create_topic("spread", assignments={index: [BROKER] for index in range(6)})
    assert stopped.replicas_by_dir(BROKER, "spread")[str(new)]


def test_directory_removed_from_log_dirs_is_reported_with_its_replicas(stopped: Cluster) -> None:
    """The event comes before any replica is recreated; the removed directory still has its
    replicas."""
    daemon, kept = stopped.brokers[BROKER], _dir(stopped, 1)
    config = daemon.files.config_path.read_text()
    daemon.files.config_path.write_text(f"{config}\nlog.dirs={kept}\n")
    stopped.start_daemon(daemon)
    logged = stopped.wait_event(daemon, "replicas_in_unknown_log_dir")
    assert logged["replicas"] == sum(path.is_dir() for path in _dir(stopped, 2).glob("kept-*"))
    stopped.wait_whole("kept")


def test_duplicate_directory_id_is_refused_with_the_paths_of_both_disks(stopped: Cluster) -> None:
    first, second = _dir(stopped, 1), _dir(stopped, 2)
    shutil.copy(first / META, second / META)
    said = _refuses(stopped)
    assert str(first) in said
    assert str(second) in said


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cluster.id=AAAAAAAAAAAAAAAAAAAAAQ", "belongs to cluster AAAAAAAAAAAAAAAAAAAAAQ"),
        ("node.id=7", "belongs to node 7, and this is node 1"),
    ],
)
def test_foreign_directory_is_offline_and_unchanged(stopped: Cluster, line: str, said: str) -> None:
    """A foreign directory is treated as a missing one, and its contents are unchanged."""
    bad, good = _dir(stopped, 1), _dir(stopped, 2)
    key = line.partition("=")[0]
    kept = [old for old in (bad / META).read_text().splitlines() if not old.startswith(key)]
    (bad / META).write_text("\n".join([*kept, line]) + "\n")
    stopped.start_daemon(stopped.brokers[BROKER])
    assert _errors(stopped) == {str(bad): KAFKA_STORAGE_ERROR, str(good): 0}
    logged = stopped.brokers[BROKER].events("log_dir_offline")[-1]
    assert said in logged["reason"]
    assert line in (bad / META).read_text()
    assert list(bad.glob("kept-*"))


def test_swapped_mount_points_keep_replicas(stopped: Cluster) -> None:
    """Directory ids belong to the disk, not to its mount point."""
    first, second = _dir(stopped, 1), _dir(stopped, 2)
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    stopped.start_daemon(stopped.brokers[BROKER])
    stopped.wait_whole("kept")
    assert clients.read_confluent(stopped.bootstrap, "kept", 3) == [b"a", b"b", b"c"]


def test_second_broker_on_same_directories_is_refused(stopped: Cluster) -> None:
    """The running process holds the lock."""
    stopped.start_daemon(stopped.brokers[BROKER])
    twin = DaemonProcess(
        stopped.brokers[BROKER].files,
        command=BROKER_COMMAND,
        privileges=stopped.local.privileges,
    )
    twin.start()
    assert stopped.wait_exit(twin) == EXIT_STARTUP
    assert stopped.brokers[BROKER].is_running


def test_unknown_directories_are_kept_and_cause_one_warning(stopped: Cluster) -> None:
    """``lost+found`` and other unknown names cause one warning, no error, and no deletion."""
    stranger = _dir(stopped, 1) / "lost+found"
    stranger.mkdir()
    daemon = stopped.brokers[BROKER]
    said_before = daemon.files.telemetry_path.read_text()
    stopped.start_daemon(daemon)
    stopped.wait_whole("kept")
    assert stranger.is_dir()
    said = daemon.files.telemetry_path.read_text()[len(said_before) :]
    (warning,) = [line for line in said.splitlines() if "lost+found" in line]
    assert "unknown_names_in_log_dir" in warning
    assert set(_errors(stopped).values()) == {0}


@pytest.mark.long
def test_torn_batch_at_log_end_is_truncated_after_kill(stopped: Cluster) -> None:
    """Half a batch at the end of an unclosed log is removed, and complete batches stay."""
    daemon = stopped.brokers[BROKER]
    stopped.start_daemon(daemon)
    stopped.wait_whole("kept")
    daemon.kill()
    (log,) = [
        path
        for n in (1, 2)
        for path in (_dir(stopped, n) / "kept-0").glob("*.log")
        if path.exists()
    ]
    with log.open("ab") as file:
        file.write(b"\x00" * 7 + b"torn")
    stopped.start_daemon(daemon)
    stopped.wait_whole("kept")
    stopped.stop_daemon(stopped.brokers[2])
    stopped.wait(
        "broker 1 to lead", lambda: stopped.partitions("kept", ask=BROKER)[0].leader == BROKER
    )
    bootstrap = daemon.address
    assert clients.read_confluent(bootstrap, "kept", 3) == [b"a", b"b", b"c"]


@pytest.mark.long
def test_broker_with_occupied_port_is_never_registered(stopped: Cluster) -> None:
    """No client has to wait for the session of a broker that could not serve."""
    daemon, controller = stopped.brokers[BROKER], stopped.local.controller

    def registered() -> int:
        events = controller.events("broker_registered")
        return sum(event["broker_id"] == BROKER for event in events)

    before = registered()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((daemon.files.host, daemon.files.port))
        taken.listen()
        daemon.start()
        assert stopped.wait_exit(daemon) == EXIT_STARTUP
    assert f"cannot listen on {daemon.address}" in daemon.last_words()
    assert registered() == before
    stopped.start_daemon(daemon)
    assert registered() == before + 1
