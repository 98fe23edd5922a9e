"""The cost of storage telemetry at its default intervals.

Two clusters of three brokers with three directories each run side by side, one with telemetry and
one without, so that other load of the machine affects both. Reported are a broker's CPU time in two
minutes without clients, with few and with many replicas, and the latency of single produce requests
in turns on both clusters. The difference includes the appends, replication and writes of samples.
"""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack
from typing import Final

from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import DaemonProcess
from tests.bench.broker.latency import exchange_us, percentile, produce_frame
from tests.bench.figures import Report, cpu_s, running_cluster
from tests.integration.cluster import Cluster

_BROKERS: Final = 3
_FEW, _MANY = 100, 4_000
_TOPIC_PARTITIONS: Final = 500
_IDLE_S: Final = 120.0
_SETTLE_S: Final = 15.0
#: Turns of each cluster: together longer than from one round of replicas to the next.
_TURNS: Final = 8
_ROUNDS_PER_TURN: Final = 20_000


def on_and_off(report: Report) -> None:
    for replicas in (_FEW, _MANY):
        with ExitStack() as stack:
            clusters = {
                is_on: stack.enter_context(
                    running_cluster(
                        brokers=_BROKERS,
                        dirs=3,
                        config={"storage.telemetry.enable": str(is_on).lower()},
                    )
                )
                for is_on in (True, False)
            }
            for local in clusters.values():
                _create(Cluster(local), replicas)
            time.sleep(_SETTLE_S)
            idle(
                report, clusters, f"idle broker, {replicas:,} replicas", "StorageTelemetrySentTotal"
            )
            if replicas == _MANY:
                _produce(report, clusters, replicas)


def idle(report: Report, clusters: dict[bool, ClusterProcesses], name: str, counter: str) -> None:
    """CPU of both clusters side by side; ``counter`` is the metric of records sent."""

    def spent_s() -> dict[bool, float]:
        return {is_on: cpu_s(local.brokers.values()) for is_on, local in clusters.items()}

    brokers = len(clusters[True].brokers)
    sent, before, began = _sent(clusters[True], counter), spent_s(), time.monotonic()
    time.sleep(_IDLE_S)
    after, took_s = spent_s(), time.monotonic() - began
    sent = _sent(clusters[True], counter) - sent
    percent = {is_on: 100 * (after[is_on] - before[is_on]) / brokers / took_s for is_on in clusters}
    how = f"of one core, over {took_s:.0f} s, mean of {brokers} brokers"
    report.add(f"{name}: CPU with telemetry", percent[True], "%", how=how)
    report.add(f"{name}: CPU without", percent[False], "%", how=how)
    how = f"{sent / brokers:,.0f} records sent per broker meanwhile"
    report.add(f"{name}: CPU of telemetry", percent[True] - percent[False], "%", how=how)


def _produce(report: Report, clusters: dict[bool, ClusterProcesses], replicas: int) -> None:
    times: dict[bool, list[float]] = {True: [], False: []}
    with ExitStack() as stack:
        connections = {}
        for is_on, local in clusters.items():
            cluster = Cluster(local)
            cluster.create_topic("latency", assignments={0: [1]})
            files = cluster.brokers[1].files
            connections[is_on] = stack.enter_context(
                socket.create_connection((files.host, files.port))
            )
            connections[is_on].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = produce_frame("latency", acks=1)
        sent = _sent(clusters[True], "StorageTelemetrySentTotal")
        for turn in range(_TURNS):
            for is_on in (True, False) if turn % 2 else (False, True):
                times[is_on] += exchange_us(connections[is_on], request, _ROUNDS_PER_TURN)
        reported = _sent(clusters[True], "StorageTelemetrySentTotal") - sent
        assert reported > replicas, "no round of replicas fell into this"
    how = (
        f"{_TURNS} turns of {_ROUNDS_PER_TURN:,} on each cluster, {replicas:,} replicas per broker"
    )
    for is_on in (True, False):
        name = f"1 KB produce, acks=1, {'with' if is_on else 'without'} telemetry"
        ordered = sorted(times[is_on])
        for percent in (50, 99):
            report.add(f"{name}, p{percent}", percentile(ordered, percent), "us", how=how)


def _create(cluster: Cluster, replicas: int) -> None:
    """Create ``replicas`` replicas per broker; wait until they are on disk and reported."""
    with cluster.admin() as admin:
        for number, first in enumerate(range(0, replicas, _TOPIC_PARTITIONS)):
            size = min(_TOPIC_PARTITIONS, replicas - first)
            options = {"num_partitions": size, "replication_factor": _BROKERS}
            admin.create_topics({f"many-{number}": options})

    def is_done(broker: DaemonProcess) -> bool:
        figures = _figures(broker)
        return (
            figures.get("PartitionCount", 0) >= replicas
            and figures["QueuedReplicaToDirAssignments"] == 0
        )

    cluster.wait(
        f"{replicas:,} replicas", lambda: all(map(is_done, cluster.brokers.values())), timeout_s=300
    )


def _sent(local: ClusterProcesses, counter: str) -> float:
    """Records that all brokers have sent."""
    return sum(_figures(broker).get(counter, 0) for broker in local.brokers.values())


def _figures(broker: DaemonProcess) -> dict[str, float]:
    figures: dict[str, float] = json.loads(broker.files.metrics_path.read_text(encoding="utf-8"))
    return figures
