"""Disks filled by a topic's own records get free space by DeleteRecords alone (KIP-928).

Nothing else deletes data here: retention keeps everything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kafka
import pytest

from kraftjbod.core.log_dir_state import LogDirState
from tests.integration import raw
from tests.integration.checker import read
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.full_disks import logs_on, small_disks, wait_state

pytestmark = [
    pytest.mark.process,
    pytest.mark.clients,
    pytest.mark.disk,
    pytest.mark.timeout(300),
]

TOPIC: Final = "grown"
FULL, ONLINE = LogDirState.SATURATED, LogDirState.ONLINE
VALUE: Final = bytes(100_000)
BATCH: Final = [VALUE] * 8
DISK_BYTES: Final = 32 * 1024 * 1024
KEEPS_EVERYTHING: Final[dict[str, Any]] = {"retention_ms": -1, "segment_bytes": 1024 * 1024}
QUICK: Final = {"log.segment.delete.delay.ms": "100", "broker.session.timeout.ms": "6000"}


@contextlib.contextmanager
def _cluster(make_cluster: MakeCluster, brokers: int) -> Iterator[tuple[Cluster, list[Path]]]:
    """Start a cluster in which every broker has one small disk."""
    with small_disks(brokers, size_bytes=DISK_BYTES) as disks:
        paths = logs_on(disks)
        cluster = make_cluster(
            brokers=brokers,
            dirs=1,
            log_dirs={number: [path] for number, path in enumerate(paths, start=1)},
            config=QUICK,
        )
        try:
            yield cluster, paths
        finally:
            # Open files would keep the disks from being unmounted.
            cluster.local.kill()


def _produce(cluster: Cluster, values: list[bytes], *, acks: int = -1) -> int:
    """Return the error code, or -1 while the partition has no leader."""
    leader = cluster.partitions(TOPIC)[0].leader
    if leader == -1:
        return -1
    address = cluster.brokers[leader].address
    code: int = raw.produce(address, TOPIC, raw.batch(values), acks=acks)[0]
    return code


def _produce_until_refused(cluster: Cluster) -> int:
    """Return the number of acknowledged batches."""
    acknowledged = 0
    while _produce(cluster, BATCH) == 0:
        acknowledged += 1
        assert acknowledged * len(BATCH) * len(VALUE) < 2 * DISK_BYTES
    return acknowledged


def _delete(cluster: Cluster, offset: int) -> int:
    partition = kafka.TopicPartition(TOPIC, 0)
    with cluster.admin() as admin:
        answered = admin.delete_records({partition: offset})[partition]
    low_watermark: int = answered["low_watermark"]
    return low_watermark


def _wait_taken(cluster: Cluster) -> None:
    cluster.wait("appends to be taken again", lambda: _produce(cluster, [b"more"]) == 0)


def test_delete_records_frees_full_disk_of_only_replica(
    make_cluster: MakeCluster,
) -> None:
    with _cluster(make_cluster, 1) as (cluster, paths):
        cluster.create_topic(TOPIC, **KEEPS_EVERYTHING)
        end = _produce_until_refused(cluster) * len(BATCH)
        wait_state(cluster, 1, paths[0], FULL)
        keep_from = end - len(BATCH)
        assert _delete(cluster, keep_from) == keep_from
        wait_state(cluster, 1, paths[0], ONLINE)
        _wait_taken(cluster)
        offsets = [offset for offset, _ in read(cluster.bootstrap, TOPIC, 0)]
        assert offsets[0] == keep_from and offsets[-1] >= end
        assert offsets == list(range(keep_from, offsets[-1] + 1))
        # The same works a second time.
        assert _produce_until_refused(cluster) > 0
        wait_state(cluster, 1, paths[0], FULL)
        assert _delete(cluster, -1) > end
        wait_state(cluster, 1, paths[0], ONLINE)
        _wait_taken(cluster)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("keeps", [0, 21], ids=["nothing kept", "some kept"])
def test_delete_records_frees_full_disks_of_all_replicas(
    make_cluster: MakeCluster, keeps: int
) -> None:
    """The followers receive the new log start, although nothing is fetched into their disks."""
    with _cluster(make_cluster, 3) as (cluster, paths):
        cluster.create_topic(TOPIC, replication_factor=3, min_insync_replicas=2, **KEEPS_EVERYTHING)

        def all_full() -> bool:
            return all(daemon.events("log_dir_saturated") for daemon in cluster.brokers.values())

        def refused() -> bool:
            _produce(cluster, BATCH, acks=1)
            return all_full()

        end = _produce_until_refused(cluster) * len(BATCH)
        # A broker with free space is the only one in sync, which is too few for acks=all.
        cluster.wait("all disks to be full", refused)
        for number, path in enumerate(paths, start=1):
            wait_state(cluster, number, path, FULL)
        wanted = -1 if keeps == 0 else end - keeps
        low_watermark = _delete(cluster, wanted)
        # The last leader learns that its last batch is committed once another replica is in sync.
        assert low_watermark >= end - (keeps or len(BATCH))
        for number, path in enumerate(paths, start=1):
            wait_state(cluster, number, path, ONLINE)
        cluster.wait_whole(TOPIC)
        _wait_taken(cluster)
        offsets = [offset for offset, _ in read(cluster.bootstrap, TOPIC, 0)]
        assert offsets == list(range(low_watermark, offsets[-1] + 1))
