"""PURE. ``IoStatistics``: what the operations of one log dir cost, in counters and fixed buckets.

* Durations are what the dir's threads spent on an operation, not what it waited before.
* Buckets are powers of two: [0] under 1 ms, [1] under 2 ms, [2] under 4 ms and so on; the last one
  has no upper end.
* ``latency_ms`` is the figure to compare dirs by: writes, flushes and probes, averaged over the
  last few checks, the operation that is still running included. A dir without load is measured by
  its probes.

It only counts; ``storage/log_dirs/slow_dirs.py`` judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from kraftjbod.storage.log_dirs.log_dir_policy import OpKind

#: The last bucket begins at 2 ** 15 ms.
BUCKETS: Final = 17
#: Weight of the newest check in ``latency_ms``.
_NEWEST: Final = 0.2


class IoGroup(IntEnum):
    """Kinds of operations whose figures are kept together."""

    READ = 0
    WRITE = 1
    FLUSH = 2
    PROBE = 3
    OTHER = 4


#: Whatever is not named is OTHER.
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
    """One group since the dir was opened. ``size_bytes`` counts what was announced: appends."""

    operations: int = 0
    errors: int = 0
    size_bytes: int = 0
    total_ms: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * BUCKETS)


class IoStatistics:
    """Filled as operations end; :meth:`sample` once per check."""

    def __init__(self) -> None:
        self._figures = [IoFigures() for _ in IoGroup]
        #: Records that were appended, and that were given out, from memory or disk; counted by
        #: who does that.
        self.appended_bytes = 0
        self.fetched_bytes = 0
        #: Milliseconds; 0 before the first operation.
        self.latency_ms = 0.0
        self._seen_operations = 0
        self._seen_ms = 0

    def of(self, group: IoGroup) -> IoFigures:
        return self._figures[group]

    def record(self, group: IoGroup, elapsed_ms: int, size_bytes: int, *, is_error: bool) -> None:
        """One operation has ended."""
        figures = self._figures[group]
        figures.operations += 1
        figures.errors += is_error
        figures.size_bytes += size_bytes
        figures.total_ms += elapsed_ms
        figures.buckets[min(elapsed_ms.bit_length(), BUCKETS - 1)] += 1

    def sample(self, running_ms: int) -> None:
        """Fold what ended since the last sample into ``latency_ms``, and what has not ended yet.

        ``running_ms`` is how long the operation in the thread has been running; 0 if none is.
        """
        operations = sum(self._figures[group].operations for group in _COMPARED)
        total_ms = sum(self._figures[group].total_ms for group in _COMPARED)
        ended, spent_ms = operations - self._seen_operations, total_ms - self._seen_ms
        self._seen_operations, self._seen_ms = operations, total_ms
        if running_ms:
            ended, spent_ms = ended + 1, spent_ms + running_ms
        if ended:
            self.latency_ms += _NEWEST * (spent_ms / ended - self.latency_ms)
