from __future__ import annotations

from tests.sim.search.faults.play_kinds import play
from tests.sim.search.faults.schedule import OF_THE_CONTROLLER, Kind
from tests.sim.search.faults.test_admin_work import OF_ADMINS
from tests.sim.search.faults.test_dir_faults import OF_DISKS, OF_REPLICAS
from tests.sim.search.faults.test_host_faults import ALONE, OF_HOSTS
from tests.sim.search.faults.test_link_faults import OF_LINKS
from tests.sim.search.faults.test_operator_work import OF_OPERATORS
from tests.sim.search.faults.test_voter_faults import OF_VOTERS


def test_every_kind_of_fault_is_tested() -> None:
    of_disks = {*OF_DISKS, *OF_REPLICAS, Kind.LOST_END}
    of_one_controller = {*of_disks, *OF_HOSTS, *ALONE, *OF_LINKS, *OF_OPERATORS}
    of_three = {*OF_THE_CONTROLLER, Kind.CLOCK_DRIFT, *OF_VOTERS, *OF_ADMINS}
    assert of_one_controller | of_three == set(Kind)


def test_fault_player_restarts_killed_broker_once() -> None:
    outcome = play([Kind.KILL])
    assert sum("is started" in line for line in outcome.story) == 1
    assert outcome.played == {Kind.KILL: 1}
