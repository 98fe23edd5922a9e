"""``Assignment``: the arithmetic of reassignments, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.controller.partitions.partition_assignment import Assignment, why_malformed
from kraftjbod.core.ids import BrokerId, DirectoryId

Ids = tuple[int, ...]


def _ids(numbers: Ids) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def _home(replica: BrokerId) -> DirectoryId:
    return DirectoryId(replica.to_bytes(16, "big"))


def _assignment(replicas: Ids, adding: Ids = (), removing: Ids = ()) -> Assignment:
    return Assignment(
        replicas=_ids(replicas),
        directories=tuple(map(_home, _ids(replicas))),
        adding=_ids(adding),
        removing=_ids(removing),
    )


@pytest.mark.parametrize(
    ("before", "target", "expected"),
    [
        pytest.param(((1, 2, 3),), (1, 2, 4), ((1, 2, 4, 3), (4,), (3,)), id="one replaced"),
        pytest.param(((1, 2),), (3, 4), ((3, 4, 1, 2), (3, 4), (1, 2)), id="all replaced"),
        pytest.param(((1, 2, 3),), (3, 1), ((3, 1, 2), (), (2,)), id="fewer"),
        pytest.param(((1,),), (2, 1), ((2, 1), (2,), ()), id="more"),
        pytest.param(((1, 2, 3),), (3, 2, 1), ((3, 2, 1), (), ()), id="another order"),
        pytest.param(
            ((1, 2, 4, 3), (4,), (3,)), (1, 2, 5), ((1, 2, 5, 3), (5,), (3,)), id="another target"
        ),
        pytest.param(
            ((1, 2, 4, 3), (4,), (3,)), (4, 2, 1), ((4, 2, 1, 3), (4,), (3,)), id="target reordered"
        ),
        pytest.param(((1, 2, 4, 3), (4,), (3,)), (3, 2, 1), ((3, 2, 1), (), ()), id="back again"),
    ],
)
def test_reassigned_to_computes_adding_and_removing(
    before: tuple[Ids, ...], target: Ids, expected: tuple[Ids, Ids, Ids]
) -> None:
    after = _assignment(*before).reassigned_to(_ids(target), _home)
    assert after == _assignment(*expected)


def test_cancelled_restores_original_after_one_or_two_targets() -> None:
    begun = _assignment((1, 2, 3)).reassigned_to(_ids((4, 5, 6)), _home)
    changed = begun.reassigned_to(_ids((1, 6, 7)), _home)
    assert begun.cancelled() == _assignment((1, 2, 3))
    assert set(changed.cancelled().replicas) == {1, 2, 3}
    assert not changed.cancelled().is_reassigning


@pytest.mark.parametrize(
    ("assignment", "isr", "expected"),
    [
        pytest.param(((1, 2, 3),), (1, 2, 3), False, id="no reassignment"),
        pytest.param(((4, 2, 1), (4,), (1,)), (1, 2), False, id="the added one is missing"),
        pytest.param(((4, 2, 1), (4,), (1,)), (1, 4), True, id="a kept replica may lag"),
        pytest.param(((1, 2, 3), (), (3,)), (1, 3), False, id="fewer: a kept replica is missing"),
        pytest.param(((1, 2, 3), (), (3,)), (2, 1), True, id="fewer: all kept are in sync"),
        pytest.param(((4, 1, 2, 3), (4,), (2, 3)), (4, 2, 3), False, id="fewer and others"),
        pytest.param(((1, 2), (2,), ()), (1, 2), True, id="more"),
    ],
)
def test_is_complete_requires_added_replicas_or_a_whole_smaller_target_in_sync(
    assignment: tuple[Ids, ...], isr: Ids, expected: bool
) -> None:
    assert _assignment(*assignment).is_complete(_ids(isr)) is expected


def test_completed_keeps_order_of_target() -> None:
    assert _assignment((4, 2, 1), (4,), (1,)).completed() == _assignment((4, 2))


def test_with_directory_changes_one_replica_only() -> None:
    before = _assignment((4, 2, 1), (4,), (1,))
    after = before.with_directory(BrokerId(2), _home(BrokerId(9)))
    assert after.directories == tuple(map(_home, _ids((4, 9, 1))))
    assert (after.replicas, after.adding, after.removing) == (before.replicas, (4,), (1,))


TARGETS = st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True).map(tuple)


@given(first=TARGETS, targets=st.lists(TARGETS, max_size=5))
def test_any_sequence_of_targets_keeps_original_and_target(first: Ids, targets: list[Ids]) -> None:
    assignment = _assignment(first)
    for target in targets:
        assignment = assignment.reassigned_to(_ids(target), _home)
        assert set(assignment.original) == set(first)
        assert assignment.target == target
        assert assignment.directories == tuple(map(_home, assignment.replicas))
        assert not set(assignment.adding) & set(assignment.removing)
    assert assignment.is_complete(assignment.replicas) is assignment.is_reassigning


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [((), "empty"), ((1, -1), "-1"), ((1, 2, 1), "twice"), ((2, 1), None)],
)
def test_why_malformed_names_empty_negative_and_duplicate_ids(
    replicas: Ids, expected: str | None
) -> None:
    reported = why_malformed(_ids(replicas))
    assert (
        (reported is None) if expected is None else (reported is not None and expected in reported)
    )
