"""PURE. ``SpaceTrend``: how fast a log directory or its disk fills. ``WarningMark``: when to warn.

* Growth is a moving average over some minutes, which smooths retention runs and bursts of writes.
  Negative growth means that the directory shrinks.
* A warning is given once per crossing of the mark. The free space must then rise
  :data:`HYSTERESIS_PERCENT` above the mark before the next warning.

The disk may hold other data than the log directory, so each has its own trend. The time until the
disk is full follows the faster one.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

#: Time constant of the average: after it, a lasting change counts by about two thirds.
GROWTH_WINDOW_MS: Final = 180_000
HYSTERESIS_PERCENT: Final = 1


class SpaceTrend:
    """Moving average of the growth of a directory or disk, in bytes per second. Call :meth:`note`
    regularly with the used bytes.
    """

    __slots__ = ("_as_of_ms", "_growth", "_used_bytes")

    def __init__(self) -> None:
        self._used_bytes: int | None = None
        self._as_of_ms = 0
        self._growth = 0.0

    def __repr__(self) -> str:
        return f"<SpaceTrend {self._growth:.0f} B/s used={self._used_bytes}>"

    @property
    def bytes_per_second(self) -> float:
        """Growth in bytes per second; 0 before the second call of :meth:`note`."""
        return self._growth

    def note(self, used_bytes: int, now_ms: int) -> None:
        """Add a measurement.

        :param used_bytes: bytes in use, counted from any fixed base: only the changes matter.
        :param now_ms: monotonic time.
        """
        before, self._used_bytes = self._used_bytes, used_bytes
        elapsed_ms, self._as_of_ms = now_ms - self._as_of_ms, now_ms
        if before is None or elapsed_ms <= 0:
            return
        rate = (used_bytes - before) * 1000 / elapsed_ms
        weight = 1 - math.exp(-elapsed_ms / GROWTH_WINDOW_MS)
        self._growth += weight * (rate - self._growth)

    def seconds_until_full(self, usable_bytes: int) -> float | None:
        """Return the seconds until ``usable_bytes`` are used at the present growth; None if the
        growth is below 1 byte per second.
        """
        # Growth below 1 byte per second is the remainder of growth that has ended.
        return usable_bytes / self._growth if self._growth >= 1 else None


class Crossing(Enum):
    """Direction in which the free space of a disk crossed the mark of a :class:`WarningMark`."""

    FILLING_UP = "less is free than the mark"
    NO_LONGER = "more is free again"


class WarningMark:
    """Detects when the free space falls below ``percent`` of the disk, and when it rises to 1 % of
    the disk above that mark. With ``percent`` 0 it detects nothing.
    """

    __slots__ = ("_percent", "is_below")

    def __init__(self, percent: int) -> None:
        self._percent = percent
        self.is_below = False

    def __repr__(self) -> str:
        return f"<WarningMark {self._percent} % {'below' if self.is_below else 'above'}>"

    def sample(self, usable_bytes: int, total_bytes: int) -> Crossing | None:
        """Return whether the free space crossed the mark since the last sample, and in which
        direction.

        Returns None without a crossing, and if the size of the disk is unknown.
        """
        if not self._percent or total_bytes <= 0:
            return None
        free_percent = 100 * usable_bytes / total_bytes
        if not self.is_below and free_percent < self._percent:
            self.is_below = True
            return Crossing.FILLING_UP
        if self.is_below and free_percent >= self._percent + HYSTERESIS_PERCENT:
            self.is_below = False
            return Crossing.NO_LONGER
        return None
