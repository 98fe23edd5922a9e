"""``log_dir_sample``: the fields of a directory's sample in each state."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from kraftjbod.broker.telemetry.storage_telemetry_samples import LogDirContents, log_dir_sample
from kraftjbod.core.ids import DirectoryId
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.protocol.telemetry.storage_telemetry import LogDirSample, Origin, encode
from kraftjbod.storage.log_dirs.io_statistics import IoGroup, IoStatistics
from kraftjbod.storage.vfs import Space

ORIGIN = Origin(cluster_id="c", broker_id=7, rack="r1", incarnation="i", time_ms=5)


@dataclass
class Facts:
    """A directory with statistics."""

    state: LogDirState = LogDirState.ONLINE
    path: str = "/d1"
    directory_id: DirectoryId = DirectoryId(b"d" * 16)  # noqa: RUF009 - it is immutable
    is_cordoned: bool = True
    since_wall_ms: int = 1_000
    space: Space = field(
        default_factory=lambda: Space(total_bytes=1_000, usable_bytes=300, free_inodes=9)
    )
    statistics: IoStatistics = field(default_factory=IoStatistics)


def sample(facts: Facts) -> LogDirSample:
    statistics = facts.statistics
    statistics.record(IoGroup.WRITE, 0, 100, is_error=False)
    statistics.record(IoGroup.WRITE, 1, 100, is_error=True)
    statistics.record(IoGroup.READ, 3, 0, is_error=False)
    statistics.record(IoGroup.PROBE, 1 << 40, 0, is_error=False)
    statistics.appended_bytes, statistics.fetched_bytes = 77, 88
    contents = LogDirContents(
        replica_bytes=500, replicas=4, moves_in=1, moves_out=2, moves_remaining_bytes=9
    )
    return log_dir_sample(
        facts,
        contents,
        growth_bytes_per_s=-12.345,
        log_growth_bytes_per_s=4.56,
        latency_ms=1.23456,
        is_slow=True,
        queued_assignments=6,
    )


@pytest.mark.parametrize("state", [LogDirState.ONLINE, LogDirState.SATURATED, LogDirState.STALLED])
def test_log_dir_sample_of_an_online_or_impaired_directory_has_all_fields(
    state: LogDirState,
) -> None:
    printed = json.loads(encode(ORIGIN, sample(Facts(state=state))))
    bounds = [1 << bucket for bucket in range(16)]
    assert printed == {
        "schema": 1,
        "kind": "log_dir",
        "cluster_id": "c",
        "broker_id": 7,
        "rack": "r1",
        "incarnation": "i",
        "time_ms": 5,
        "directory_id": "ZGRkZGRkZGRkZGRkZGRkZA",
        "path": "/d1",
        "state": state.value,
        "is_cordoned": True,
        "since_ms": 1_000,
        "total_bytes": 1_000,
        "free_bytes": 300,
        "replica_bytes": 500,
        "replicas": 4,
        "growth_bytes_per_s": -12.3,
        "log_growth_bytes_per_s": 4.6,
        "appended_bytes_total": 77,
        "fetched_bytes_total": 88,
        "io_total": 4,
        "io_errors_total": 1,
        "io_bounds_ms": bounds,
        # Below 1 ms, 2 ms and 4 ms, and above all bounds.
        "io_counts": [1, 1, 1, *[0] * 13, 1],
        "latency_ms": 1.235,
        "is_slow": True,
        "queued_assignments": 6,
        "moves_in": 1,
        "moves_out": 2,
        "moves_remaining_bytes": 9,
    }
    assert len(printed["io_counts"]) == len(bounds) + 1


def test_log_dir_sample_of_an_offline_directory_has_no_sizes_or_operations() -> None:
    assert sample(Facts(state=LogDirState.OFFLINE)) == LogDirSample(
        directory_id="ZGRkZGRkZGRkZGRkZGRkZA",
        path="/d1",
        state="offline",
        is_cordoned=True,
        since_ms=1_000,
        queued_assignments=6,
    )
