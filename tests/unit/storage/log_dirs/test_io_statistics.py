"""``IoStatistics``: latency buckets, counters, and the average used to find slow directories."""

from __future__ import annotations

import pytest

from kraftjbod.storage.log_dirs.io_statistics import BUCKETS, GROUPS, IoGroup, IoStatistics
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind


@pytest.mark.parametrize(
    ("elapsed_ms", "bucket"),
    [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (16_384, 15), (32_767, 15), (32_768, 16), (10**9, 16)],
)
def test_io_statistics_buckets_are_powers_of_two(elapsed_ms: int, bucket: int) -> None:
    statistics = IoStatistics()
    statistics.record(IoGroup.READ, elapsed_ms, 0, is_error=False)
    assert statistics.figures_of(IoGroup.READ).buckets == [int(i == bucket) for i in range(BUCKETS)]


def test_io_statistics_counts_by_group() -> None:
    statistics = IoStatistics()
    statistics.record(IoGroup.WRITE, 3, 100, is_error=False)
    statistics.record(IoGroup.WRITE, 5, 10, is_error=True)
    written = statistics.figures_of(IoGroup.WRITE)
    assert (written.operations, written.errors, written.size_bytes, written.total_ms) == (
        2,
        1,
        110,
        8,
    )
    assert statistics.figures_of(IoGroup.READ).operations == 0


def test_io_groups_cover_each_operation_kind() -> None:
    assert GROUPS.keys() == set(OpKind)
    assert GROUPS[OpKind.APPEND] is IoGroup.WRITE
    assert GROUPS[OpKind.CHECKPOINT] is IoGroup.OTHER


def test_io_statistics_latency_averages_writes_flushes_and_probes() -> None:
    statistics = IoStatistics()
    for group in (IoGroup.WRITE, IoGroup.FLUSH, IoGroup.PROBE):
        statistics.record(group, 100, 0, is_error=False)
    statistics.record(IoGroup.READ, 9000, 0, is_error=False)
    statistics.sample(0)
    assert statistics.latency_ms == pytest.approx(20)
    statistics.sample(0)
    assert statistics.latency_ms == pytest.approx(20), "a quiet check says nothing"
    for _ in range(50):
        statistics.record(IoGroup.WRITE, 100, 0, is_error=False)
        statistics.sample(0)
    assert statistics.latency_ms == pytest.approx(100, rel=0.01)


def test_io_statistics_latency_includes_a_running_operation() -> None:
    statistics = IoStatistics()
    statistics.sample(500)
    statistics.sample(1000)
    assert statistics.latency_ms == pytest.approx(280)
