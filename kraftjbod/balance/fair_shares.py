"""PURE. What each directory should hold: everything dealt out so that all are at one level.

A directory's share of the bytes goes by its size, its share of what is written does not: disks
differ more in size than in speed. What a directory cannot give or take bounds its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TOLERANCE: Final = 0.05
RATE_TOLERANCE: Final = 0.2
#: Doublings and halvings when a level is looked for; floats have no more bits.
_BISECTIONS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DirLoad:
    """One directory. ``spare_bytes`` is what may come into it before anything has left it.

    One that takes gives too; one that is drained does not take.
    """

    total_bytes: int
    spare_bytes: int
    takes: bool = True
    gives: bool = True
    is_drained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """Tolerances are fractions of a directory's fair share.

    ``level`` is how full directories shall be if that is known beforehand, because the broker is
    one of many; a broker that cannot keep to it has a level of its own.
    """

    tolerance: float = TOLERANCE
    rate_tolerance: float = RATE_TOLERANCE
    level: float | None = None


@dataclass(frozen=True, slots=True)
class Band:
    """A share of something: ``level * weight``, but never below ``low`` nor above ``high``."""

    weight: float
    low: float
    high: float

    def at(self, level: float) -> float:
        return min(self.high, max(self.low, level * self.weight))


def shares(bands: Sequence[Band], amount: float) -> list[float]:
    """``amount`` dealt out so that all bands are at one level, as far as their ends allow."""
    level = level_of(bands, amount)
    return [band.at(level) for band in bands]


def level_of(bands: Sequence[Band], amount: float) -> float:
    """The level at which bands hold ``amount``.

    More than all can hold leaves each at its high end, less than all must hold at its low one.
    """
    top = max((band.high / band.weight for band in bands if band.weight > 0), default=0.0)
    if sum(band.at(top) for band in bands) <= amount:
        return top
    low, high = 0.0, top
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if sum(band.at(middle) for band in bands) > amount:
            high = middle
        else:
            low = middle
    return low


def byte_band(load: DirLoad, held_bytes: int, fixed_bytes: int) -> Band:
    """What a directory may come to hold that holds ``held_bytes``, ``fixed_bytes`` immovable."""
    if not load.gives:
        return Band(0.0, held_bytes, held_bytes)
    if load.is_drained:
        return Band(0.0, fixed_bytes, fixed_bytes)
    high = held_bytes + load.spare_bytes if load.takes else held_bytes
    return Band(float(load.total_bytes), fixed_bytes, max(high, fixed_bytes))


def rate_band(load: DirLoad, held: float, fixed: float, most: float) -> Band:
    """Each directory is worth as much as any other: disks differ more in size than in speed."""
    if not load.gives:
        return Band(0.0, held, held)
    if load.is_drained:
        return Band(0.0, fixed, fixed)
    return Band(1.0, fixed, most if load.takes else held)
