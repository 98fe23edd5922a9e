"""PURE. Samples of storage telemetry from plain values, depending on the directory's state.

For an offline directory only this state is reported; earlier counters do not apply after its
return. Buckets are those of ``storage/log_dirs/io_statistics.py``, for all operations together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from kraftjbod.core.ids import DirectoryId
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.protocol.telemetry.storage_telemetry import LogDirSample
from kraftjbod.storage.log_dirs.free_space_policy import SpaceOnDisk
from kraftjbod.storage.log_dirs.io_statistics import BUCKETS, IoGroup, IoStatistics

#: Upper bounds of all buckets but the last, which has none.
IO_BOUNDS_MS: Final = tuple(1 << bucket for bucket in range(BUCKETS - 1))


class LogDirFacts(Protocol):
    """The attributes of a directory that its sample is made from."""

    @property
    def path(self) -> str: ...

    @property
    def directory_id(self) -> DirectoryId: ...

    @property
    def state(self) -> LogDirState: ...

    @property
    def is_cordoned(self) -> bool: ...

    @property
    def since_wall_ms(self) -> int: ...

    @property
    def space(self) -> SpaceOnDisk: ...

    @property
    def statistics(self) -> IoStatistics: ...


@dataclass(slots=True)
class LogDirContents:
    """Sums over the replicas in one directory and over the moves from and to it."""

    replica_bytes: int = 0
    replicas: int = 0
    moves_in: int = 0
    moves_out: int = 0
    moves_remaining_bytes: int = 0


def log_dir_sample(
    facts: LogDirFacts,
    contents: LogDirContents,
    *,
    growth_bytes_per_s: float,
    log_growth_bytes_per_s: float,
    latency_ms: float,
    is_slow: bool,
    queued_assignments: int,
) -> LogDirSample:
    """Return the sample of one directory. For an offline one, it has little more than the state."""
    if facts.state is LogDirState.OFFLINE:
        return _offline_sample(facts, queued_assignments)
    statistics = facts.statistics
    groups = [statistics.figures_of(group) for group in IoGroup]
    return LogDirSample(
        directory_id=str(facts.directory_id),
        path=facts.path,
        state=facts.state.value,
        is_cordoned=facts.is_cordoned,
        since_ms=facts.since_wall_ms,
        total_bytes=facts.space.total_bytes,
        free_bytes=facts.space.usable_bytes,
        replica_bytes=contents.replica_bytes,
        replicas=contents.replicas,
        growth_bytes_per_s=round(growth_bytes_per_s, 1),
        log_growth_bytes_per_s=round(log_growth_bytes_per_s, 1),
        appended_bytes_total=statistics.appended_bytes,
        fetched_bytes_total=statistics.fetched_bytes,
        io_total=sum(figures.operations for figures in groups),
        io_errors_total=sum(figures.errors for figures in groups),
        io_bounds_ms=IO_BOUNDS_MS,
        io_counts=tuple(map(sum, zip(*(figures.buckets for figures in groups), strict=True))),
        latency_ms=round(latency_ms, 3),
        is_slow=is_slow,
        queued_assignments=queued_assignments,
        moves_in=contents.moves_in,
        moves_out=contents.moves_out,
        moves_remaining_bytes=contents.moves_remaining_bytes,
    )


def _offline_sample(facts: LogDirFacts, queued_assignments: int) -> LogDirSample:
    return LogDirSample(
        directory_id=str(facts.directory_id),
        path=facts.path,
        state=facts.state.value,
        is_cordoned=facts.is_cordoned,
        since_ms=facts.since_wall_ms,
        queued_assignments=queued_assignments,
    )
