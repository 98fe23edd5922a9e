"""Resources of idle brokers, per replica and per connection, and of idle clusters.

CPU is the process's user and system time in a period without requests.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Final

from tests.bench.figures import Process, Report, cpu_s, rss_mb, running_cluster
from tests.bench.kafka_process import kafka_nodes
from tests.bench.scale.subject import (
    PRODUCE_VERSION,
    Start,
    Subject,
    create_replicated,
    each_kind,
    produce_request,
)
from tests.integration import raw

REPLICAS: Final = (500, 1000, 4000, 10_000)
CONNECTIONS: Final = (100, 1000, 4000, 10_000)
#: Topics of 30 partitions with three replicas, on three brokers.
TOPICS: Final = (0, 50, 100, 200)
_PARTITIONS: Final = 30
_CONTROLLERS: Final = (100, 101, 102)
_BROKERS: Final = (1, 2, 3)
_CALM_S: Final = 60.0
#: Wait after the creation of replicas, until their directories are reported.
_SETTLE_S: Final = 60.0
_PRODUCES: Final = 1000
_SPARE_DESCRIPTORS: Final = 200


def replicas(report: Report) -> None:
    """Memory per replica and CPU of one broker that leads them, without clients."""
    for start in each_kind(report):
        for count in REPLICAS:
            _measure_replicas(report, start, count)


def _measure_replicas(report: Report, start: Start, count: int) -> None:
    with start() as subject:
        subject.create_topic("first")
        before_kb, files = subject.rss_kb(), subject.descriptors()
        subject.create_many(count)
        name = f"{subject.name}, {count:,} replicas"
        how = "with a record each"
        grown_kb = (subject.rss_kb() - before_kb) / count
        report.add(f"{name}: memory of one", grown_kb, "kB", how=how)
        grown = (subject.descriptors() - files) / count
        report.add(f"{name}: descriptors of one", grown, "each", how=how)
        time.sleep(_SETTLE_S)
        (percent,) = _cpu_percent([subject.process])
        report.add(f"{name}: idle", percent, "% of a core", how=f"over {_CALM_S:.0f} s")


def connections(report: Report) -> None:
    """Measure memory per idle connection, and the latency of a produce request beside them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    possible = [count for count in CONNECTIONS if count + _SPARE_DESCRIPTORS <= hard]
    try:
        for start in each_kind(report):
            for count in possible:
                _measure_connections(report, start, count)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _measure_connections(report: Report, start: Start, count: int) -> None:
    with start() as subject, ExitStack() as opened:
        subject.create_topic("measured")
        alone_us, before_kb = _produce_us(subject), subject.rss_kb()
        for _ in range(count):
            connection = opened.enter_context(closing(raw.connected(subject.address)))
            # A broker knows a connection when it has answered on it.
            raw.exchange_on(connection, produce_request("measured", [0]), PRODUCE_VERSION)
        grown_kb = (subject.rss_kb() - before_kb) / count
        name = f"{subject.name}, {count:,} connections"
        report.add(f"{name}: memory of one", grown_kb, "kB")
        beside = f"before: {alone_us:,.0f} us"
        report.add(f"{name}: produce, p50", _produce_us(subject), "us", beside=beside)


def _produce_us(subject: Subject) -> float:
    request, times = produce_request("measured", [0]), []
    with closing(raw.connected(subject.address)) as connection:
        for _ in range(_PRODUCES):
            began_s = time.perf_counter()
            raw.exchange_on(connection, request, PRODUCE_VERSION)
            times.append(time.perf_counter() - began_s)
    return statistics.median(times) * 1e6


def clusters(report: Report) -> None:
    """Three controllers and three brokers: empty, and with up to 6,000 replicas per broker."""
    for topics in TOPICS:
        with running_cluster(brokers=3, dirs=3, controllers=3) as local:
            create_replicated(local.brokers[1].address, topics, _PARTITIONS)
            _measure_cluster(report, "ours", topics, local.controllers, local.brokers)
    if report.kafka_libs is None:
        return
    for topics in TOPICS:
        libs = report.kafka_libs
        with kafka_nodes(libs, controllers=_CONTROLLERS, brokers=_BROKERS) as nodes:
            create_replicated(nodes[1].address, topics, _PARTITIONS)
            controllers = {n: node for n, node in nodes.items() if n in _CONTROLLERS}
            brokers = {n: node for n, node in nodes.items() if n in _BROKERS}
            _measure_cluster(report, "Kafka", topics, controllers, brokers)


def _measure_cluster(
    report: Report,
    name: str,
    topics: int,
    controllers: Mapping[int, Process],
    brokers: Mapping[int, Process],
) -> None:
    time.sleep(_SETTLE_S)
    percents = _cpu_percent([*controllers.values(), *brokers.values()])
    name = f"{name}, {topics * _PARTITIONS:,} replicas per broker"
    for what, nodes, used in (
        ("controller", controllers, percents[: len(controllers)]),
        ("broker", brokers, percents[len(controllers) :]),
    ):
        how = f"the busiest of {len(nodes)}, over {_CALM_S:.0f} s"
        report.add(f"{name}: an idle {what}", max(used), "% of a core", how=how)
        largest = max(map(rss_mb, nodes.values()))
        report.add(f"{name}: memory of a {what}", largest, "MB")


def _cpu_percent(processes: Sequence[Process]) -> list[float]:
    """Percent of a core that each process uses."""
    before = [cpu_s([one]) for one in processes]
    began_s = time.monotonic()
    time.sleep(_CALM_S)
    calm_s = time.monotonic() - began_s
    return [
        (cpu_s([one]) - used) / calm_s * 100 for one, used in zip(processes, before, strict=True)
    ]
