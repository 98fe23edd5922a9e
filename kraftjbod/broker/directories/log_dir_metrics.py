"""LOOP. ``LogDirMetrics``: all metrics of this broker's log directories.

Names are Kafka's where Kafka has one (``LogDirectoryOffline,logDirectory="/d1"``: a name and a tag,
as in Kafka's MBeans), and similar otherwise. Sizes are in bytes and times in milliseconds. Counters
start at 0 when the directory is opened. A bucket of a latency histogram counts operations that
took less than ``le`` milliseconds, including all lower buckets.

Values are computed on request, so they cover the directories that exist then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import accumulate

from kraftjbod.broker.directories.log_dir_monitor import LogDirMonitor
from kraftjbod.broker.directories.scrubs import Scrubs
from kraftjbod.core.ids import DirectoryId
from kraftjbod.core.log_dir_state import IMPAIRED, LogDirState
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import Metrics
from kraftjbod.storage.log_dirs.io_statistics import BUCKETS, IoGroup
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager

Figures = Iterator[tuple[str, float]]


class LogDirMetrics:
    """Registers and computes the metrics of the log directories.

    ``unacknowledged`` returns the failed directories that the controller does not know yet.
    """

    def __init__(
        self,
        *,
        logs: LogManager,
        monitor: LogDirMonitor,
        scrubs: Scrubs,
        unacknowledged: Callable[[], Collection[DirectoryId]],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._logs = logs
        self._monitor = monitor
        self._scrubs = scrubs
        self._unacknowledged = unacknowledged
        self._clock = clock
        #: Time in milliseconds at which each failure was first seen to be unacknowledged.
        self._failed_since_ms: dict[DirectoryId, int] = {}
        metrics.gauge("ImpairedLogDirectoryCount", lambda: self._count(*IMPAIRED))
        metrics.gauge("SaturatedLogDirectoryCount", lambda: self._count(LogDirState.SATURATED))
        metrics.gauge("StalledLogDirectoryCount", lambda: self._count(LogDirState.STALLED))
        metrics.gauge(
            "SlowLogDirectoryCount", lambda: sum(map(monitor.is_slow, logs.online_dirs()))
        )
        metrics.gauge("LogIndexCacheBytes", lambda: logs.index_cache_bytes)
        metrics.gauge("OpenLogSegmentCount", lambda: logs.open_segments)
        metrics.gauge("OldestUnacknowledgedLogDirectoryFailureMs", self._oldest_failure_ms)
        metrics.gauges(lambda: dict(self._all()))

    def _count(self, *states: LogDirState) -> int:
        return sum(log_dir.state in states for log_dir in self._logs.dirs())

    def _oldest_failure_ms(self) -> int:
        """Return for how many milliseconds the oldest failure has been unacknowledged; 0 if none
        is."""
        now_ms, waiting = self._clock.now_ms(), set(self._unacknowledged())
        for directory_id in self._failed_since_ms.keys() - waiting:
            del self._failed_since_ms[directory_id]
        for directory_id in waiting:
            self._failed_since_ms.setdefault(directory_id, now_ms)
        return max((now_ms - since_ms for since_ms in self._failed_since_ms.values()), default=0)

    def _all(self) -> Figures:
        for log_dir in self._logs.dirs():
            tag = f'logDirectory="{log_dir.path}"'
            for name, value in self._of(log_dir):
                yield f"LogDirectory{name},{tag}", value

    def _of(self, log_dir: LogDir) -> Figures:
        yield "Offline", int(log_dir.state is LogDirState.OFFLINE)
        yield "Saturated", int(log_dir.state is LogDirState.SATURATED)
        yield "Stalled", int(log_dir.state is LogDirState.STALLED)
        yield "Cordoned", int(log_dir.is_cordoned)
        if not log_dir.is_online:
            return  # The other values are outdated.
        space = log_dir.space
        seconds = self._monitor.seconds_until_full(log_dir)
        yield "TotalBytes", space.total_bytes
        yield "UsedBytes", space.total_bytes - space.usable_bytes
        yield "UsableBytes", space.usable_bytes
        yield "FreeInodes", space.free_inodes
        yield "ReserveBytes", log_dir.reserve_bytes
        yield "BackgroundJobFailures", log_dir.jobs.failures
        yield "ReplicaCount", len(self._logs.handles_in(log_dir))
        yield "GrowthBytesPerSecond", self._monitor.growth_bytes_per_second(log_dir)
        yield "DiskGrowthBytesPerSecond", self._monitor.disk_growth_bytes_per_second(log_dir)
        if seconds is not None:
            yield "SecondsUntilFull", seconds
        yield "LatencyMs", self._monitor.latency_ms(log_dir)
        yield "Slow", int(self._monitor.is_slow(log_dir))
        yield from _of_operations(log_dir)
        yield from self._of_scrub(log_dir)

    def _of_scrub(self, log_dir: LogDir) -> Figures:
        scrub = self._scrubs.by_dir.get(log_dir)
        if scrub is None:
            return
        scrub.count_repairs()
        yield "LastScrubMs", scrub.state.completed_ms
        yield "ScrubbedBytes", scrub.figures.bytes
        yield "ScrubbedSegments", scrub.figures.segments
        yield "ScrubPasses", scrub.figures.passes
        yield "ScrubDamagesFound", scrub.figures.damages_found
        yield "ScrubReplicasRepaired", scrub.figures.replicas_repaired
        yield "ScrubIndexesMended", scrub.figures.indexes_mended


def _of_operations(log_dir: LogDir) -> Figures:
    for group in IoGroup:
        figures, name = log_dir.statistics.figures_of(group), group.name.capitalize()
        yield f"{name}Operations", figures.operations
        yield f"{name}Errors", figures.errors
        yield f"{name}Bytes", figures.size_bytes
        yield f"{name}TimeMs", figures.total_ms
        for bucket, below in enumerate(accumulate(figures.buckets)):
            limit = str(1 << bucket) if bucket < BUCKETS - 1 else "+Inf"
            yield f'{name}LatencyMs,le="{limit}"', below


def register_cleaner_figures(logs: LogManager, metrics: Metrics) -> None:
    """Register the metrics of log compaction, with the names of Kafka's LogCleaner.

    Per directory: the number and size of replicas that cannot be cleaned. Such a replica is not
    cleaned until it is truncated or recreated, or the broker restarts. For the broker: the dirty
    ratio of the dirtiest log at the last pass, and the ratio of written to read bytes, both in
    percent.
    """
    metrics.gauge("max-dirty-percent", lambda: logs.cleaner.max_dirty_percent)
    metrics.gauge("cleaner-recopy-percent", lambda: logs.cleaner.recopy_percent)
    metrics.gauges(lambda: dict(_uncleanable(logs)))


def _uncleanable(logs: LogManager) -> Iterator[tuple[str, float]]:
    for log_dir in logs.dirs():
        handles, tag = logs.cleaner.uncleanable_in(log_dir), f'logDirectory="{log_dir.path}"'
        yield f"uncleanable-partitions-count,{tag}", len(handles)
        yield f"uncleanable-bytes,{tag}", sum(handle.size_bytes for handle in handles)
