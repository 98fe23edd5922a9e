"""PURE. ``SlowDirs``: finds the slow log directories of one broker.

* A directory is *suspicious* at a check if its average latency reaches two limits:
  ``log.dir.slow.factor`` times the median of the broker's other directories, and
  ``log.dir.slow.min.ms``. A single directory is compared with the factor times this minimum,
  because no other disk shows the usual latency of the machine.
* :data:`CHECKS_TO_SLOW` suspicious checks in a row make a directory slow. :data:`CHECKS_TO_FAST`
  good checks in a row end that. Single slow operations and short quiet times have no effect.
* With ``log.dir.slow.action=demote`` a slow directory is demoted, so that other replicas lead. Only
  one directory of a broker is demoted at a time, and only if another one is healthy and not slow.
  Further slow directories wait until the demotion ends.
* A directory that is missing in a check is removed from the state: it is OFFLINE or gone.

``broker/directories/log_dir_monitor.py`` measures the latencies and carries out the actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from kraftjbod.core.ids import DirectoryId

CHECKS_TO_SLOW: Final = 5
CHECKS_TO_FAST: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DirLatency:
    """Average latency of one directory's writes, flushes and probes, in ms.

    ``is_healthy``: the directory accepts operations of every kind.
    """

    directory_id: DirectoryId
    latency_ms: float
    is_healthy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BecameSlow:
    """Action: report that the directory became slow, because its latency reached ``limit_ms``."""

    directory_id: DirectoryId
    latency_ms: float
    limit_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BecameFast:
    """Action: report that the directory is not slow any more."""

    directory_id: DirectoryId
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Demote:
    """Action: treat the directory as stalled (:meth:`LogDir.suspect`)."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Action: end the demotion of the directory (:meth:`LogDir.absolve`)."""

    directory_id: DirectoryId


Action = BecameSlow | BecameFast | Demote | GiveBack


class SlowDirs:
    """Compares the latencies of a broker's log directories at each check, and remembers which are
    slow and which one is demoted.
    """

    def __init__(self, *, factor: float, min_ms: float, may_demote: bool) -> None:
        assert factor > 1, factor
        self._factor = factor
        self._min_ms = min_ms
        self._may_demote = may_demote
        #: Checks in a row that contradict the present classification of the directory.
        self._against: dict[DirectoryId, int] = {}
        self._slow: dict[DirectoryId, None] = {}
        self._demoted: DirectoryId | None = None

    def __repr__(self) -> str:
        return f"<SlowDirs slow={list(map(str, self._slow))} demoted={self._demoted}>"

    def is_slow(self, directory_id: DirectoryId) -> bool:
        return directory_id in self._slow

    @property
    def demoted(self) -> DirectoryId | None:
        """The directory that is demoted because it is slow, or None."""
        return self._demoted

    def check(self, latencies: Sequence[DirLatency]) -> list[Action]:
        """Process one latency of each directory that is not OFFLINE.

        Return the actions, in order.
        """
        self._forget_all_but({one.directory_id for one in latencies})
        actions: list[Action] = []
        for one in latencies:
            others = [other.latency_ms for other in latencies if other is not one]
            actions += self._judge(one, self._limit_ms(others))
        return [*actions, *self._demote(latencies)]

    def _forget_all_but(self, present: set[DirectoryId]) -> None:
        for directory_id in (self._slow.keys() | self._against.keys()) - present:
            self._slow.pop(directory_id, None)
            self._against.pop(directory_id, None)
        if self._demoted not in present:
            self._demoted = None

    def _limit_ms(self, others: Sequence[float]) -> float:
        usual_ms = median(others) if others else self._min_ms
        return max(self._min_ms, self._factor * usual_ms)

    def _judge(self, one: DirLatency, limit_ms: float) -> list[Action]:
        directory_id = one.directory_id
        is_slow = directory_id in self._slow
        if (one.latency_ms >= limit_ms) is is_slow:
            self._against[directory_id] = 0
            return []
        self._against[directory_id] = self._against.get(directory_id, 0) + 1
        if self._against[directory_id] < (CHECKS_TO_FAST if is_slow else CHECKS_TO_SLOW):
            return []
        self._against[directory_id] = 0
        if not is_slow:
            self._slow[directory_id] = None
            return [
                BecameSlow(directory_id=directory_id, latency_ms=one.latency_ms, limit_ms=limit_ms)
            ]
        del self._slow[directory_id]
        actions: list[Action] = [BecameFast(directory_id=directory_id, latency_ms=one.latency_ms)]
        if self._demoted == directory_id:
            self._demoted = None
            actions.append(GiveBack(directory_id))
        return actions

    def _demote(self, latencies: Sequence[DirLatency]) -> list[Action]:
        if not self._may_demote or self._demoted is not None:
            return []
        healthy = [one.directory_id for one in latencies if one.is_healthy]
        if all(map(self.is_slow, healthy)):
            return []
        slow = [directory_id for directory_id in self._slow if directory_id in healthy]
        if not slow:
            return []
        self._demoted = slow[0]
        return [Demote(slow[0])]
