"""PURE. Counters and output of ``kraftjbod-producer-perf-test``: Kafka's lines, by its rules.

Latencies are whole milliseconds. Of more than :data:`SAMPLES` records, only the latency of every
n-th is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SAMPLES: Final = 500_000
_PERCENTILES: Final = (0.5, 0.95, 0.99, 0.999)
_MB: Final = 1024.0 * 1024.0


class ProducerFigures:
    """Counts acknowledged records and their latencies, and formats the output of a run.

    :param records: number of records of the run; percentiles of a long run use a sample.
    :param interval_ms: time between two lines of output.
    :param now_ms: start of the run. All times are milliseconds of one clock.
    :param is_steady: whether the figures are those of the steady part, after the warm-up.
    """

    def __init__(
        self, records: int, *, interval_ms: int, now_ms: int, is_steady: bool = False
    ) -> None:
        self._start_ms = now_ms
        self._interval_ms = interval_ms
        self._is_steady = is_steady
        self._keep_each = records // min(records, SAMPLES)
        self._latencies: list[int] = []
        self._bytes = 0
        self._total_latency_ms = 0
        self._max_latency_ms = 0
        #: Whether to print no more lines of intervals.
        self.is_quiet = False
        self.count = 0
        self._window_start_ms = now_ms
        self._window_count = 0
        self._window_bytes = 0
        self._window_latency_ms = 0
        self._window_max_ms = 0

    def record(self, latency_ms: int, size_bytes: int, now_ms: int) -> Sequence[str]:
        """Count an acknowledged record, and return the lines to print now.

        :param latency_ms: time from sending to the acknowledgement.
        """
        if self.count % self._keep_each == 0:
            self._latencies.append(latency_ms)
        self.count += 1
        self._bytes += size_bytes
        self._total_latency_ms += latency_ms
        self._max_latency_ms = max(self._max_latency_ms, latency_ms)
        self._window_count += 1
        self._window_bytes += size_bytes
        self._window_latency_ms += latency_ms
        self._window_max_ms = max(self._window_max_ms, latency_ms)
        if now_ms - self._window_start_ms < self._interval_ms:
            return ()
        lines = []
        if self._is_steady and self.count == self._window_count:
            lines.append("In steady state.")
        if not self.is_quiet:
            lines.append(self._window(now_ms))
        self._new_window(now_ms)
        return lines

    def _new_window(self, now_ms: int) -> None:
        self._window_start_ms = now_ms
        self._window_count = 0
        self._window_bytes = 0
        self._window_latency_ms = 0
        self._window_max_ms = 0

    def _window(self, now_ms: int) -> str:
        elapsed_ms = now_ms - self._window_start_ms
        rate = java_ratio(1000.0 * self._window_count, elapsed_ms)
        mb_rate = java_ratio(1000.0 * self._window_bytes / _MB, elapsed_ms)
        mean_ms = java_ratio(self._window_latency_ms, self._window_count)
        return (
            f"{self._window_count} records sent, {java_float(rate, 1)} records/sec "
            f"({java_float(mb_rate, 2)} MB/sec), {java_float(mean_ms, 1)} ms avg latency, "
            f"{self._window_max_ms:.1f} ms max latency."
        )

    def total(self, now_ms: int) -> str:
        """Return the last line of a run that ends at ``now_ms``: totals, rates and percentiles of
        latencies."""
        elapsed_ms = now_ms - self._start_ms
        rate = java_ratio(1000.0 * self.count, elapsed_ms)
        mb_rate = java_ratio(1000.0 * self._bytes / _MB, elapsed_ms)
        mean_ms = java_ratio(self._total_latency_ms, self.count)
        median, p95, p99, p999 = self._percentiles()
        steady = " steady state" if self._is_steady else ""
        return (
            f"{self.count}{steady} records sent, {java_float(rate, 6)} records/sec "
            f"({java_float(mb_rate, 2)} MB/sec), {java_float(mean_ms, 2)} ms avg latency, "
            f"{self._max_latency_ms:.2f} ms max latency, {median} ms 50th, {p95} ms 95th, "
            f"{p99} ms 99th, {p999} ms 99.9th."
        )

    def _percentiles(self) -> list[int]:
        ordered = sorted(self._latencies) or [0]
        return [ordered[int(share * len(ordered))] for share in _PERCENTILES]


def java_ratio(amount: float, of: float) -> float:
    """Return the quotient by the rules of Java's doubles: infinity or NaN if ``of`` is 0."""
    if of:
        return amount / of
    return float("inf") if amount else float("nan")


def java_float(value: float, digits: int) -> str:
    """Return ``value`` in the format of Java's ``%.nf`` with n ``digits``."""
    if value != value:
        return "NaN"
    return "Infinity" if value == float("inf") else f"{value:.{digits}f}"
