from __future__ import annotations

from tests.sim.search.faults.play_kinds import play
from tests.sim.search.faults.schedule import Kind

OF_HOSTS = [
    Kind.KILL,
    Kind.STOP,
    Kind.POWER_CUT,
    Kind.STAND_STILL,
    Kind.LATE_LOOP,
    Kind.DESCRIPTORS,
    Kind.CONTROLLER_KILL,
    Kind.CONTROLLER_POWER_CUT,
    Kind.REMOVED,
    Kind.ALL_STOPPED,
    Kind.SWAPPED,
    Kind.CLOCK_JUMP,
]
# The fault stops whole hosts for longer than the other faults could wait.
ALONE = [Kind.LAST_STANDING]


def test_each_kind_of_host_fault_ends_and_breaks_no_invariant() -> None:
    play(OF_HOSTS)


def test_power_cut_of_the_last_standing_broker_breaks_no_invariant() -> None:
    """Its session must end first, because its connections were not closed."""
    play(ALONE)
