"""PURE. ``IoStatistics``: counters and latency buckets of one log directory's operations.

* Durations are the time in the directory's threads, without the time in the queue.
* Buckets are powers of two: [0] below 1 ms, [1] below 2 ms, [2] below 4 ms and so on. The last one
  has no upper limit.
* ``latency_ms`` is used to compare directories. It is the moving average of writes, flushes and
  probes over the last few checks, the running operation included. Without load, only probes count.

``slow_dirs.py`` judges the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from kraftjbod.storage.log_dirs.log_dir_policy import OpKind

#: The last bucket starts at 2 ** 15 ms.
BUCKETS: Final = 17
#: Weight of the newest check in ``latency_ms``.
_NEWEST: Final = 0.2


class IoGroup(IntEnum):
    """Kinds of disk operations that are counted together. WRITE counts appends, PROBE disk checks,
    and OTHER all remaining operations, such as renames and removals.
    """

    READ = 0
    WRITE = 1
    FLUSH = 2
    PROBE = 3
    OTHER = 4


#: Every kind that is not named here belongs to OTHER.
GROUPS: Final[Mapping[OpKind, IoGroup]] = {
    kind: {
        OpKind.READ: IoGroup.READ,
        OpKind.APPEND: IoGroup.WRITE,
        OpKind.FLUSH: IoGroup.FLUSH,
        OpKind.PROBE: IoGroup.PROBE,
    }.get(kind, IoGroup.OTHER)
    for kind in OpKind
}

_COMPARED: Final = (IoGroup.WRITE, IoGroup.FLUSH, IoGroup.PROBE)


@dataclass(slots=True)
class IoFigures:
    """Counters of one group since the directory was opened.

    ``size_bytes`` counts the memory of the operations, which only appends declare.
    """

    operations: int = 0
    errors: int = 0
    size_bytes: int = 0
    total_ms: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * BUCKETS)


class IoStatistics:
    """Counters and latency buckets of one log directory's operations, and the average latency of
    its writes, flushes and probes. Every disk check calls :meth:`sample`, which updates the
    average.
    """

    def __init__(self) -> None:
        self._figures = [IoFigures() for _ in IoGroup]
        #: Bytes of records appended and fetched, from memory or disk. The callers count them.
        self.appended_bytes = 0
        self.fetched_bytes = 0
        #: Average latency in milliseconds; 0 before the first operation.
        self.latency_ms = 0.0
        self._seen_operations = 0
        self._seen_ms = 0

    def figures_of(self, group: IoGroup) -> IoFigures:
        return self._figures[group]

    def record(self, group: IoGroup, elapsed_ms: int, size_bytes: int, *, is_error: bool) -> None:
        """Count an operation that has ended.

        :param elapsed_ms: its time in the thread.
        """
        figures = self._figures[group]
        figures.operations += 1
        figures.errors += is_error
        figures.size_bytes += size_bytes
        figures.total_ms += elapsed_ms
        figures.buckets[min(elapsed_ms.bit_length(), BUCKETS - 1)] += 1

    def sample(self, running_ms: int) -> None:
        """Update ``latency_ms`` with the writes, flushes and probes that ended since the last
        sample, and with the running operation.

        :param running_ms: how long the running operation has been running; 0 if none is.
        """
        operations = sum(self._figures[group].operations for group in _COMPARED)
        total_ms = sum(self._figures[group].total_ms for group in _COMPARED)
        ended, spent_ms = operations - self._seen_operations, total_ms - self._seen_ms
        self._seen_operations, self._seen_ms = operations, total_ms
        if running_ms:
            ended, spent_ms = ended + 1, spent_ms + running_ms
        if ended:
            self.latency_ms += _NEWEST * (spent_ms / ended - self.latency_ms)
