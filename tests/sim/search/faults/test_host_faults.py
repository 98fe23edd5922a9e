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
#: It stops whole hosts for longer than others can do without them.
ALONE = [Kind.LAST_STANDING]


def test_hosts_are_back_however_they_ended() -> None:
    play(OF_HOSTS)


def test_who_is_back_alone_without_its_tail_leads_nothing() -> None:
    """Its session ends first, for its connections were not closed."""
    play(ALONE)
