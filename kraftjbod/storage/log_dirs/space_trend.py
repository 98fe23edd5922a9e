"""PURE. How fast a log dir and its disk fill, when they are full, and when to warn.

* Growth is a moving average over some minutes: what a retention run frees, or a burst of writes,
  is smoothed. Negative growth means that it empties.
* The warning mark is crossed once per time that it is crossed: the disk has to have
  :data:`HYSTERESIS_PERCENT` more free than the mark before the next crossing counts.

The disk may hold more than the log dir, so there is a trend of each. It is the disk that becomes
full, and by the faster of the two.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

#: The time constant of the average: after it, two thirds of a lasting change have been taken in.
GROWTH_WINDOW_MS: Final = 180_000
HYSTERESIS_PERCENT: Final = 1


class SpaceTrend:
    """``note(used_bytes, now_ms)`` from time to time; the rest is read."""

    __slots__ = ("_as_of_ms", "_growth", "_used_bytes")

    def __init__(self) -> None:
        self._used_bytes: int | None = None
        self._as_of_ms = 0
        self._growth = 0.0

    def __repr__(self) -> str:
        return f"<SpaceTrend {self._growth:.0f} B/s used={self._used_bytes}>"

    @property
    def bytes_per_second(self) -> float:
        """0 before there are two notes."""
        return self._growth

    def note(self, used_bytes: int, now_ms: int) -> None:
        """:param used_bytes: counted from wherever; what matters is how it changes."""
        before, self._used_bytes = self._used_bytes, used_bytes
        elapsed_ms, self._as_of_ms = now_ms - self._as_of_ms, now_ms
        if before is None or elapsed_ms <= 0:
            return
        rate = (used_bytes - before) * 1000 / elapsed_ms
        weight = 1 - math.exp(-elapsed_ms / GROWTH_WINDOW_MS)
        self._growth += weight * (rate - self._growth)

    def seconds_until_full(self, usable_bytes: int) -> float | None:
        """At the present growth; None if the disk does not fill."""
        # Less than a byte in a second is what is left of a growth that is over.
        return usable_bytes / self._growth if self._growth >= 1 else None


class Crossing(Enum):
    FILLING_UP = "less is free than the mark"
    NO_LONGER = "more is free again"


class WarningMark:
    """Less than ``percent`` of the disk free, logged once; 0: never."""

    __slots__ = ("_percent", "is_below")

    def __init__(self, percent: int) -> None:
        self._percent = percent
        self.is_below = False

    def __repr__(self) -> str:
        return f"<WarningMark {self._percent} % {'below' if self.is_below else 'above'}>"

    def sample(self, usable_bytes: int, total_bytes: int) -> Crossing | None:
        """Whether the mark was crossed since the last sample; never on a disk of unknown size."""
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
