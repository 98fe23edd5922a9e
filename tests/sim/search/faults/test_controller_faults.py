from __future__ import annotations

import pytest

from kraftjbod.testing.simulation.search.faults.schedule import (
    OF_THE_CONTROLLER,
    UNLIMITED_WEIGHTS,
    Fault,
    Kind,
    Shape,
)
from kraftjbod.testing.simulation.search.seed_run import SeedRun
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


@pytest.mark.long
def test_rot_in_a_metadata_snapshot_is_noticed_when_a_broker_and_a_controller_come_back() -> None:
    """Both are given the leader's snapshot while one of its bits is another one."""
    kinds = {Kind.METADATA_ROT: 4_000, Kind.KILL: 300, Kind.CONTROLLER_KILL: 1_500}
    schedule = tuple(
        Fault(
            number=number,
            at_ms=begin_ms + 100 * i,
            kind=kind,
            broker=2,
            dir=0,
            other=3,
            for_ms=for_ms,
            choice=number,
            controller=0 if kind is Kind.METADATA_ROT else 2,
        )
        for begin_ms in (6_000, 11_500, 17_000)
        for i, (kind, for_ms) in enumerate(kinds.items())
        for number in (begin_ms + i,)
    )
    outcome = SeedRun(1, Shape(partitions=2, controllers=3), schedule).run()
    assert outcome.findings == []
    assert outcome.rotted == 3
    assert outcome.damages_found
