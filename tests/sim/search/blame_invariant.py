"""Invariant: a directory goes offline only if a fault has struck its disk.

A disk without a fault has no reason to fail. If its directory goes offline, the broker blamed it
for another problem, such as missing file descriptors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.sim.search.faults.schedule import OF_A_DIR, Fault, Kind

#: Kinds that affect a directory, but not its disk.
_HARMLESS: Final = frozenset({Kind.CORDON, Kind.DRAIN, Kind.REATTACH, Kind.REMAINS_REMOVED})
#: Kinds that may change all disks of their broker, or make one of them slow.
_OF_ALL_DISKS: Final = frozenset(
    {
        Kind.POWER_CUT,
        Kind.REMOVED,
        Kind.SWAPPED,
        Kind.MOVE_HANG,
        Kind.ALL_STOPPED,
        Kind.LAST_STANDING,
    }
)


def is_blamed(broker: int, directory: int, begun: Iterable[Fault]) -> bool:
    """Return whether no fault of ``begun`` explains that the directory is offline.

    :param directory: its number in the broker, from 0.
    """
    return not any(_strikes(fault, broker, directory) for fault in begun)


def _strikes(fault: Fault, broker: int, directory: int) -> bool:
    if fault.broker != broker:
        return False
    if fault.kind in _OF_ALL_DISKS:
        return True
    return fault.kind in OF_A_DIR - _HARMLESS and fault.dir == directory
