"""The controller's disk fills or hangs: accepted, refused and waiting requests, and the recovery.

A real controller and real brokers, with the metadata directory on a small file system of its
own."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from kafka.errors import KafkaError

from kraftjbod.testing import mounts
from kraftjbod.testing.frozen import frozen
from tests.integration import clients
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [
    pytest.mark.process,
    pytest.mark.clients,
    pytest.mark.skipif(mounts.why_not("tmpfs") is not None, reason=str(mounts.why_not("tmpfs"))),
]

SESSION_S = 3
# Longer than several checks of the disk.
CHECKS_S = 1.5
RESERVE_BYTES = 256 * 1024
BALLOON = "balloon"


@contextlib.contextmanager
def _cluster_on(
    make_cluster: MakeCluster,
    controller: Mapping[str, str] | None = None,
    kind: mounts.Kind = "tmpfs",
) -> Iterator[tuple[Cluster, mounts.Disk]]:
    """Start two brokers and a controller whose metadata directory is a file system of 2 MiB or
    more."""
    with mounts.mounted(kind, size_bytes=2 * 1024 * 1024) as disk:
        metadata = {"log.dirs": disk.path, "metadata.log.dir": disk.path}
        cluster = make_cluster(
            brokers=2,
            dirs=2,
            config={
                "broker.session.timeout.ms": str(SESSION_S * 1000),
                "broker.heartbeat.interval.ms": "500",
                "log.dir.reserve.bytes": str(RESERVE_BYTES),
            },
            controller_config={**metadata, **(controller or {})},
        )
        try:
            cluster.create_topic(
                "before", partitions=2, replication_factor=2, min_insync_replicas=1
            )
            yield cluster, disk
        finally:
            # Kill the controller before its disk is unmounted.
            cluster.local.kill()


def _configure(cluster: Cluster, *values: int) -> None:
    """Change the metadata repeatedly without permanent growth.

    :raises KafkaException: for the first refused change."""
    admin = AdminClient(clients.quiet(cluster.bootstrap))
    for value in values:
        entry = ConfigEntry("retention.ms", str(value), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "before", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result()


def _restart(cluster: Cluster) -> None:
    """Kill the controller, and start it on the disk as it is."""
    controller = cluster.local.controller
    controller.kill()
    cluster.wait_exit(controller)
    controller.start()
    cluster.wait_event(controller, "controller_started", 2)


def _refused(cluster: Cluster, topic: str) -> str:
    with pytest.raises(KafkaError) as refused, cluster.admin() as admin:
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
    return str(refused.value)


def _retention(cluster: Cluster) -> str:
    return cluster.metadata().topic_config("before")["retention.ms"]


def test_full_metadata_disk_refuses_growth_and_recovers(make_cluster: MakeCluster) -> None:
    with _cluster_on(make_cluster) as (cluster, disk):
        controller = cluster.local.controller
        pid = controller.pid
        disk.fill()
        _configure(cluster, *range(1_000_000, 1_000_100))
        cluster.wait_event(controller, "log_dir_saturated")
        cluster.wait_event(controller, "log_dir_reserve_released")
        said = _refused(cluster, "refused")
        assert disk.path in said
        assert "is full" in said
        _configure(cluster, 2_000_000)
        assert _retention(cluster) == "2000000"

        # A broker dies and returns: elections and registrations still have space.
        cluster.brokers[2].kill()
        cluster.wait(
            "broker 1 to lead",
            lambda: all(part.leader == 1 for part in cluster.partitions("before", ask=1).values()),
        )
        clients.write_confluent(cluster.brokers[1].address, "before", [b"a", b"b"])
        cluster.start_daemon(cluster.brokers[2])
        cluster.wait_whole("before")
        assert controller.pid == pid

        # After a kill and a start on the full disk, the same requests are refused.
        _restart(cluster)
        cluster.wait("topics to be refused again", lambda: "is full" in _refused(cluster, "again"))
        assert _retention(cluster) == "2000000"
        balloon = Path(disk.path, BALLOON)
        assert balloon.exists()
        balloon.unlink()
        cluster.wait_event(controller, "log_dir_reserve_rebuilt")
        cluster.wait("topics to be made", lambda: _is_made(cluster, "after"))
        assert set(cluster.metadata().topic_ids) == {"before", "after"}
        assert clients.read_confluent(cluster.bootstrap, "before", 2) == [b"a", b"b"]


def _is_made(cluster: Cluster, topic: str) -> bool:
    cluster.create_topic(topic)
    return True


@pytest.mark.long
def test_metadata_disk_at_minimum_free_bytes_refuses_writes_and_keeps_brokers(
    make_cluster: MakeCluster,
) -> None:
    """Nothing is written any more, and requests without a write are not affected."""
    margin = RESERVE_BYTES - 32 * 1024
    min_free = {"metadata.log.min.free.bytes": str(margin)}
    with _cluster_on(make_cluster, min_free) as (cluster, disk):
        controller = cluster.local.controller
        pid = controller.pid
        disk.fill()
        _exhaust(cluster)
        accepted = _retention(cluster)
        with pytest.raises(KafkaException, match="has to be written"):
            _configure(cluster, 5000)
        assert _retention(cluster) == accepted, "the refused change is not in the log"
        time.sleep(2 * SESSION_S)
        assert not any(broker.fenced for broker in cluster.metadata().brokers.values())
        clients.write_confluent(cluster.bootstrap, "before", [b"a"])
        assert controller.pid == pid

        _restart(cluster)
        assert _retention(cluster) == accepted
        Path(disk.path, BALLOON).unlink()
        cluster.wait("configurations to be taken", lambda: _is_configured(cluster, 7))
        assert _retention(cluster) == "7"


def _exhaust(cluster: Cluster) -> None:
    """Change configurations until a change is refused even after a check of the disk."""
    numbers = itertools.count(1)
    while True:
        with pytest.raises(KafkaException, match="has to be written"):
            _configure(cluster, *itertools.islice(numbers, 5000))
        time.sleep(CHECKS_S)
        if not _is_configured(cluster, next(numbers)):
            return


def _is_configured(cluster: Cluster, value: int) -> bool:
    try:
        _configure(cluster, value)
    except KafkaException:
        return False
    return True


@pytest.mark.skipif(mounts.why_not("ext4") is not None, reason=str(mounts.why_not("ext4")))
def test_hanging_metadata_disk_delays_decisions_and_fences_no_broker(
    make_cluster: MakeCluster,
) -> None:
    suspect = {"log.dir.io.suspect.ms": "500"}
    with _cluster_on(make_cluster, suspect, "ext4") as (cluster, disk):
        controller = cluster.local.controller
        pid = controller.pid
        with ThreadPoolExecutor(1) as pool:
            with frozen(disk, at_most_s=20):
                cluster.wait_event(controller, "log_dir_stalled")
                creation = pool.submit(cluster.create_topic, "waits", replication_factor=2)
                time.sleep(2 * SESSION_S)
                clients.write_confluent(cluster.bootstrap, "before", [b"a", b"b"])
                assert not creation.done(), "the record is not on the disk"
                assert not controller.events("broker_fenced")
                committed = cluster.metadata()
                assert set(committed.topic_ids) == {"before"}, "uncommitted topics are invisible"
            creation.result()
        cluster.wait_event(controller, "log_dir_answers_again")
        assert set(cluster.metadata().topic_ids) == {"before", "waits"}
        assert controller.pid == pid
