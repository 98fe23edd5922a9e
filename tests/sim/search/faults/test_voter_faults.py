from __future__ import annotations

import pytest

from tests.sim.search.faults.play_kinds import play
from tests.sim.search.faults.schedule import Fault, Kind, Shape
from tests.sim.search.seed_run import SeedRun

OF_VOTERS = [Kind.VOTERS, Kind.METADATA_REPLACED, Kind.METADATA_STANDALONE]


@pytest.mark.long
def test_voters_go_and_come_back_and_so_does_one_with_an_empty_disk() -> None:
    outcome = play([*OF_VOTERS, *OF_VOTERS], controllers=3, every_ms=8_000)
    assert not outcome.skipped
    told = "\n".join(outcome.story)
    assert told.count("name the voters in the metadata log: done") == 1
    assert told.count("add voter") > told.count("remove voter") >= len(OF_VOTERS)


@pytest.mark.long
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_of_metadata_disks_that_are_lost_only_refusals_come(lost: int) -> None:
    schedule = tuple(
        Fault(
            number=number,
            at_ms=3_000 + number * 200,
            kind=Kind.METADATA_LOST,
            broker=1,
            dir=0,
            other=2,
            for_ms=1_000,
            choice=number,
            controller=number,
        )
        for number in range(1, lost + 1)
    )
    shape = Shape(partitions=2, controllers=3)
    outcome = SeedRun(11, shape, schedule, keeps_promise=False).run()
    assert outcome.findings == []
    assert outcome.played == {Kind.METADATA_LOST: lost}
    told = "\n".join(outcome.story)
    assert ("controller_refused_by_peer" in told) is (lost < 3)
