from __future__ import annotations

from tests.sim.search.faults.play_kinds import schedule_of
from tests.sim.search.faults.schedule import Kind, Shape
from tests.sim.search.seed_run import SeedRun


def test_observer_that_is_killed_never_votes_and_breaks_no_invariant() -> None:
    schedule = schedule_of([Kind.CONTROLLER_KILL, Kind.CONTROLLER_POWER_CUT], every_ms=9_000)
    run = SeedRun(11, Shape(partitions=2, controllers=3, observers=1), schedule)
    outcome = run.run()
    assert outcome.findings == []
    story = "\n".join(outcome.story)
    assert "name the voters in the metadata log: done" in story
    (observer,) = run._cluster.observers
    assert "controller-200 is " in story or "controller-200 loses" in story
    assert observer.past[-1].exit_code == 0, "it is stopped with all others in the end"
    assert not any(name == observer.name for name, _ in run._quorum._votes)
