"""A controller whose metadata log is corrupt at its end fetches the rest again, and votes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.testing.local_cluster import LocalCluster

pytestmark = pytest.mark.long


def _spoil_end(controller: DaemonProcess) -> Path:
    log = max((controller.files.metadata_dir / "__cluster_metadata-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    for at in range(len(data) - 40, len(data)):
        data[at] ^= 0xFF
    log.write_bytes(data)
    return log


def _stop(cluster: LocalCluster, controller: DaemonProcess) -> None:
    controller.terminate()
    cluster.wait("it to end", lambda: not controller.is_running)


def test_voter_with_corrupt_log_end_rejoins_and_its_vote_counts() -> None:
    with LocalCluster(brokers=1, dirs=1, controllers=3, disks="plain") as cluster:
        cluster.create_topic("before", partitions=3)
        active = cluster.active_controller()
        damaged, other = (one for one in cluster.controllers if one is not active)
        _stop(cluster, damaged)
        log = _spoil_end(damaged)
        damaged.start()
        cluster.wait("it to be whole again", lambda: damaged.events("metadata_log_is_whole"))
        assert damaged.events("metadata_log_is_short")
        assert list(log.parent.glob("*.damaged")), "the removed end is kept"
        # Without its vote and its disk, no decision is possible any more.
        other.kill()
        cluster.create_topic("after", partitions=3)


def test_only_voter_with_corrupt_log_end_refuses_to_start() -> None:
    with LocalCluster(brokers=1, dirs=1, controllers=1, disks="plain") as cluster:
        cluster.create_topic("before")
        (alone,) = cluster.controllers
        _stop(cluster, alone)
        log = _spoil_end(alone)
        before = log.read_bytes()
        alone.start()
        cluster.wait("it to refuse", lambda: not alone.is_running)
        assert "restore its metadata directory from a backup" in alone.last_words()
        assert log.read_bytes() == before
