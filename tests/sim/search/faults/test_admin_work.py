from __future__ import annotations

import pytest

from kraftjbod.core.metadata_version import SUPPORTED_FEATURES
from kraftjbod.testing.simulation.search.faults.admin_work import OLDER_FEATURES
from kraftjbod.testing.simulation.search.faults.schedule import Kind, Shape
from kraftjbod.testing.simulation.search.seed_run import SeedRun
from tests.sim.search.faults.play_kinds import play, schedule_of

_CLUSTER = [Kind.SETTINGS, Kind.DOWNGRADE, Kind.ELECT, Kind.REASSIGN, Kind.REASSIGN]
_BROKERS = [Kind.UNREGISTER, Kind.UNCLEAN_ELECTION]
#: All that is tried here.
OF_ADMINS = {*_CLUSTER, *_BROKERS}


def test_cluster_is_as_before_after_settings_levels_elections_and_reassignments() -> None:
    told = "\n".join(play(_CLUSTER).story)
    assert "broker_session" in told or "set " in told
    assert "raise metadata.version to 4.4-IV2: done" in told
    assert "reassign " in told


def test_level_of_mixed_versions_is_not_raised_above_the_older_software() -> None:
    schedule = schedule_of([Kind.DOWNGRADE, Kind.DOWNGRADE])
    run = SeedRun(11, Shape(partitions=2, is_mixed=True), schedule)
    older = run._cluster.broker(3)
    assert older.features is OLDER_FEATURES
    outcome = run.run()
    assert outcome.findings == []
    told = [line for line in outcome.story if "raise metadata.version" in line]
    assert len(told) == 2 and all("supports 14 to 30" in line for line in told), told
    assert older.features is SUPPORTED_FEATURES, "the second fault replaces the software"


@pytest.mark.parametrize("controllers", [1, pytest.param(3, marks=pytest.mark.long)])
def test_unregistered_broker_and_unclean_leader_come_to_rest(controllers: int) -> None:
    outcome = play(_BROKERS, controllers=controllers, every_ms=9_000)
    told = "\n".join(outcome.story)
    assert "unregister broker 2: done" in told
    assert "elect unclean leaders" in told and not outcome.skipped
