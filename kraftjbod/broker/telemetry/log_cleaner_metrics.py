"""LOOP. Figures of log compaction, by the names that they have in Kafka's LogCleaner.

Per directory: how many replicas cannot be cleaned, and how many bytes they have. Such a replica is
left alone until it is truncated or made anew, or the broker restarts. Of the whole broker: how
dirty the dirtiest log was at the last look, and how much of what passes read they wrote again,
both in percent.
"""

from __future__ import annotations

from collections.abc import Iterator

from kraftjbod.core.telemetry import Metrics
from kraftjbod.storage.manager.log_manager import LogManager


def register_cleaner_figures(logs: LogManager, metrics: Metrics) -> None:
    """Read when the figures are asked for; directories may come and go."""
    metrics.gauge("max-dirty-percent", lambda: logs.cleaner.max_dirty_percent)
    metrics.gauge("cleaner-recopy-percent", lambda: logs.cleaner.recopy_percent)
    metrics.gauges(lambda: dict(_uncleanable(logs)))


def _uncleanable(logs: LogManager) -> Iterator[tuple[str, float]]:
    for log_dir in logs.dirs():
        handles, tag = logs.cleaner.uncleanable_in(log_dir), f'logDirectory="{log_dir.path}"'
        yield f"uncleanable-partitions-count,{tag}", len(handles)
        yield f"uncleanable-bytes,{tag}", sum(handle.size_bytes for handle in handles)
