from __future__ import annotations

import pytest

from kraftjbod.testing.simulation.search.faults.schedule import Kind
from tests.sim.search.faults.play_kinds import play

_CLUSTER = [Kind.SETTINGS, Kind.DOWNGRADE, Kind.ELECT, Kind.REASSIGN, Kind.REASSIGN]


def test_cluster_is_as_before_after_settings_levels_elections_and_reassignments() -> None:
    told = "\n".join(play(_CLUSTER).story)
    assert "broker_session" in told or "set " in told
    assert "raise metadata.version to 4.4-IV2: done" in told
    assert "reassign " in told


@pytest.mark.parametrize("controllers", [1, pytest.param(3, marks=pytest.mark.long)])
def test_unregistered_broker_and_unclean_leader_come_to_rest(controllers: int) -> None:
    outcome = play(
        [Kind.UNREGISTER, Kind.UNCLEAN_ELECTION], controllers=controllers, every_ms=9_000
    )
    told = "\n".join(outcome.story)
    assert "unregister broker 2: done" in told
    assert "elect unclean leaders" in told and not outcome.skipped
