"""The scrub of cold segments, compared with ``cat`` of the same files, and its cost for producers.

One broker with one directory: single produce requests go to one replica while the closed segments
of another are scrubbed, once practically without a limit and once at the default rate. The page
cache has none of these segments when ``cat`` begins. Reported are the throughput of a whole pass,
and p50 and p99 of the requests with and without the scrub.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kraftjbod.core.config import BrokerConfig
from kraftjbod.local.daemon_process import DaemonProcess
from tests.bench.figures import Report, running_cluster
from tests.bench.storage.moves import Produces, after, at, fill, percentile
from tests.integration.cluster import Cluster

_COLD_BYTES: Final = 1_000_000_000
_COLD_BYTES_AT_DEFAULT_RATE: Final = 200_000_000
_SEGMENT_BYTES: Final = 16 * 1024 * 1024
_UNLIMITED: Final = 1 << 40
_QUIET_S: Final = 5.0
_PASSES: Final = 3


def cold_segments(report: Report) -> None:
    default_rate = BrokerConfig.model_fields["log_dir_scrub_max_bytes_per_second"].default
    _at_rate(report, _UNLIMITED, _COLD_BYTES, "without a limit")
    _at_rate(report, default_rate, _COLD_BYTES_AT_DEFAULT_RATE, "at the default rate")


def _at_rate(report: Report, rate: int, cold_bytes: int, how: str) -> None:
    config = {
        "log.dir.scrub.interval.ms": "1000",
        "log.dir.scrub.max.bytes.per.second": str(rate),
        # The scrub would pause because of other load of this machine's disk.
        "log.dir.slow.min.ms": "10000",
    }
    with running_cluster(brokers=1, dirs=1, config=config) as local:
        cluster, broker = Cluster(local), local.brokers[1]
        cluster.create_topic("elsewhere")
        cluster.create_topic("moved", segment_bytes=_SEGMENT_BYTES)
        with socket.create_connection((broker.files.host, broker.files.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            produces = Produces(connection)
            produces.until(after(1.0))
            quiet = produces.until(after(_QUIET_S))
            fill(local, "moved", cold_bytes)
            os.sync()
            files = sorted((broker.files.log_dirs[0] / "moved-0").glob("*.log"))[:-1]
            if rate == _UNLIMITED:
                _report_speed(report, broker, files)
            scrubbing = produces.until(_passes(broker, 1 if rate < _UNLIMITED else _PASSES))
        for percent in (50, 99):
            still, busy = percentile(quiet, percent), percentile(scrubbing, percent)
            report.add(
                f"1 KB produce to a directory that is scrubbed {how}, p{percent}",
                busy,
                "us",
                beside=f"without the scrub {still:.0f} us",
                how=f"{busy / still:.2f} of it; {len(scrubbing):,} produces",
            )


def _report_speed(report: Report, broker: DaemonProcess, files: list[Path]) -> None:
    size_bytes = sum(path.stat().st_size for path in files)
    _wait(_passes(broker, _PASSES))
    began = [at(event) for event in broker.events("log_scrub_began")]
    ended = [at(event) for event in broker.events("log_scrub_completed")]
    seconds = sorted(end - begin for begin, end in zip(began, ended, strict=False))
    # Earlier passes found less to read.
    seconds = seconds[-_PASSES:]
    cat = sorted(_cat(files) for _ in range(_PASSES))
    speed, beside = size_bytes / seconds[_PASSES // 2] / 1e6, size_bytes / cat[_PASSES // 2] / 1e6
    report.add(
        f"scrub of {size_bytes / 1e9:.1f} GB of cold segments",
        speed,
        "MB/s",
        beside=f"cat {beside:,.0f} MB/s",
        how=f"{speed / beside:.2f} of cat; the middle one of {_PASSES}",
    )


def _passes(broker: DaemonProcess, count: int) -> Callable[[], bool]:
    """Return a condition: ``count`` passes began and ended after this call."""
    begun, ended = len(broker.events("log_scrub_began")), [0]
    looked_at = [0.0]

    def are_over() -> bool:
        # Reading all events takes longer than a produce.
        if time.monotonic() - looked_at[0] > 0.2:
            looked_at[0] = time.monotonic()
            ended[0] = len(broker.events("log_scrub_completed"))
        return ended[0] >= begun + count

    return are_over


def _wait(is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_over():
        assert time.monotonic() < deadline, "the scrub never came to its end"
        time.sleep(0.05)


def _cat(files: list[Path]) -> float:
    """Return the seconds of a ``cat`` of the files from the disk to /dev/null."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    started = time.perf_counter()
    with open(os.devnull, "wb") as nowhere:
        subprocess.run(["cat", *map(str, files)], check=True, stdout=nowhere)
    return time.perf_counter() - started
