"""Compaction of a log, compared with ``cp`` of the same files, and its cost for producers.

One broker with one directory: a compacted topic gets records of 1,000 bytes (then of 100) with
repeated keys while the cleaner is off. Then the broker restarts with the cleaner, and single
requests go to another replica of the directory. Reported are the bytes read per second, the share
that remained, and p50 and p99 of the requests with and without compaction. Records are parsed in
Python, so that compaction is limited by the processor.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import confluent_kafka

from kraftjbod.local.daemon_process import DaemonProcess
from tests.bench.figures import Report, running_cluster
from tests.bench.storage.moves import Produces, after, percentile
from tests.integration.cluster import Cluster

_TOTAL_BYTES: Final = 200_000_000
_SEGMENT_BYTES: Final = 32 * 1024 * 1024
_KEYS: Final = 20_000
_QUIET_S: Final = 5.0
_POLL_EVERY: Final = 10_000
_CONFIG: Final = {
    "log.cleaner.enable": "false",
    "log.cleaner.backoff.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
}


def whole_log(report: Report) -> None:
    for value_bytes in (1000, 100):
        _of_values(report, value_bytes)


def _of_values(report: Report, value_bytes: int) -> None:
    with running_cluster(brokers=1, dirs=1, config=_CONFIG) as local:
        cluster, broker = Cluster(local), local.brokers[1]
        cluster.create_topic("elsewhere")
        cluster.create_topic("keyed", cleanup_policy="compact", segment_bytes=_SEGMENT_BYTES)
        _fill(local.bootstrap_servers, value_bytes)
        home = broker.files.log_dirs[0] / "keyed-0"
        speed = _cp(sorted(home.glob("*.log"))[:-1], local.run_dir / "cp")
        cluster.stop_daemon(broker)
        path = broker.files.config_path
        path.write_text(path.read_text().replace("cleaner.enable=false", "cleaner.enable=true"))
        cluster.start_daemon(broker)
        cluster.wait_whole("elsewhere")
        with socket.create_connection((broker.files.host, broker.files.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            produces = Produces(connection)
            cleaning = produces.until(_has_cleaned(broker))
            produces.until(after(1.0))
            quiet = produces.until(after(_QUIET_S))
        _report(report, broker, value_bytes, speed)
        for percent in (50, 99):
            still, busy = percentile(quiet, percent), percentile(cleaning, percent)
            report.add(
                f"1 KB produce to the same directory meanwhile, p{percent}",
                busy,
                "us",
                beside=f"without compaction {still:.0f} us",
                how=f"{busy / still:.2f} of it; {len(cleaning):,} produces",
            )


def _report(report: Report, broker: DaemonProcess, value_bytes: int, cp: float) -> None:
    end = broker.events("log_compacted")[0]
    # Each segment is read twice: for its keys, and for its remaining records.
    speed = end["read_bytes"] / 2 / end["took_ms"] / 1000
    left = end["written_bytes"] / (end["read_bytes"] / 2)
    report.add(
        f"compaction of values of {value_bytes} bytes",
        speed,
        "MB/s",
        beside=f"cp {cp:,.0f} MB/s",
        how=f"{speed / cp:.3f} of cp; {left:.2f} is left, {end['keys']:,} keys",
    )


def _fill(bootstrap: str, value_bytes: int) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    noise = os.urandom(value_bytes * 100)
    keys = itertools.cycle([b"key-%08d" % number for number in range(_KEYS)])
    for number in range(_TOTAL_BYTES // (value_bytes + 20)):
        at = number % (len(noise) - value_bytes)
        producer.produce("keyed", key=next(keys), value=noise[at : at + value_bytes], partition=0)
        if number % _POLL_EVERY == 0:
            producer.poll(0.01)
    assert producer.flush(120) == 0


def _cp(files: list[Path], target: Path) -> float:
    """MB/s of ``cp`` of the closed segments."""
    target.mkdir()
    size = sum(path.stat().st_size for path in files)
    started = time.perf_counter()
    subprocess.run(["cp", *map(str, files), str(target)], check=True)
    seconds = time.perf_counter() - started
    shutil.rmtree(target)
    return size / seconds / 1e6


def _has_cleaned(broker: DaemonProcess) -> Callable[[], bool]:
    looks = itertools.count()

    def has_cleaned() -> bool:
        # Reading the growing file of events takes time, so it is not read for each batch.
        return next(looks) % 50 == 0 and len(broker.events("log_compacted")) > 0

    return has_cleaned
