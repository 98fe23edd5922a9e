"""Requests to a log of 1 to 1,000 GiB: ListOffsets, reading all of it, deleting it.

The log is generated (batches of 1 MiB in segments of 1 GiB); see ``tests/faults/large_log.py``.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from tests.bench.broker.latency import percentile
from tests.bench.figures import Report
from tests.bench.scale.subject import (
    PRODUCE_VERSION,
    SIZES_GIB,
    Subject,
    each_kind,
    produce_request,
)
from tests.faults.large_log import MIB, LargeLog
from tests.integration import raw

_MAX_TIMESTAMP: Final = -3
_QUERIES: Final = 50
#: A reader reads one of so many batches, so that it uses each segment but few bytes are sent.
_READ_EVERY: Final = 32
_CALM_S: Final = 5.0
_OTHER: Final = "other"
_CONFIG: Final = {
    # The larger logs exceed default limits of kraftjbod, which Kafka does not have.
    "log.open.segments.max": "64",
    "log.index.cache.bytes": str(MIB),
}


def list_offsets(report: Report) -> None:
    """Measure ListOffsets. The first request is separate, since it reads indexes from the disk."""
    for start in each_kind(report):
        for size_gib in SIZES_GIB:
            with start() as subject:
                shape = subject.put_log("large", size_gib)
                _measure_queries(report, subject, size_gib, shape)


def _measure_queries(report: Report, subject: Subject, size_gib: int, shape: LargeLog) -> None:
    draw = random.Random(size_gib)

    def by_time() -> None:
        offset = draw.randrange(shape.end_offset)
        assert subject.list_offset("large", shape.first_timestamp + offset) == offset

    def maximum() -> None:
        assert subject.list_offset("large", _MAX_TIMESTAMP) >= shape.end_offset

    for what, query in (("by time", by_time), ("max timestamp", maximum)):
        name = f"{subject.name}, {size_gib:,} GiB: ListOffsets {what}"
        report.add(f"{name}, the first", _seconds(query) * 1e3, "ms")
        times = [_seconds(query) for _ in range(_QUERIES)]
        report.add(f"{name}, median", statistics.median(times) * 1e3, "ms", how=f"{_QUERIES}")


def _seconds(query: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    query()
    return time.perf_counter() - began_s


def read_from_the_beginning(report: Report) -> None:
    """Measure memory and descriptors after a reader has read from each segment."""
    for start in each_kind(report):
        for size_gib in SIZES_GIB:
            with start(_CONFIG) as subject:
                _read(report, subject, size_gib)


def _read(report: Report, subject: Subject, size_gib: int) -> None:
    shape = subject.put_log("large", size_gib)
    rss_kb, files = subject.rss_kb(), subject.descriptors()
    for offset in range(0, shape.end_offset, _READ_EVERY):
        assert subject.fetch("large", offset, MIB) > 0
    name = f"{subject.name}, {size_gib:,} GiB read"
    how = f"a batch of every {_READ_EVERY}"
    report.add(f"{name}: memory grew by", (subject.rss_kb() - rss_kb) / 1e3, "MB", how=how)
    report.add(f"{name}: descriptors grew by", subject.descriptors() - files, "", how=how)


def delete_topic(report: Report) -> None:
    """Latency of produce requests to another topic before and while a large topic is deleted."""
    for start in each_kind(report):
        for size_gib in SIZES_GIB:
            with start() as subject:
                _delete(report, subject, size_gib)


def _delete(report: Report, subject: Subject, size_gib: int) -> None:
    subject.put_log("large", size_gib)
    subject.create_topic(_OTHER)
    before = _produce_until(subject, _for_seconds(_CALM_S))
    subject.delete_topic("large")
    during = _produce_until(subject, lambda: not _lies_there(subject))
    name = f"{subject.name}, {size_gib:,} GiB deleted: produce to another topic"
    for percent in (50, 99):
        beside = f"before: {percentile(before, percent) * 1e6:,.0f} us"
        value = percentile(during, percent) * 1e6
        report.add(f"{name}, p{percent}", value, "us", beside=beside, how=f"{len(during):,}")
    report.add(f"{name}, longest", during[-1] * 1e3, "ms", beside=f"{before[-1] * 1e3:,.1f} ms")


def _for_seconds(seconds: float) -> Callable[[], bool]:
    ends_s = time.monotonic() + seconds
    return lambda: time.monotonic() > ends_s


def _lies_there(subject: Subject) -> bool:
    return any(found for path in subject.log_dirs for found in path.glob("large-0*"))


def _produce_until(subject: Subject, is_over: Callable[[], bool]) -> list[float]:
    """Seconds of each request of one connection until ``is_over`` is true, sorted."""
    request = produce_request(_OTHER, [0])
    times = []
    with closing(raw.connected(subject.address)) as connection:
        while not is_over():
            began_s = time.perf_counter()
            answer = raw.exchange_on(connection, request, PRODUCE_VERSION)
            times.append(time.perf_counter() - began_s)
            assert answer.responses[0].partition_responses[0].error_code == 0, answer
    return sorted(times)
