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


def test_operator_work_completes_and_ends() -> None:
    play(OF_OPERATORS)
