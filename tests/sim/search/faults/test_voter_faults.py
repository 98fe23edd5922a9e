from __future__ import annotations

import pytest

from kraftjbod.testing.simulation.search.faults.schedule import Kind
from tests.sim.search.faults.play_kinds import play

OF_VOTERS = [Kind.VOTERS, Kind.METADATA_REPLACED]


@pytest.mark.long
def test_voters_go_and_come_back_and_so_does_one_with_an_empty_disk() -> None:
    outcome = play([*OF_VOTERS, *OF_VOTERS], controllers=3, every_ms=8_000)
    assert not outcome.skipped
    told = "\n".join(outcome.story)
    assert told.count("name the voters in the metadata log: done") == 1
    assert told.count("add voter") > told.count("remove voter") >= len(OF_VOTERS)
