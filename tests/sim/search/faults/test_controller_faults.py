from __future__ import annotations

import pytest

from kraftjbod.testing.simulation.search.faults.schedule import (
    OF_THE_CONTROLLER,
    UNLIMITED_WEIGHTS,
    Kind,
)
from tests.sim.search.faults.play_kinds import play
from tests.sim.search.faults.test_voter_faults import OF_VOTERS


@pytest.mark.long
def test_every_kind_strikes_one_of_three_and_is_over() -> None:
    others = {*OF_VOTERS, *UNLIMITED_WEIGHTS}
    kinds = sorted({*OF_THE_CONTROLLER, Kind.UNHEARD_EIO, Kind.CLOCK_DRIFT} - others)
    outcome = play(kinds, controllers=3)
    struck = {line.split()[-1] for line in outcome.story if " strikes " in line}
    assert struck <= {"controller-100", "controller-101", "controller-102"}
    assert len(struck) > 1, "whoever leads is struck, and another one leads then"
