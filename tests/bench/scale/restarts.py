"""How long a broker takes to stop and to serve again, by bytes and by replicas.

A broker serves when each of its partitions has taken a record. After ``kill -9`` the active
segment is checked: of a log of N GiB that is 1 GiB.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from tests.bench.figures import Report
from tests.bench.scale.subject import SIZES_GIB, Start, Subject, each_kind

REPLICAS: Final = (100, 1000, 4000, 10_000)


def by_size(report: Report) -> None:
    """A log of 1 to 1,000 GiB in segments of 1 GiB."""
    for start in each_kind(report):
        for size_gib in SIZES_GIB:
            with start() as subject:
                subject.put_log("large", size_gib)
                _measure(report, subject, f"{size_gib:,} GiB", {"large": 1})


def by_replicas(report: Report) -> None:
    """100 to 10,000 replicas with a record each."""
    for start in each_kind(report):
        for replicas in REPLICAS:
            _measure_replicas(report, start, replicas)


def _measure_replicas(report: Report, start: Start, replicas: int) -> None:
    with start() as subject:
        topics = subject.create_many(replicas)
        _measure(report, subject, f"{replicas:,} replicas", topics)


def _measure(report: Report, subject: Subject, size: str, topics: Mapping[str, int]) -> None:
    name = f"{subject.name}, {size}"
    report.add(f"{name}: SIGTERM until it has ended", subject.stop(), "s")
    report.add(f"{name}: started in order until it serves", _started(subject, topics), "s")
    subject.process.kill()
    report.add(f"{name}: started after kill -9 until it serves", _started(subject, topics), "s")


def _started(subject: Subject, topics: Mapping[str, int]) -> float:
    began_s = time.perf_counter()
    subject.process.start()
    subject.wait_served(topics)
    return time.perf_counter() - began_s
