"""A broker with 36 directories: it starts, serves, stops, and has the documented threads."""

from __future__ import annotations

import os

import pytest
from confluent_kafka import Producer

from kraftjbod.local.daemon_process import DaemonProcess
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

DIRECTORIES = 36
# docs/operate.md, "What a broker takes": threads of the process, and per directory.
THREADS_OF_PROCESS = 7
MOST_THREADS_OF_DIRECTORY = 3


def threads_of(daemon: DaemonProcess) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/task"))


def test_broker_with_36_directories_starts_serves_and_stops_with_documented_threads(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=1, dirs=DIRECTORIES)
    broker = cluster.brokers[1]
    (limits,) = broker.events("broker_limits")
    assert limits["connections"] == 10_000
    assert limits["replicas"] <= limits["descriptors"] * 3 // 4
    cluster.create_topic("many", partitions=DIRECTORIES)
    for round_of in ("before the stop", "after the start"):
        idle = THREADS_OF_PROCESS + DIRECTORIES
        assert (
            idle - 1
            <= threads_of(broker)
            <= THREADS_OF_PROCESS + (MOST_THREADS_OF_DIRECTORY * DIRECTORIES)
        )
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        for partition in range(DIRECTORIES):
            producer.produce("many", round_of.encode(), partition=partition)
        assert producer.flush(60) == 0
        cluster.stop_daemon(broker)
        cluster.start_daemon(broker)
    placed = cluster.replicas_by_dir(1, "many")
    assert sorted(map(len, placed.values())) == [1] * DIRECTORIES
