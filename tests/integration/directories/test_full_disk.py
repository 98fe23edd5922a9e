"""A disk fills under load and gets free space again: no acknowledged record is lost (KIP-928).

Three brokers, RF 3, ``min.insync.replicas`` 2, acks=all. Disks are small file systems. Daemons do
not run as root, so that they cannot use the blocks reserved for root.
Gaps between acknowledgements are printed and not asserted."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.testing import mounts
from kraftjbod.testing.mounts import Disk, Kind
from tests.integration import raw
from tests.integration.checker import Load, judge, read
from tests.integration.cluster import KAFKA_STORAGE_ERROR, Cluster
from tests.integration.conftest import RESERVE_BYTES, MakeCluster
from tests.integration.full_disks import (
    logs_on,
    small_disks,
    states,
    wait_led_elsewhere,
    wait_state,
)

pytestmark = [
    pytest.mark.process,
    pytest.mark.clients,
    pytest.mark.disk,
    pytest.mark.timeout(400),
]

PARTITIONS = 6
BROKER = 2
MORE_INODES = 300
TOPIC = "wanted"
FULL, ONLINE = LogDirState.SATURATED, LogDirState.ONLINE
# Deleted files are removed at once, so that the disk gets their space.
QUICK = {
    "log.segment.delete.delay.ms": "100",
    "log.retention.check.interval.ms": "500",
    "broker.session.timeout.ms": "6000",
}


@contextlib.contextmanager
def _cluster(
    make_cluster: MakeCluster, disks: int, kind: Kind = "tmpfs"
) -> Iterator[tuple[Cluster, list[Disk], list[Path]]]:
    """Start a cluster in which every directory of :data:`BROKER` is a separate disk."""
    with small_disks(disks, kind=kind) as made:
        paths = logs_on(made)
        cluster = make_cluster(brokers=3, dirs=disks, log_dirs={BROKER: paths}, config=QUICK)
        try:
            yield cluster, made, paths
        finally:
            # Open files would keep the disks from being unmounted.
            cluster.local.kill()


def _create(cluster: Cluster) -> None:
    cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)


def _held_in(cluster: Cluster, path: Path) -> list[int]:
    held = cluster.replicas_by_dir(BROKER, TOPIC)[str(path)]
    assert held, "the directory holds replicas"
    return held


def _require_progress(cluster: Cluster, load: Load, records: int = 20) -> None:
    before = load.acked_by_partition()
    cluster.wait(
        "progress in every partition",
        lambda: load.flowed_since(before, records),
        explain=load.explain,
    )


def _end(cluster: Cluster, load: Load, title: str) -> None:
    """Assert that no record was lost or repeated, and that no daemon stopped."""
    load.stop()
    load.print_gaps(title)
    assert all(part.failures == [] for part in load.partitions), load.explain()
    assert judge(cluster.bootstrap, TOPIC, load).findings == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["tmpfs", "ext4", "xfs"])
def test_full_disk_under_load_moves_leaders_and_its_replicas_return(
    make_cluster: MakeCluster, kind: Kind
) -> None:
    with _cluster(make_cluster, 2, kind) as (cluster, disks, paths):
        _create(cluster)
        held, pid = _held_in(cluster, paths[0]), cluster.brokers[BROKER].pid
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            _require_progress(cluster, load)
            disks[0].fill()
            wait_state(cluster, BROKER, paths[0], FULL)
            wait_led_elsewhere(cluster, TOPIC, BROKER, held)
            _require_progress(cluster, load)
            described = cluster.directories(BROKER)[str(paths[0])]
            assert described.error == 0, "a saturated directory is described without error"
            assert {f"{TOPIC}-{index}" for index in held} <= set(described.sizes)
            disks[0].free_space()
            wait_state(cluster, BROKER, paths[0], ONLINE)
            cluster.wait_whole(TOPIC)
            _require_progress(cluster, load)
            _end(cluster, load, "a disk fills")
        assert cluster.brokers[BROKER].pid == pid
        assert not cluster.brokers[BROKER].events("log_dir_offline")


@pytest.mark.long
def test_disk_without_free_inodes_is_saturated(make_cluster: MakeCluster) -> None:
    """Open files could still grow, but no file can be created: the directory counts as full."""
    with _cluster(make_cluster, 2) as (cluster, disks, paths):
        _create(cluster)
        held = _held_in(cluster, paths[0])
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            _require_progress(cluster, load)
            files = _take_all_inodes(disks[0])
            wait_state(cluster, BROKER, paths[0], FULL)
            wait_led_elsewhere(cluster, TOPIC, BROKER, held)
            assert cluster.directories(BROKER)[str(paths[0])].usable_bytes > 0
            logged = cluster.wait_event(cluster.brokers[BROKER], "log_dir_saturated")
            assert logged["free_inodes"] == 0
            _require_progress(cluster, load)
            for file in files:
                file.unlink()
            wait_state(cluster, BROKER, paths[0], ONLINE)
            cluster.wait_whole(TOPIC)
            _require_progress(cluster, load)
            _end(cluster, load, "a disk runs out of inodes")


def _take_all_inodes(disk: Disk) -> list[Path]:
    """Create empty files until no inode is left."""
    used = os.statvfs(disk.path)
    most = used.f_files - used.f_ffree + MORE_INODES
    subprocess.run(["mount", "-o", f"remount,nr_inodes={most}", disk.path], check=True, timeout=30)
    files: list[Path] = []
    with contextlib.suppress(OSError):
        for number in itertools.count():
            file = Path(disk.path, f"file-{number}")
            file.touch()
            files.append(file)
    assert len(files) >= MORE_INODES // 2
    return files


def test_only_replica_on_full_disk_is_readable_and_later_writable(
    make_cluster: MakeCluster,
) -> None:
    """Its leader stays and is read-only, because there is no other replica."""
    with _cluster(make_cluster, 1) as (cluster, disks, paths):
        cluster.create_topic("alone", assignments={0: [BROKER]})
        address = cluster.brokers[BROKER].address
        values = [b"%d" % number for number in range(50)]
        assert raw.produce(address, "alone", raw.batch(values))[0] == 0
        disks[0].fill()
        cluster.wait(
            "appends to be refused",
            lambda: raw.produce(address, "alone", raw.batch([b"x"] * 1000))[0] != 0,
        )
        wait_state(cluster, BROKER, paths[0], FULL)
        assert raw.produce(address, "alone", raw.batch([b"no"]))[0] == KAFKA_STORAGE_ERROR
        (part,) = cluster.partitions("alone").values()
        assert (part.leader, part.offline) == (BROKER, ())
        assert [value for _, value in read(cluster.bootstrap, "alone", 0)][:50] == values
        disks[0].free_space()
        cluster.wait(
            "appends to be taken again",
            lambda: raw.produce(address, "alone", raw.batch([b"yes"]))[0] == 0,
        )
        *_, (_, last) = read(cluster.bootstrap, "alone", 0)
        assert last == b"yes" and states(cluster, BROKER)[str(paths[0])] is ONLINE


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", ["in order", "killed"])
def test_restarted_broker_on_full_disk_leads_nothing_until_space_is_free(
    make_cluster: MakeCluster, how: str
) -> None:
    """The directory stays saturated, and its replicas can be read."""
    with _cluster(make_cluster, 2) as (cluster, disks, paths):
        _create(cluster)
        held, daemon = _held_in(cluster, paths[0]), cluster.brokers[BROKER]
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            _require_progress(cluster, load)
            disks[0].fill()
            wait_state(cluster, BROKER, paths[0], FULL)
            if how == "killed":
                assert daemon.pid is not None
                os.kill(daemon.pid, signal.SIGKILL)
                cluster.wait_exit(daemon)
            else:
                cluster.stop_daemon(daemon)
            cluster.start_daemon(daemon)
            assert states(cluster, BROKER) == {str(paths[0]): FULL, str(paths[1]): ONLINE}
            wait_led_elsewhere(cluster, TOPIC, BROKER, held)
            _require_progress(cluster, load)
            disks[0].free_space()
            wait_state(cluster, BROKER, paths[0], ONLINE)
            cluster.wait_whole(TOPIC)
            _end(cluster, load, f"restart on a full disk, {how}")


def test_one_full_and_one_failed_disk_leave_the_third_serving(make_cluster: MakeCluster) -> None:
    with _cluster(make_cluster, 3) as (cluster, disks, paths):
        _create(cluster)
        held = [*_held_in(cluster, paths[0]), *_held_in(cluster, paths[1])]
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            _require_progress(cluster, load)
            disks[0].fill()
            with mounts.closed_to_owner(str(paths[1])):
                wait_state(cluster, BROKER, paths[0], FULL)
                wait_state(cluster, BROKER, paths[1], LogDirState.OFFLINE)
                wait_led_elsewhere(cluster, TOPIC, BROKER, held)
                _require_progress(cluster, load)
                disks[0].free_space()
                wait_state(cluster, BROKER, paths[0], ONLINE)
                _require_progress(cluster, load)
            daemon = cluster.brokers[BROKER]
            cluster.stop_daemon(daemon)
            cluster.start_daemon(daemon)
            cluster.wait_whole(TOPIC)
            _end(cluster, load, "one disk full, another dead")


@pytest.mark.long
def test_all_directories_of_one_broker_full_keep_the_broker_running(
    make_cluster: MakeCluster,
) -> None:
    """The broker takes part again once there is free space."""
    with _cluster(make_cluster, 2) as (cluster, disks, paths):
        _create(cluster)
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            _require_progress(cluster, load)
            for disk in disks:
                disk.fill()
            for path in paths:
                wait_state(cluster, BROKER, path, FULL)
            wait_led_elsewhere(cluster, TOPIC, BROKER, range(PARTITIONS))
            _require_progress(cluster, load)
            for disk in disks:
                disk.free_space()
            cluster.wait_whole(TOPIC)
            _end(cluster, load, "both disks of a broker full")
        assert cluster.brokers[BROKER].is_running


def _delete(cluster: Cluster, topic: str) -> None:
    with cluster.admin() as admin:
        admin.delete_topics([topic])


def _shrink(cluster: Cluster, topic: str) -> None:
    resource = ConfigResource(
        ConfigResourceType.TOPIC, topic, configs={"retention.bytes": str(1024 * 1024)}
    )
    with cluster.admin() as admin:
        admin.alter_configs([resource])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way_out", [_delete, _shrink], ids=["topic deleted", "retention shrunk"])
def test_all_brokers_full_recover_by_deletion_or_retention(
    make_cluster: MakeCluster, way_out: Callable[[Cluster, str], None]
) -> None:
    """No write is possible on any broker, but deletions work, and all partitions continue."""
    ballast_bytes = 12 * 1024 * 1024
    with small_disks(3) as disks:
        paths = logs_on(disks)
        cluster = make_cluster(
            brokers=3,
            dirs=1,
            log_dirs={number: [path] for number, path in enumerate(paths, start=1)},
            config=QUICK,
        )
        try:
            _create(cluster)
            cluster.create_topic("ballast", replication_factor=3, segment_bytes=1024 * 1024)
            with Load(cluster.bootstrap, "ballast", 1, value_bytes=100_000, in_flight=20) as weight:
                cluster.wait("ballast", lambda: weight.acked * 100_000 >= ballast_bytes)
                weight.stop()
            with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
                _require_progress(cluster, load)
                for disk in disks:
                    disk.fill()
                for number, path in enumerate(paths, start=1):
                    wait_state(cluster, number, path, FULL)
                way_out(cluster, "ballast")
                for number, path in enumerate(paths, start=1):
                    wait_state(cluster, number, path, ONLINE)
                cluster.wait_whole(TOPIC)
                _require_progress(cluster, load)
                _end(cluster, load, "all brokers full")
        finally:
            cluster.local.kill()


def test_full_formatted_directory_starts_saturated_beside_the_others(
    make_cluster: MakeCluster,
) -> None:
    """Before, it prevented the first start of the broker."""
    with small_disks(2) as disks:
        full, well = logs_on(disks)
        cluster = make_cluster(
            brokers=1, dirs=2, log_dirs={1: [full, well]}, config=QUICK, start=False
        )
        filler = full.parent / "filler"
        free = os.statvfs(full)
        # The start formats the directory, which has no space for its reserve.
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize - RESERVE_BYTES // 2))
        try:
            cluster.start()
            assert states(cluster, 1) == {
                str(full): LogDirState.SATURATED,
                str(well): LogDirState.ONLINE,
            }
            cluster.create_topic("made")
            assert cluster.replicas_by_dir(1, "made")[str(well)] == [0]
            filler.unlink()
            wait_state(cluster, 1, full, LogDirState.ONLINE)
        finally:
            cluster.local.kill()
