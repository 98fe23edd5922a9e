"""PURE. The fair share of each directory: bytes and write rate at one level for all directories.

A share of bytes is proportional to the directory's size. A share of the write rate is equal for
all directories, because disks differ more in size than in speed. Bytes that a directory cannot
give or take limit its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TOLERANCE: Final = 0.05
RATE_TOLERANCE: Final = 0.2
#: Doublings and halvings in a search for a level; enough for the precision of floats.
_BISECTIONS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DirLoad:
    """One directory of a plan.

    ``takes``: replicas may move into it. ``gives``: replicas can be read from it, so they may leave
    it. A directory that takes also gives. A drained directory does not take. At most
    ``spare_bytes`` may be added, however many bytes leave the directory.
    """

    total_bytes: int
    spare_bytes: int
    takes: bool = True
    gives: bool = True
    is_drained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """Goals of a plan. Tolerances are fractions of a directory's fair share.

    ``level`` is the level of the whole cluster, if the plan covers it. A broker that cannot reach
    that level uses its own.
    """

    tolerance: float = TOLERANCE
    rate_tolerance: float = RATE_TOLERANCE
    level: float | None = None


@dataclass(frozen=True, slots=True)
class Band:
    """A bounded share: ``level * weight``, at least ``low`` and at most ``high``."""

    weight: float
    low: float
    high: float

    def at(self, level: float) -> float:
        return min(self.high, max(self.low, level * self.weight))


def shares(bands: Sequence[Band], amount: float) -> list[float]:
    """Distribute ``amount`` so that all bands are at one level, within their bounds.

    :returns: the share of each band. If ``amount`` is below the sum of the low ends or above the
        sum of the high ends, each band is at that end, and the shares do not add up to ``amount``.
    """
    level = level_of(bands, amount)
    return [band.at(level) for band in bands]


def level_of(bands: Sequence[Band], amount: float) -> float:
    """Return the level at which the bands sum up to ``amount``.

    If ``amount`` is above the sum of the high ends, each band is at its high end. If it is below
    the sum of the low ends, each band is at its low end.
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
    """Return the band for the bytes of a directory.

    Its replicas cannot leave a directory that does not give. A drained directory keeps only its
    fixed bytes. A directory that takes replicas may grow by its spare bytes.

    :param held_bytes: bytes of all replicas in it.
    :param fixed_bytes: bytes of its immovable replicas.
    """
    if not load.gives:
        return Band(0.0, held_bytes, held_bytes)
    if load.is_drained:
        return Band(0.0, fixed_bytes, fixed_bytes)
    high = held_bytes + load.spare_bytes if load.takes else held_bytes
    return Band(float(load.total_bytes), fixed_bytes, max(high, fixed_bytes))


def rate_band(load: DirLoad, held: float, fixed: float, most: float) -> Band:
    """Return the band for the write rate of a directory. Directories weigh the same at any size.

    :param fixed: the rate of its immovable replicas.
    :param most: the high end for a directory that takes replicas.
    """
    if not load.gives:
        return Band(0.0, held, held)
    if load.is_drained:
        return Band(0.0, fixed, fixed)
    return Band(1.0, fixed, most if load.takes else held)
