from __future__ import annotations

from tests.sim.search.faults.play_kinds import play
from tests.sim.search.faults.schedule import Kind

OF_OPERATORS = [
    Kind.MOVES,
    Kind.CORDON,
    Kind.DRAIN,
    Kind.REATTACH,
    Kind.CONFIG,
    Kind.REASSIGN,
]


def test_each_kind_of_operator_work_ends_and_breaks_no_invariant() -> None:
    play(OF_OPERATORS)
