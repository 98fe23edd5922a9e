from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.sim.search.faults.budget import Budget
from tests.sim.search.faults.schedule import OF_ALL_BROKERS, Fault, Kind

_EIO = Fault(number=1, at_ms=0, kind=Kind.EIO, broker=1, dir=0, other=2, for_ms=100, choice=7)


def _like(**changes: object) -> Fault:
    return dataclasses.replace(_EIO, **changes)  # type: ignore[arg-type] # of the right types


def test_budget_lets_one_broker_lose_records_until_all_are_in_sync() -> None:
    budget = Budget()
    other = _like(kind=Kind.KILL, broker=2)
    budget.begun(_EIO)
    assert budget.why_not(other)
    assert not budget.why_not(_like(kind=Kind.POWER_CUT))
    budget.all_in_sync()
    assert budget.why_not(other), "the active fault still counts"
    budget.mended(_EIO)
    assert budget.why_not(other), "the healed broker still lacks records"
    budget.all_in_sync()
    assert not budget.why_not(other)


@pytest.mark.parametrize(
    ("change", "is_free"),
    [
        (lambda: _like(kind=Kind.HANG), False),
        (lambda: _like(kind=Kind.HANG, dir=1), True),
        (lambda: _like(kind=Kind.MOVES), True),
        (lambda: _like(kind=Kind.CONTROLLER_KILL), True),
        (lambda: _like(kind=Kind.FULL, broker=3), True),
    ],
)
def test_budget_refuses_second_fault_of_same_target(
    change: Callable[[], Fault], *, is_free: bool
) -> None:
    budget = Budget()
    budget.begun(_EIO)
    assert (not budget.why_not(change())) is is_free


def test_budget_without_guarantee_refuses_only_repeated_faults() -> None:
    budget = Budget(keeps_promise=False)
    budget.begun(_EIO)
    assert not budget.why_not(_like(broker=2))
    assert budget.why_not(_EIO)


def test_budget_leaves_each_broker_one_formatted_disk() -> None:
    budget = Budget()
    budget.begun(_like(kind=Kind.WIPE))
    assert budget.why_not(_like(kind=Kind.WIPE, dir=1))
    assert not budget.why_not(_like(kind=Kind.EIO, dir=1))
    assert budget.why_not(_like(kind=Kind.SWAPPED))


def test_budget_allows_full_disks_while_all_brokers_stop() -> None:
    """A full disk's reserve suffices to close its logs, so that the stop is clean."""
    for kind in sorted(OF_ALL_BROKERS):
        budget = Budget()
        budget.begun(_like(kind=kind))
        assert not budget.why_not(_like(kind=Kind.FULL, broker=2))
        assert not budget.why_not(_like(kind=Kind.FULL))


def test_budget_hang_while_leaders_change_takes_two_controllers() -> None:
    hang = _like(kind=Kind.METADATA_HANG_OF_FOLLOWER)
    assert Budget(controllers=3).why_not(hang)
    budget = Budget(controllers=5)
    assert not budget.why_not(hang)
    budget.begun(hang)
    assert budget.why_not(_like(kind=Kind.CONTROLLER_KILL))
    busy = Budget(controllers=5)
    busy.begun(_like(kind=Kind.CONTROLLER_KILL))
    assert busy.why_not(hang)


def test_budget_with_guarantee_keeps_a_majority_of_controllers() -> None:
    kill = _like(kind=Kind.CONTROLLER_KILL)
    cut = _like(kind=Kind.QUORUM_CUT, controller=2)
    for budget, most in (
        (Budget(), 1),
        (Budget(controllers=3), 1),
        (Budget(controllers=5), 2),
        (Budget(controllers=3, keeps_promise=False), 3),
    ):
        for _ in range(most):
            assert not budget.why_not(cut)
            budget.begun(kill)
        assert budget.why_not(cut)
        budget.mended(kill)
        assert not budget.why_not(cut)


def test_budget_counts_removed_voter_neither_as_away_nor_as_available() -> None:
    budget = Budget(controllers=3)
    budget.begun(_like(kind=Kind.VOTERS))
    assert not budget.why_not(_like(kind=Kind.CONTROLLER_POWER_CUT))
    assert budget.why_not(_like(kind=Kind.VOTERS, controller=2))
    assert budget.why_not(_like(kind=Kind.METADATA_REPLACED)), "two voters need both of their disks"


def test_damaged_log_end_excludes_changes_of_voters() -> None:
    budget = Budget(controllers=5)
    budget.begun(_like(kind=Kind.METADATA_LOST_END))
    assert budget.why_not(_like(kind=Kind.VOTERS))
    assert not budget.why_not(_like(kind=Kind.METADATA_LOST_END))
    assert not budget.why_not(_like(kind=Kind.CONTROLLER_KILL))


def test_budget_without_eligible_leader_replicas_lets_no_broker_lose_records() -> None:
    downgrade, kill = _like(kind=Kind.LOSSY_DOWNGRADE), _like(kind=Kind.KILL)
    budget = Budget()
    budget.begun(downgrade)
    assert budget.why_not(kill)
    assert not budget.why_not(_like(kind=Kind.STOP))
    assert budget.why_not(_like(kind=Kind.DOWNGRADE)), "one level at a time"
    budget.mended(downgrade)
    budget.begun(kill)
    budget.mended(kill)
    assert budget.why_not(downgrade), "the broker may lack records until all are in sync"
    budget.all_in_sync()
    assert not budget.why_not(downgrade)
