"""Brokers with a low limit of open files: creation is refused in time, and no disk is blamed."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kafka.errors import InvalidPartitionsError

from kraftjbod.local.daemon_process import DaemonProcess
from tests.integration import clients
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients]

BROKER = 1
# The default soft limit of a shell.
LIMITED_BROKER = (
    "/bin/sh",
    "-c",
    'ulimit -n 1024; exec "$@"',
    "sh",
    sys.executable,
    "-m",
    "kraftjbod.daemon.broker_server",
)
CHECK_INTERVAL_MS = 100


@contextmanager
def no_free_descriptors(daemon: DaemonProcess) -> Iterator[None]:
    """Make every open of the daemon fail with EMFILE within the block."""
    pid = daemon.pid
    assert pid is not None
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, _hard_limit(pid)))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def _hard_limit(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]


def _require_online(cluster: Cluster) -> None:
    for broker_id, daemon in cluster.brokers.items():
        assert daemon.is_running, f"broker {broker_id} ended with {daemon.exit_code}"
        assert not daemon.events("log_dir_offline")
        assert {found.error for found in cluster.directories(broker_id).values()} == {0}


def test_create_topic_beyond_open_files_of_brokers_is_refused(
    make_cluster: MakeCluster,
) -> None:
    """Before, this stopped all three brokers, and the next start ended in the same way."""
    cluster = make_cluster(brokers=3, dirs=3, broker_command=LIMITED_BROKER)
    with (
        pytest.raises(InvalidPartitionsError, match="can hold 640 replicas"),
        cluster.admin() as admin,
    ):
        admin.create_topics({"large": {"num_partitions": 1_100, "replication_factor": 3}})
    cluster.create_topic("fits", partitions=150, replication_factor=3)
    clients.write_confluent(cluster.bootstrap, "fits", [b"a", b"b", b"c"])
    assert sorted(clients.read_confluent(cluster.bootstrap, "fits", 3)) == [b"a", b"b", b"c"]
    _require_online(cluster)


def test_broker_without_a_free_descriptor_keeps_its_directories(
    make_cluster: MakeCluster,
) -> None:
    """Disk checks open files; before, all directories went offline within a second."""
    cluster = make_cluster(
        brokers=1, dirs=3, config={"log.dir.check.interval.ms": str(CHECK_INTERVAL_MS)}
    )
    cluster.create_topic("kept", partitions=3)
    clients.write_confluent(cluster.bootstrap, "kept", [b"a"])
    daemon = cluster.brokers[BROKER]
    with no_free_descriptors(daemon):
        paths = {str(cluster.local.dir_path(BROKER, n)) for n in (1, 2, 3)}
        cluster.wait(
            "each directory's check to lack a descriptor, or its end",
            lambda: (
                not daemon.is_running
                or {e["log_dir"] for e in daemon.events("log_dir_operation_lacked_resources")}
                >= paths
            ),
        )
    _require_online(cluster)
    clients.write_confluent(cluster.bootstrap, "kept", [b"b"])
    assert sorted(clients.read_confluent(cluster.bootstrap, "kept", 2)) == [b"a", b"b"]
