"""A hundred cycles of full disks under load, with a verifying producer and a verifying consumer.

Three brokers, RF 3, ``min.insync.replicas`` 2, acks=all. Each directory of :data:`BROKER` is a
tmpfs. Foreign files fill one or two of them at once, and are deleted again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftjbod.testing import mounts
from kraftjbod.testing.mounts import Disk
from tests.integration.checker import Load, judge
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.live_consumer import LiveConsumer

pytestmark = [
    pytest.mark.long,
    pytest.mark.process,
    pytest.mark.clients,
    pytest.mark.disk,
    pytest.mark.timeout(900),
    pytest.mark.skipif(mounts.why_not("tmpfs") is not None, reason=str(mounts.why_not("tmpfs"))),
]

BROKER = 2
CYCLES = 100
DISKS = 3
PARTITIONS = 6
TOPIC = "wanted"
DISK_BYTES = 128 * 1024 * 1024
MARGIN_BYTES = 1024 * 1024
# Recovery takes two successive checks in each cycle.
CONFIG = {"log.dir.check.interval.ms": "100", "broker.session.timeout.ms": "6000"}


@contextlib.contextmanager
def _cluster(make_cluster: MakeCluster) -> Iterator[tuple[Cluster, list[Disk]]]:
    with contextlib.ExitStack() as stack:
        disks = [
            stack.enter_context(mounts.mounted("tmpfs", size_bytes=DISK_BYTES))
            for _ in range(DISKS)
        ]
        paths = [Path(disk.path, "logs") for disk in disks]
        for path in paths:
            path.mkdir()
        cluster = make_cluster(brokers=3, dirs=DISKS, log_dirs={BROKER: paths}, config=CONFIG)
        # Open files would keep the disks from being unmounted.
        stack.callback(cluster.local.kill)
        cluster.create_topic(
            TOPIC, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2
        )
        yield cluster, disks


def _fill(disk: Disk) -> None:
    """Fill most of the disk at once and the rest in pieces, because the brokers write meanwhile."""
    space = os.statvfs(disk.path)
    most = space.f_bavail * space.f_frsize - MARGIN_BYTES
    fd = os.open(f"{disk.path}/stranger", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        if most > 0:
            os.posix_fallocate(fd, 0, most)
    finally:
        os.close(fd)
    disk.fill()


def _give_it_back(disk: Disk) -> None:
    for name in ("stranger", "balloon"):
        os.unlink(f"{disk.path}/{name}")


def _require_progress(cluster: Cluster, load: Load) -> None:
    before = load.acked_by_partition()
    cluster.wait(
        "progress in every partition", lambda: load.flowed_since(before, 5), explain=load.explain
    )


def test_hundred_cycles_of_full_disks_lose_no_record(make_cluster: MakeCluster) -> None:
    with _cluster(make_cluster) as (cluster, disks):
        broker = cluster.brokers[BROKER]
        pid, saturated = broker.pid, 0
        with (
            Load(cluster.bootstrap, TOPIC, PARTITIONS, pause_s=0.01) as load,
            LiveConsumer(cluster.bootstrap, TOPIC, PARTITIONS) as reader,
        ):
            _require_progress(cluster, load)
            for cycle in range(CYCLES):
                chosen = {cycle % DISKS, cycle // DISKS % DISKS}
                for number in chosen:
                    _fill(disks[number])
                saturated += len(chosen)
                cluster.wait_event(broker, "log_dir_saturated", saturated)
                _require_progress(cluster, load)
                for number in chosen:
                    _give_it_back(disks[number])
                cluster.wait_event(broker, "log_dir_has_space_again", saturated)
                cluster.wait_whole(TOPIC)
            load.stop()
            load.print_gaps(f"{CYCLES} times full and healed")
            assert reader.finish(load) == []
        assert broker.pid == pid
        assert not broker.events("log_dir_offline")
        assert not cluster.local.controller.events("broker_fenced")
        assert judge(cluster.bootstrap, TOPIC, load).findings == []
