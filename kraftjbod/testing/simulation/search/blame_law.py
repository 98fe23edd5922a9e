"""PURE. Which directories may go offline: those whose disks a fault has struck.

A disk that was never struck has no reason to fail. A directory that goes offline on it was blamed
for something else, such as descriptors that the process lacked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kraftjbod.testing.simulation.search.faults.schedule import OF_A_DIR, Fault, Kind

#: They work on a directory, and its disk stays as it is.
_HARMLESS: Final = frozenset({Kind.CORDON, Kind.DRAIN, Kind.REATTACH})
#: They may change all disks of their broker, or make one of them slow.
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
