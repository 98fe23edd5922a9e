from __future__ import annotations

from kraftjbod.testing.simulation.search.faults.schedule import Kind
from tests.sim.search.faults.play_kinds import play

OF_DISKS = [
    Kind.EIO,
    Kind.EIO_ONCE,
    Kind.UNHEARD_EIO,
    Kind.LOST_TAIL,
    Kind.HANG,
    Kind.SLOW,
    Kind.FULL,
    Kind.VANISH,
    Kind.WIPE,
    Kind.MOVE_HANG,
    Kind.ROT,
]


def test_disks_are_in_use_again_whatever_befell_them() -> None:
    play(OF_DISKS)
