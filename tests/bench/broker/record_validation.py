"""The cost of validating the records of clients: with compiled scans, interpreted, and without.

Three single brokers run side by side, one of each kind, and take turns, so that other load of the
machine affects all of them. A figure is the median of its turns.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Final

from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.protocol import byte_scans, record_scans
from kraftjbod.protocol.records import Record, build_batch
from tests.bench.broker.latency import exchange_us, percentile, produce_frame
from tests.bench.figures import Report, cpu_s, running_cluster
from tests.bench.rdkafka import BatchProducer
from tests.integration.cluster import Cluster

_BROKER: Final = str(Path(__file__).with_name("scan_form_broker.py"))
_FORMS: Final = ("off", "compiled", "interpreted")
_TURNS: Final = 5
_BYTES: Final = 60_000_000
_ROUNDS: Final = 2000
_SCANNED: Final = 10_000
_PARTITIONS: Final = 3
_PRODUCER: Final = {
    "acks": 1,
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 500_000,
}
_LOADS: Final = ((1000, "none"), (100, "none"), (100, "lz4"), (100, "zstd"))


def cost(report: Report) -> None:
    """Measure ns per record in the scan, and MB/s, CPU and microseconds with a broker."""
    forms = _FORMS if record_scans.FORM == "compiled" else ("off", "interpreted")
    for form, scans in (("compiled", record_scans.compiled_form()), ("interpreted", byte_scans)):
        if scans is not None:
            _scan(report, form, scans)
    with ExitStack() as stack:
        clusters = {
            form: stack.enter_context(
                running_cluster(brokers=1, dirs=3, broker_command=(sys.executable, _BROKER, form))
            )
            for form in forms
        }
        for size, compression in _LOADS:
            _throughput(report, clusters, size, compression)
        _latency(report, clusters)


def _scan(report: Report, form: str, scans: ModuleType) -> None:
    records = [Record(key=b"key-1234", value=bytes(100))] * _SCANNED
    body = build_batch(records)[61:]
    times = []
    for _ in range(20):
        began = time.perf_counter_ns()
        scans.check_records(body, _SCANNED, -(2**62), 2**62, 0)
        times.append((time.perf_counter_ns() - began) / _SCANNED)
    report.add(f"scan of one record, {form}", statistics.median(times), "ns", how="100 B, a key")


def _throughput(
    report: Report, clusters: dict[str, ClusterProcesses], size: int, compression: str
) -> None:
    topic, value = f"{compression}-{size}", (bytes(range(256)) * (size // 256 + 1))[:size]
    count = _BYTES // size // _PARTITIONS
    rates: dict[str, list[float]] = {form: [] for form in clusters}
    loads: dict[str, list[float]] = {form: [] for form in clusters}
    with ExitStack() as stack:
        producers = {}
        for form, local in clusters.items():
            Cluster(local).create_topic(topic, partitions=_PARTITIONS)
            settings = {
                **_PRODUCER,
                "bootstrap.servers": local.bootstrap_servers,
                "compression.type": compression,
            }
            producers[form] = stack.enter_context(BatchProducer(topic, settings))
            _produce(producers[form], value, count // 10)
        for _ in range(_TURNS):
            for form, local in clusters.items():
                brokers = list(local.brokers.values())
                cpu, began = cpu_s(brokers), time.perf_counter()
                _produce(producers[form], value, count)
                seconds = time.perf_counter() - began
                rates[form].append(count * _PARTITIONS * size / seconds / 1e6)
                loads[form].append((cpu_s(brokers) - cpu) / count / _PARTITIONS * 1e9)
    for form, found in rates.items():
        how = f"broker: {statistics.median(loads[form]):,.0f} ns of CPU for a record"
        name = f"produce {size} B, {compression}, validation {form}"
        report.add(name, statistics.median(found), "MB/s", how=how)


def _produce(producer: BatchProducer, value: bytes, count_each: int) -> None:
    left = count_each
    while left:
        some = min(left, 5000)
        for partition in range(_PARTITIONS):
            producer.produce(partition, value, some, at_once=5000)
        left -= some
    producer.flush()


def _latency(report: Report, clusters: dict[str, ClusterProcesses]) -> None:
    request = produce_frame("latency", acks=1)
    times: dict[str, list[float]] = {form: [] for form in clusters}
    with ExitStack() as stack:
        connections = {}
        for form, local in clusters.items():
            Cluster(local).create_topic("latency")
            files = local.brokers[1].files
            connections[form] = stack.enter_context(
                socket.create_connection((files.host, files.port))
            )
            connections[form].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_TURNS):
            for form, connection in connections.items():
                times[form] += exchange_us(connection, request, _ROUNDS)
    for form, found in times.items():
        found.sort()
        for percent in (50, 99):
            name = f"1 KB produce, acks=1, validation {form}, p{percent}"
            report.add(name, percentile(found, percent), "us", how="one record, one connection")
