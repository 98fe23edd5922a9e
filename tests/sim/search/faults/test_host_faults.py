from __future__ import annotations

from kraftjbod.testing.simulation.search.faults.schedule import Kind
from tests.sim.search.faults.play_kinds import play

OF_HOSTS = [
    Kind.KILL,
    Kind.STOP,
    Kind.POWER_CUT,
    Kind.CONTROLLER_KILL,
    Kind.CONTROLLER_POWER_CUT,
    Kind.REMOVED,
    Kind.ALL_STOPPED,
    Kind.SWAPPED,
    Kind.CLOCK_JUMP,
]


def test_hosts_are_back_however_they_ended() -> None:
    play(OF_HOSTS)
