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


def test_what_an_operator_asks_for_is_done_and_over() -> None:
    play(OF_OPERATORS)
