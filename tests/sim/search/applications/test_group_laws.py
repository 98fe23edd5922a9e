from __future__ import annotations

from kraftjbod.core.errors import ErrorCode
from tests.sim.search.applications.group_laws import GroupLaws


def test_fetched_offset_without_acknowledged_commit_is_found() -> None:
    laws = GroupLaws()
    assert not laws.assigned("a", 1, [0])
    assert not laws.fetched(1, 0, -1)
    assert not laws.answered(laws.commits("a", 1, 0, 5), is_refused=False)
    laws.commits("a", 1, 0, 8)
    laws.answered(laws.commits("a", 1, 0, 9), is_refused=True)
    assert not laws.assigned("b", 2, [0])
    assert not laws.fetched(2, 0, 5) and not laws.fetched(2, 0, 8)
    for lost in (-1, 9):
        found = laws.fetched(2, 0, lost)
        assert found == f"generation 2 finds partition 0 at {lost}, where 5 or 8 was committed"
    assert not laws.answered(laws.commits("b", 2, 0, 6), is_refused=False)
    assert "where 6 was committed" in laws.fetched(3, 0, 8), "the offset went back"


def test_second_owner_and_commit_of_former_generation_are_found() -> None:
    laws = GroupLaws()
    in_time = laws.commits("a", 1, 0, 3)
    assert not laws.assigned("a", 1, [0, 1]) and not laws.assigned("b", 2, [0, 1])
    assert laws.assigned("c", 2, [1]) == "generation 2 gives partition 1 to b and c"
    assert not laws.answered(in_time, is_refused=False)
    late = laws.commits("a", 1, 0, 4)
    assert not laws.answered(late, is_refused=True)
    assert "committed 4 of partition 0 in generation 1, when 2" in laws.answered(
        late, is_refused=False
    )


def test_commit_of_former_generation_is_legal_only_for_partitions_without_new_owner() -> None:
    laws = GroupLaws(is_by_partition=True)
    assert not laws.assigned("a", 1, [0, 1]) and not laws.assigned("b", 2, [1])
    kept, given_away = (laws.commits("a", 1, partition, 7) for partition in (0, 1))
    assert not laws.answered(kept, is_refused=False)
    assert "committed 7 of partition 1 in generation 1, when 2" in laws.answered(
        given_away, is_refused=False
    )


def test_answer_older_than_an_acknowledged_commit_is_found() -> None:
    laws = GroupLaws()
    laws.assigned("a", 1, [0])
    commit = laws.commits("a", 1, 0, 5)
    before = laws.least(0)
    laws.answered(commit, is_refused=False)
    assert laws.check_answer(2, 0, -1, before) == "", "the question came before the acknowledgement"
    assert laws.check_answer(2, 0, 5, laws.least(0)) == ""
    assert laws.check_answer(2, 0, 4, laws.least(0)) == (
        "broker 2 answers that partition 0 is at 4, and 5 was acknowledged before the question"
    )
    refused = laws.commits("a", 1, 0, 9)
    laws.answered(refused, is_refused=True)
    assert laws.least(0) == 5


def test_offset_fetch_answered_with_coordinator_not_available_is_found() -> None:
    found = GroupLaws.check_fetch_code(2, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert found == "broker 2 answers an OffsetFetch with COORDINATOR_NOT_AVAILABLE"
    assert not GroupLaws.check_fetch_code(2, ErrorCode.NOT_COORDINATOR)
    assert not GroupLaws.check_fetch_code(2, ErrorCode.NONE)
