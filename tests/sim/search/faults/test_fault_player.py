from __future__ import annotations

from kraftjbod.testing.simulation.search.faults.schedule import Kind
from tests.sim.search.faults.play_kinds import play
from tests.sim.search.faults.test_dir_faults import OF_DISKS
from tests.sim.search.faults.test_host_faults import OF_HOSTS
from tests.sim.search.faults.test_link_faults import OF_LINKS
from tests.sim.search.faults.test_operator_work import OF_OPERATORS


def test_every_kind_is_tried() -> None:
    assert sorted([*OF_DISKS, *OF_HOSTS, *OF_LINKS, *OF_OPERATORS]) == sorted(Kind)


def test_what_ended_is_history() -> None:
    outcome = play([Kind.KILL])
    assert sum("is started" in line for line in outcome.story) == 1
    assert outcome.played == {Kind.KILL: 1}
