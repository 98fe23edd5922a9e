from __future__ import annotations

from kraftjbod.core.errors import ErrorCode
from tests.sim.search.applications.group_invariants import GroupInvariants


def test_fetched_offset_without_acknowledged_commit_is_found() -> None:
    invariants = GroupInvariants()
    assert not invariants.assigned("a", 1, [0])
    assert not invariants.fetched(1, 0, -1)
    assert not invariants.answered(invariants.commits("a", 1, 0, 5), is_refused=False)
    invariants.commits("a", 1, 0, 8)
    invariants.answered(invariants.commits("a", 1, 0, 9), is_refused=True)
    assert not invariants.assigned("b", 2, [0])
    assert not invariants.fetched(2, 0, 5) and not invariants.fetched(2, 0, 8)
    for lost in (-1, 9):
        found = invariants.fetched(2, 0, lost)
        assert found == f"generation 2 finds partition 0 at {lost}, where 5 or 8 was committed"
    assert not invariants.answered(invariants.commits("b", 2, 0, 6), is_refused=False)
    assert "where 6 was committed" in invariants.fetched(3, 0, 8), "the offset went back"


def test_second_owner_and_commit_of_former_generation_are_found() -> None:
    invariants = GroupInvariants()
    in_time = invariants.commits("a", 1, 0, 3)
    assert not invariants.assigned("a", 1, [0, 1]) and not invariants.assigned("b", 2, [0, 1])
    assert invariants.assigned("c", 2, [1]) == "generation 2 gives partition 1 to b and c"
    assert not invariants.answered(in_time, is_refused=False)
    late = invariants.commits("a", 1, 0, 4)
    assert not invariants.answered(late, is_refused=True)
    assert "committed 4 of partition 0 in generation 1, when 2" in invariants.answered(
        late, is_refused=False
    )


def test_commit_of_former_generation_is_legal_only_for_partitions_without_new_owner() -> None:
    invariants = GroupInvariants(is_by_partition=True)
    assert not invariants.assigned("a", 1, [0, 1]) and not invariants.assigned("b", 2, [1])
    kept, given_away = (invariants.commits("a", 1, partition, 7) for partition in (0, 1))
    assert not invariants.answered(kept, is_refused=False)
    assert "committed 7 of partition 1 in generation 1, when 2" in invariants.answered(
        given_away, is_refused=False
    )


def test_answer_older_than_an_acknowledged_commit_is_found() -> None:
    invariants = GroupInvariants()
    invariants.assigned("a", 1, [0])
    commit = invariants.commits("a", 1, 0, 5)
    before = invariants.least(0)
    invariants.answered(commit, is_refused=False)
    assert invariants.check_answer(2, 0, -1, before) == "", (
        "the question came before the acknowledgement"
    )
    assert invariants.check_answer(2, 0, 5, invariants.least(0)) == ""
    assert invariants.check_answer(2, 0, 4, invariants.least(0)) == (
        "broker 2 answers that partition 0 is at 4, and 5 was acknowledged before the question"
    )
    refused = invariants.commits("a", 1, 0, 9)
    invariants.answered(refused, is_refused=True)
    assert invariants.least(0) == 5


def test_offset_fetch_answered_with_coordinator_not_available_is_found() -> None:
    found = GroupInvariants.check_fetch_code(2, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert found == "broker 2 answers an OffsetFetch with COORDINATOR_NOT_AVAILABLE"
    assert not GroupInvariants.check_fetch_code(2, ErrorCode.NOT_COORDINATOR)
    assert not GroupInvariants.check_fetch_code(2, ErrorCode.NONE)
