from __future__ import annotations

from tests.sim.search.faults.play_kinds import play
from tests.sim.search.faults.schedule import Kind

OF_LINKS = [
    Kind.PARTITION,
    Kind.ONE_WAY,
    Kind.RESET,
    Kind.HALF_OPEN,
    Kind.SLOW_LINK,
]


def test_each_kind_of_link_fault_ends_and_breaks_no_invariant() -> None:
    play(OF_LINKS)
