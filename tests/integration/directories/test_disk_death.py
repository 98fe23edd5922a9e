"""A disk fails under load: its directory goes offline, its broker stays, no acknowledged record is
lost.

Three brokers with three directories each, RF 3, ``min.insync.replicas`` 2, acks=all.
Broker 2's directories are real file systems, and one is broken in every way that the kit offers.
``chmod`` needs no root; the other tests are skipped without it.
Gaps between acknowledgements are printed and not asserted."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kraftjbod.testing import log_disks, mounts
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.log_disks import DiskKind
from tests.integration.checker import Load, judge
from tests.integration.cluster import KAFKA_STORAGE_ERROR, Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

PARTITIONS = 12
BROKER = 2
EXIT_CLUSTER_UNREACHABLE = 69
EXIT_LOG_DIRS_LOST = 73
EXIT_METADATA_DIR_LOST = 74
DISK_BYTES = 256 * 1024 * 1024
TOPIC = "wanted"
SHORT_SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


def _start(make_cluster: MakeCluster, log_dirs: dict[int, list[Path]] | None = None) -> Cluster:
    cluster = make_cluster(
        brokers=3, dirs=3, log_dirs=log_dirs, config={"broker.session.timeout.ms": "6000"}
    )
    cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
    return cluster


def _require_progress(cluster: Cluster, load: Load) -> None:
    before = load.acked_by_partition()
    cluster.wait(
        "progress in every partition", lambda: load.flowed_since(before, 20), explain=load.explain
    )


def _require_offline(cluster: Cluster, broker: int, dead: list[str]) -> None:
    """Assert that the broker runs, reports error 56 for dead directories and serves the others."""
    directories = cluster.directories(broker)
    assert cluster.brokers[broker].is_running
    for path, found in directories.items():
        if path in dead:
            assert found.error == KAFKA_STORAGE_ERROR, path
            assert not found.sizes
        else:
            assert found.error == 0, path
    logged = [event for event in cluster.brokers[broker].events("log_dir_offline")]
    assert len(logged) == len(dead), f"each directory is reported once: {logged}"


def _require_metadata(cluster: Cluster, broker: int, lost: set[int]) -> None:
    """Assert that metadata lists lost replicas as offline, outside the ISR and never as leader."""

    def is_reported() -> bool:
        return all(
            (broker in part.offline) == (index in lost)
            and (index not in lost or (broker not in part.isr and part.leader != broker))
            for index, part in cluster.partitions(TOPIC).items()
        )

    cluster.wait(f"metadata to say that broker {broker} lost {sorted(lost)}", is_reported)


def _die_and_prove(cluster: Cluster, path: Path, kill: Callable[[], object], title: str) -> Load:
    """Break the directory at ``path`` of :data:`BROKER` under load, and check everything."""
    lost = set(cluster.replicas_by_dir(BROKER, TOPIC)[str(path)])
    assert lost, "the directory holds replicas"
    with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        cluster.wait_flowing(load)
        kill()
        cluster.wait_event(cluster.brokers[BROKER], "log_dir_offline")
        _require_metadata(cluster, BROKER, lost)
        _require_progress(cluster, load)
        load.stop()
    load.print_gaps(title)
    _require_offline(cluster, BROKER, [str(path)])
    assert judge(cluster.bootstrap, TOPIC, load).findings == []
    return load


@pytest.mark.long
def test_directory_without_permissions_goes_offline_and_returns_after_restart(
    make_cluster: MakeCluster,
) -> None:
    """After chmod back and a restart, the replicas return and catch up."""
    cluster = _start(make_cluster)
    path = cluster.local.dir_path(BROKER, 1)
    with contextlib.ExitStack() as faults:
        load = _die_and_prove(
            cluster,
            path,
            lambda: faults.enter_context(mounts.closed_to_owner(str(path))),
            "chmod 000",
        )
    cluster.stop_daemon(cluster.brokers[BROKER])
    cluster.start_daemon(cluster.brokers[BROKER])
    cluster.wait_whole(TOPIC)
    assert {found.error for found in cluster.directories(BROKER).values()} == {0}
    assert judge(cluster.bootstrap, TOPIC, load).findings == []


@pytest.mark.sampled(2)
@pytest.mark.disk
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("ext4", "eio"),
        ("xfs", "eio"),
        ("ext4", "readonly"),
        ("ext4", "unmount"),
        ("xfs", "unmount"),
        ("fuse", "eio"),
    ],
)
def test_failed_mounted_disk_takes_only_its_directory_offline(
    make_cluster: MakeCluster, kind: DiskKind, fault: DiskFault
) -> None:
    """All three directories are such disks, because new replicas go to the disk with most free
    bytes."""
    reason = log_disks.why_not(kind)
    if reason is not None:
        pytest.skip(reason)
    homes = tempfile.mkdtemp(prefix="kraftjbod-deaths-")
    os.chmod(homes, 0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, homes)
        disks = [
            log_disks.make_disk(kind, home=Path(homes, name), size_bytes=DISK_BYTES)
            for name in "123"
        ]
        for disk in disks:
            stack.callback(disk.close)
        cluster = _start(make_cluster, {BROKER: [disk.path for disk in disks]})
        # Open files would keep the disks from being unmounted.
        stack.callback(cluster.local.kill)
        _die_and_prove(cluster, disks[0].path, lambda: disks[0].fail(fault), f"{fault} on {kind}")


def test_two_directories_of_one_broker_fail_one_after_the_other(make_cluster: MakeCluster) -> None:
    cluster = _start(make_cluster)
    by_dir = cluster.replicas_by_dir(BROKER, TOPIC)
    paths = [str(cluster.local.dir_path(BROKER, n)) for n in (1, 2)]
    with contextlib.ExitStack() as faults, Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        cluster.wait_flowing(load)
        lost: set[int] = set()
        for count, path in enumerate(paths, start=1):
            faults.enter_context(mounts.closed_to_owner(path))
            cluster.wait_event(cluster.brokers[BROKER], "log_dir_offline", count)
            lost |= set(by_dir[path])
            _require_metadata(cluster, BROKER, lost)
            _require_progress(cluster, load)
        load.stop()
        load.print_gaps("two directories of one broker")
        _require_offline(cluster, BROKER, paths)
        assert judge(cluster.bootstrap, TOPIC, load).findings == []


def test_loss_of_all_log_dirs_stops_the_broker(make_cluster: MakeCluster) -> None:
    """The broker stops with the exit code for this case."""
    cluster = _start(make_cluster)
    with contextlib.ExitStack() as faults, Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        cluster.wait_flowing(load)
        for number in (1, 2, 3):
            path = cluster.local.dir_path(BROKER, number)
            faults.enter_context(mounts.closed_to_owner(str(path)))
        assert cluster.wait_exit(cluster.brokers[BROKER]) == EXIT_LOG_DIRS_LOST
        _require_progress(cluster, load)
        load.stop()
        load.print_gaps("all directories of one broker")
        assert judge(cluster.bootstrap, TOPIC, load).findings == []
    _said_farewell(cluster)


def test_loss_of_metadata_dir_stops_the_broker(make_cluster: MakeCluster) -> None:
    cluster = _start(make_cluster)
    metadata_dir = cluster.brokers[BROKER].files.metadata_dir
    with contextlib.ExitStack() as faults, Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        cluster.wait_flowing(load)
        faults.enter_context(mounts.closed_to_owner(str(metadata_dir)))
        assert cluster.wait_exit(cluster.brokers[BROKER]) == EXIT_METADATA_DIR_LOST
        _require_progress(cluster, load)
        load.stop()
        load.print_gaps("the metadata directory of one broker")
        assert judge(cluster.bootstrap, TOPIC, load).findings == []
    _said_farewell(cluster)


def _said_farewell(cluster: Cluster) -> None:
    """Assert that the cluster did not wait for the broker's session to end."""
    controller = cluster.local.controller
    assert controller.events("broker_fenced")
    assert not controller.events("broker_session_expired")


def test_loss_of_controllers_metadata_dir_stops_only_the_controller(
    make_cluster: MakeCluster,
) -> None:
    """The brokers continue without it, and it returns with all of its metadata."""
    cluster = _start(make_cluster)
    controller = cluster.local.controller
    with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        cluster.wait_flowing(load)
        with mounts.closed_to_owner(str(controller.files.metadata_dir)):
            assert cluster.wait_exit(controller) == EXIT_METADATA_DIR_LOST
        _require_progress(cluster, load)
        cluster.start_daemon(controller)
        _require_progress(cluster, load)
        load.stop()
    cluster.create_topic("after", replication_factor=3)
    assert judge(cluster.bootstrap, TOPIC, load).findings == []


def test_failed_directories_that_cannot_be_reported_stop_the_leader(
    make_cluster: MakeCluster,
) -> None:
    """KAFKA-15649: two directories fail while no controller runs.

    No controller can move the leaderships, so that the broker stops after
    ``log.dir.failure.timeout.ms`` instead of keeping them."""
    cluster = make_cluster(
        brokers=3, dirs=3, config={"log.dir.failure.timeout.ms": "2000", **SHORT_SESSIONS}
    )
    cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
    controller, broker = cluster.local.controller, cluster.brokers[BROKER]
    with contextlib.ExitStack() as faults, Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        cluster.wait_flowing(load)
        led = {n for n, found in cluster.partitions(TOPIC).items() if found.leader == BROKER}
        held = cluster.replicas_by_dir(BROKER, TOPIC)
        paths = sorted(held, key=lambda path: led.isdisjoint(held[path]))[:2]
        controller.kill()
        for number, path in enumerate(paths, start=1):
            faults.enter_context(mounts.closed_to_owner(path))
            cluster.wait_event(broker, "log_dir_offline", number)
        assert cluster.wait_exit(broker) == EXIT_CLUSTER_UNREACHABLE
        assert all(cluster.brokers[other].is_running for other in (1, 3))
        controller.start()
        _require_progress(cluster, load)
        load.stop()
        load.print_gaps("two directories without a controller")
    assert judge(cluster.bootstrap, TOPIC, load).findings == []


@pytest.mark.long
def test_failed_directory_reported_within_timeout_keeps_the_broker(
    make_cluster: MakeCluster,
) -> None:
    """The controller returns before the timeout, and then moves the leaderships."""
    cluster = _start(make_cluster)
    path = cluster.local.dir_path(BROKER, 1)
    lost = set(cluster.replicas_by_dir(BROKER, TOPIC)[str(path)])
    with contextlib.ExitStack() as faults, Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        cluster.wait_flowing(load)
        cluster.local.controller.kill()
        faults.enter_context(mounts.closed_to_owner(str(path)))
        cluster.wait_event(cluster.brokers[BROKER], "log_dir_offline")
        cluster.local.controller.start()
        _require_metadata(cluster, BROKER, lost)
        _require_progress(cluster, load)
        load.stop()
        _require_offline(cluster, BROKER, [str(path)])
        assert judge(cluster.bootstrap, TOPIC, load).findings == []


@pytest.mark.long
def test_one_failed_directory_on_every_broker_loses_no_record(make_cluster: MakeCluster) -> None:
    """Partitions with two live replicas continue; the others wait and lose nothing."""
    cluster = _start(make_cluster)
    with contextlib.ExitStack() as faults:
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            cluster.wait_flowing(load)
            for broker, daemon in cluster.brokers.items():
                path = cluster.local.dir_path(broker, 1)
                faults.enter_context(mounts.closed_to_owner(str(path)))
                cluster.wait_event(daemon, "log_dir_offline")
            for daemon in cluster.brokers.values():
                assert daemon.is_running
            # Partitions below min.insync.replicas continue once the disks are back.
            faults.close()
            for daemon in cluster.brokers.values():
                cluster.stop_daemon(daemon)
                cluster.start_daemon(daemon)
            _require_progress(cluster, load)
            load.stop(timeout_s=120)
        load.print_gaps("one directory of every broker")
    cluster.wait_whole(TOPIC)
    assert judge(cluster.bootstrap, TOPIC, load).findings == []
