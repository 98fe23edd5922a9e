"""Moving a replica between two directories, beside ``cp`` of the same files in the same run.

One broker with three directories: a replica of 2 GB moves from one to the other and back, while
single produce requests go to a replica in the third. ``cp`` copies the same files before each move,
once without and once with a final ``sync``, since a move ends when its bytes are on the disk.
Reported are the throughputs, the time for which the last step delayed requests to the moving
replica, and p50 and p99 of the requests to the other replica with and without the move.
"""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.protocol import kafka_codec
from tests.bench.figures import Report, running_cluster
from tests.bench.rdkafka import BatchProducer
from tests.integration import raw
from tests.integration.cluster import Cluster

MOVED_BYTES: Final = 2_000_000_000
_VALUE: Final = bytes(range(250)) * 4
_PRODUCER: Final = {"linger.ms": 5, "batch.size": 1_000_000, "queue.buffering.max.kbytes": 500_000}
_AT_ONCE: Final = 5000
_QUIET_S: Final = 3.0
_POLL_EVERY: Final = 20
_DEADLINE_S: Final = 120.0
_PRODUCE_VERSION: Final = 9
_ALTER_VERSION: Final = 2


def between_directories(report: Report) -> None:
    with running_cluster(brokers=1, dirs=3) as local:
        cluster, broker = Cluster(local), local.brokers[1]
        cluster.create_topic("elsewhere")
        cluster.create_topic("moved")
        fill(local, "moved", MOVED_BYTES)
        busy, first = _home(broker, "elsewhere"), _home(broker, "moved")
        (second,) = set(broker.files.log_dirs) - {busy, first}
        with socket.create_connection((broker.files.host, broker.files.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            produces = Produces(connection)
            for source, target in ((first, second), (second, first)):
                os.sync()
                cp, synced = _cp(source / "moved-0", local.run_dir / "cp")
                quiet = produces.until(after(_QUIET_S))
                _move(broker.address, target)
                moving = produces.until(_is_over(broker, target))
                way = f"{source.name} to {target.name}"
                _report(report, broker, way, cp, synced, quiet, moving)


def _report(
    report: Report,
    broker: DaemonProcess,
    way: str,
    cp: float,
    synced: float,
    quiet: list[float],
    moving: list[float],
) -> None:
    end = broker.events("replica_moved")[-1]
    seconds = at(end) - at(broker.events("replica_move_started")[-1])
    speed = end["copied_bytes"] / seconds / 1e6
    beside = f"cp {cp:,.0f} MB/s, cp and sync {synced:,.0f} MB/s"
    how = f"{speed / cp:.2f} of cp, {speed / synced:.2f} of cp and sync; gate {end['gate_ms']} ms"
    report.add(f"move of 2 GB, {way}", speed, "MB/s", beside=beside, how=how)
    for percent in (50, 99):
        still, busy = percentile(quiet, percent), percentile(moving, percent)
        report.add(
            f"1 KB produce to a third directory meanwhile, p{percent}",
            busy,
            "us",
            beside=f"without the move {still:.0f} us",
            how=f"{busy / still:.2f} of it; {len(moving):,} produces",
        )


class Produces:
    """Single produces to ``elsewhere``, acks=1, on one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        batch = raw.produce_request("elsewhere", raw.batch([_VALUE]), acks=1)
        self._request = raw.frame(batch, _PRODUCE_VERSION)

    def until(self, is_over: Callable[[], bool]) -> list[float]:
        """Sorted round trips in microseconds, as many as fit before ``is_over``."""
        times: list[float] = []
        deadline = time.monotonic() + _DEADLINE_S
        while not is_over():
            assert time.monotonic() < deadline, "it never ended"
            for _ in range(_POLL_EVERY):
                started = time.perf_counter_ns()
                self._connection.sendall(self._request)
                (size,) = struct.unpack(">i", raw.receive(self._connection, 4))
                raw.receive(self._connection, size)
                times.append((time.perf_counter_ns() - started) / 1000)
        return sorted(times)


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def _is_over(broker: DaemonProcess, target: Path) -> Callable[[], bool]:
    """Return a condition: the replica is in ``target`` and the event, a moment later, is logged."""
    logged = len(broker.events("replica_moved"))

    def is_over() -> bool:
        return (target / "moved-0").exists() and len(broker.events("replica_moved")) > logged

    return is_over


def fill(local: ClusterProcesses, topic: str, size_bytes: int) -> None:
    """Produce that much into partition 0, in values of 1,000 bytes."""
    with BatchProducer(topic, {"bootstrap.servers": local.bootstrap_servers, **_PRODUCER}) as to:
        for _ in range(size_bytes // len(_VALUE) // _AT_ONCE):
            to.produce(0, _VALUE, _AT_ONCE, at_once=_AT_ONCE)
        to.flush()


def _cp(source: Path, target: Path) -> tuple[float, float]:
    """MB/s of ``cp -r``, and with a final sync."""
    size = sum(path.stat().st_size for path in source.iterdir())
    started = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    copied = time.perf_counter() - started
    subprocess.run(["sync", *map(str, target.iterdir())], check=True)
    synced = time.perf_counter() - started
    shutil.rmtree(target)
    return size / copied / 1e6, size / synced / 1e6


def _move(address: str, target: Path) -> None:
    request = kafka_codec.message("AlterReplicaLogDirsRequest")
    topics = [request.AlterReplicaLogDirTopic(name="moved", partitions=[0])]
    dirs = [request.AlterReplicaLogDir(path=str(target), topics=topics)]
    answer = raw.exchange(address, request(dirs=dirs), _ALTER_VERSION)
    error = answer.results[0].partitions[0].error_code
    assert error == 0, f"the move was refused with {error}"


def _home(broker: DaemonProcess, topic: str) -> Path:
    (home,) = (path for path in broker.files.log_dirs if (path / f"{topic}-0").exists())
    return home


def at(event: Mapping[str, Any]) -> float:
    """Return when an event was logged, in seconds since 1970."""
    return datetime.datetime.fromisoformat(event["timestamp"]).timestamp()


def percentile(times: list[float], percent: int) -> float:
    return times[min(len(times) - 1, len(times) * percent // 100)]
