from __future__ import annotations

import pytest

from kraftjbod.core.metadata_version import DEFAULT_METADATA_VERSION, SUPPORTED_FEATURES
from tests.sim.search.faults.admin_work import OLDER_FEATURES
from tests.sim.search.faults.play_kinds import play, schedule_of
from tests.sim.search.faults.schedule import Kind, Shape
from tests.sim.search.seed_run import SeedRun

_CLUSTER = [
    Kind.SETTINGS,
    Kind.DOWNGRADE,
    Kind.ELECT,
    Kind.REASSIGN,
    Kind.REASSIGN,
    Kind.COORDINATED,
]
_LOSING = [Kind.CANCEL_UNCLEAN, Kind.LOSSY_DOWNGRADE]
_BROKERS = [Kind.UNREGISTER, Kind.UNCLEAN_ELECTION]
# All kinds of this test.
OF_ADMINS = {*_CLUSTER, *_BROKERS, *_LOSING}


def test_admin_work_on_settings_and_replicas_changes_no_internal_topic() -> None:
    outcome_lines = play(_CLUSTER).story
    story = "\n".join(outcome_lines)
    assert "broker_session" in story or "set " in story
    assert "raise metadata.version to 4.4-IV2-J1: done" in story
    assert "reassign " in story
    asked = [line for line in outcome_lines if "grow __" in line or "delete __" in line]
    assert asked and all("done" not in line for line in asked), asked


def test_metadata_version_with_mixed_software_stays_at_older_level() -> None:
    schedule = schedule_of([Kind.DOWNGRADE] * 3)
    run = SeedRun(11, Shape(partitions=2, is_mixed=True), schedule)
    older = run._cluster.broker(3)
    assert older.features is OLDER_FEATURES
    outcome = run.run()
    assert outcome.findings == []
    story = [line for line in outcome.story if "raise metadata.version" in line]
    assert len(story) == 3 and all("supports 14 to 30" in line for line in story), story
    assert older.features is SUPPORTED_FEATURES, "new software is in use from the next start on"


def test_metadata_version_stays_while_a_controller_still_runs_replaced_software() -> None:
    """The metadata has no registration of a controller at that level."""
    run = SeedRun(11, Shape(partitions=2, is_mixed=True), schedule_of([Kind.DOWNGRADE] * 4))
    run._cluster.broker(3).features = SUPPORTED_FEATURES
    older = run._cluster.controllers[0]
    older.features = OLDER_FEATURES
    outcome = run.run()
    assert outcome.findings == []
    assert older.features is SUPPORTED_FEATURES
    assert not [line for line in outcome.story if "lower metadata.version" in line]


@pytest.mark.parametrize("controllers", [1, pytest.param(3, marks=pytest.mark.long)])
def test_cluster_heals_after_unregistered_broker_and_unclean_leader(controllers: int) -> None:
    outcome = play(_BROKERS, controllers=controllers, every_ms=9_000)
    story = "\n".join(outcome.story)
    assert "unregister broker 2: done" in story
    assert "elect unclean leaders" in story and not outcome.skipped


def test_cancelled_reassignment_after_an_unregistered_broker_breaks_no_invariant() -> None:
    outcome = play([Kind.CANCEL_UNCLEAN])
    story = "\n".join(outcome.story)
    assert "unregister broker 2: done" in story and "to None: done" in story
    assert outcome.played == {Kind.CANCEL_UNCLEAN: 1}


def test_lossy_downgrade_is_refused_unless_it_is_unsafe() -> None:
    story = "\n".join(play([Kind.LOSSY_DOWNGRADE]).story)
    low = "metadata.version=17 eligible.leader.replicas.version=0"
    assert f"safe_downgrade to {low}: OperatingError" in story
    assert f"unsafe_downgrade to {low}: done" in story
    high = f"metadata.version={int(DEFAULT_METADATA_VERSION)} eligible.leader.replicas.version=1"
    assert f"upgrade to {high}: done" in story
