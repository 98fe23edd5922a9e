"""``change_partition``: elections and ISR changes, as tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import pytest

from kraftjbod.controller.partitions.acceptance import Acceptance
from kraftjbod.controller.partitions.partition_assignment import Assignment
from kraftjbod.controller.partitions.partition_change import Election, change_partition
from kraftjbod.controller.partitions.topic_rules import TopicRules
from kraftjbod.core.ids import (
    LOST_DIR,
    MIGRATING_DIR,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
)
from kraftjbod.metadata.records import PartitionChangeRecord
from kraftjbod.metadata.registrations import PartitionRegistration

KEY = TopicIdPartition(TopicId(bytes(16)), 0)
GOOD, BAD = DirectoryId(bytes(15) + b"g"), DirectoryId(bytes(15) + b"b")
RULES = TopicRules(may_elect_unclean=False, min_isr=2, has_elr=False)
ONLINE, PREFERRED, UNCLEAN = Election.ONLINE, Election.PREFERRED, Election.UNCLEAN


def _ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def _partition(
    leader: int, isr: tuple[int, ...], adding: tuple[int, ...] = (), removing: tuple[int, ...] = ()
) -> PartitionRegistration:
    return PartitionRegistration(
        replicas=_ids(1, 2, 3),
        directories=(GOOD, GOOD, GOOD),
        isr=_ids(*isr),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
        leader_recovering=False,
        adding_replicas=_ids(*adding),
        removing_replicas=_ids(*removing),
    )


def _acceptance(
    broker: BrokerId, directory: DirectoryId, active: set[int], impaired: Collection[int]
) -> Acceptance:
    if broker not in active or directory != GOOD:
        return Acceptance.REFUSED
    return Acceptance.LAST_RESORT if broker in impaired else Acceptance.ACCEPTABLE


def _change(
    before: PartitionRegistration,
    election: Election,
    active: set[int],
    isr: tuple[int, ...] | None = None,
    assignment: Assignment | None = None,
    impaired: Collection[int] = (),
) -> PartitionChangeRecord | None:
    return change_partition(
        KEY,
        before,
        rules=RULES,
        election=election,
        acceptance=lambda broker, directory: _acceptance(broker, directory, active, impaired),
        isr=None if isr is None else _ids(*isr),
        assignment=assignment,
    )


@pytest.mark.parametrize(
    ("leader", "isr", "election", "active", "wanted", "expected"),
    [
        pytest.param(2, (1, 2), ONLINE, {1, 2}, None, None, id="the leader stays"),
        pytest.param(2, (1, 2), PREFERRED, {1, 2}, None, (1, None), id="the first takes over"),
        pytest.param(2, (2, 3), PREFERRED, {1, 2, 3}, None, None, id="the first is not in sync"),
        pytest.param(2, (1, 2), PREFERRED, {2}, None, (None, (2,)), id="the first is not active"),
        pytest.param(1, (1, 2), ONLINE, {2}, (2,), (2, (2,)), id="the next in order"),
        pytest.param(1, (1, 3), ONLINE, {2, 3}, (3,), (3, (3,)), id="only from the in-sync set"),
        pytest.param(1, (1,), ONLINE, {2, 3}, (), (-1, None), id="the last member stays"),
        pytest.param(-1, (1,), ONLINE, {1}, None, (1, None), id="and leads when it is back"),
        pytest.param(-1, (1,), ONLINE, {2}, None, None, id="no other may lead"),
        pytest.param(1, (1,), UNCLEAN, {3}, (), (3, (3,)), id="unclean: any acceptable replica"),
        pytest.param(1, (1, 2), UNCLEAN, {2, 3}, (2,), (2, (2,)), id="unclean: clean if it can"),
        pytest.param(1, (1,), UNCLEAN, set(), (), (-1, None), id="unclean: no replica"),
    ],
)
def test_change_partition_elects_by_kind_of_election(
    leader: int,
    isr: tuple[int, ...],
    election: Election,
    active: set[int],
    wanted: tuple[int, ...] | None,
    expected: tuple[int, tuple[int, ...] | None] | None,
) -> None:
    record = _change(_partition(leader, isr), election, active, wanted)
    assert (record and (record.leader, record.isr)) == expected


@pytest.mark.parametrize(
    ("leader", "isr", "election", "active", "impaired", "expected"),
    [
        pytest.param(1, (1, 2), ONLINE, {1, 2}, {1}, (2, (2,)), id="an impaired leader gives way"),
        pytest.param(2, (1, 2), ONLINE, {1, 2}, {1}, (None, (2,)), id="an impaired member leaves"),
        pytest.param(
            1, (1,), ONLINE, {1, 2}, {1}, None, id="the last in-sync member keeps leading"
        ),
        pytest.param(
            2, (1, 2), ONLINE, {1, 2}, {1, 2}, (None, (2,)), id="impaired leader of many stays"
        ),
        pytest.param(3, (1, 2), ONLINE, {1, 2}, {1, 2}, (1, (1,)), id="else the first in order"),
        pytest.param(
            -1, (2,), ONLINE, {1, 2}, {2}, (2, None), id="impaired leads a leaderless one"
        ),
        pytest.param(2, (1, 2), PREFERRED, {1, 2}, {1}, (None, (2,)), id="preferred is impaired"),
        pytest.param(2, (2,), PREFERRED, {1, 2}, {1, 2}, None, id="preferred: leader stays"),
        pytest.param(1, (1,), UNCLEAN, {1, 2}, {1}, None, id="clean before unclean"),
        pytest.param(1, (1,), UNCLEAN, {2, 3}, {2}, (3, (3,)), id="unclean: the healthy first"),
        pytest.param(1, (1,), UNCLEAN, {2}, {2}, (2, (2,)), id="unclean: else any"),
    ],
)
def test_change_partition_elects_impaired_replica_as_last_resort(
    leader: int,
    isr: tuple[int, ...],
    election: Election,
    active: set[int],
    impaired: set[int],
    expected: tuple[int | None, tuple[int, ...] | None] | None,
) -> None:
    record = _change(_partition(leader, isr), election, active, impaired=impaired)
    assert (record and (record.leader, record.isr)) == expected


def test_reassignment_does_not_complete_with_impaired_replica() -> None:
    before = _partition(1, (1,), adding=(2, 3), removing=(1,))
    record = _change(before, ONLINE, {1, 2, 3}, (1, 2, 3), impaired={3})
    assert record is not None
    assert (record.isr, record.replicas) == ((1, 2), None)


@pytest.mark.parametrize("directory", [LOST_DIR, GOOD])
@pytest.mark.parametrize(
    ("elr", "last_known"),
    [
        pytest.param((1, 3), (3,), id="an eligible replica takes its place"),
        pytest.param((3,), (3,), id="also if it was no longer eligible"),
        pytest.param((), (1,), id="else the place is kept as the last one known"),
    ],
)
def test_lost_or_unclean_replica_leaves_last_known_elr_if_another_is_eligible(
    elr: tuple[int, ...], last_known: tuple[int, ...], directory: DirectoryId
) -> None:
    """Broker 1 led last and returns without its copy.

    Only then the other holder returns, unclean because it was stopped on a full disk."""
    before = dataclasses.replace(
        _partition(-1, ()), elr=_ids(*elr), last_known_elr=_ids(1), replicas=_ids(1, 3)
    )
    before = dataclasses.replace(before, directories=(GOOD, GOOD))
    lost = change_partition(
        KEY,
        before,
        rules=RULES._replace(has_elr=True),
        election=ONLINE,
        acceptance=lambda broker, directory: _acceptance(broker, directory, set(), ()),
        assignment=Assignment.of_partition(before).with_directory(BrokerId(1), directory),
        unclean=BrokerId(1),
    )
    after = before if lost is None else before.merge(lost)
    assert (after.leader, after.last_known_elr) == (-1, last_known)


def test_change_partition_marks_only_unclean_leader_as_recovering() -> None:
    clean = _change(_partition(1, (1, 2)), UNCLEAN, {2}, (2,))
    unclean = _change(_partition(1, (1,)), UNCLEAN, {2}, ())
    assert clean is not None
    assert clean.leader_recovering is None
    assert unclean is not None
    assert unclean.leader_recovering is True


def test_change_partition_judges_directories_of_the_new_assignment() -> None:
    before = _partition(1, (1, 2))
    elsewhere = Assignment.of_partition(before).with_directory(BrokerId(1), BAD)
    record = _change(before, ONLINE, {1, 2}, (2,), elsewhere)
    assert record is not None
    assert (record.leader, record.isr, record.directories) == (2, (2,), (BAD, GOOD, GOOD))


def test_change_partition_without_change_returns_no_record() -> None:
    before = _partition(1, (1, 2))
    assert _change(before, ONLINE, {1, 2}, (1, 2), Assignment.of_partition(before)) is None


@pytest.mark.parametrize(
    ("leader", "isr", "active", "expected"),
    [
        pytest.param(1, (1, 2, 3), {1, 2, 3}, (2, (2, 3), (2, 3)), id="all that were added"),
        pytest.param(3, (1, 2, 3), {1, 2, 3}, (3, (2, 3), (2, 3)), id="same leader, new epoch"),
        pytest.param(1, (1, 2), {1, 2, 3}, (None, (1, 2), None), id="one is missing"),
        pytest.param(1, (1, 2, 3), {1}, (None, (1,), None), id="no other could lead"),
    ],
)
def test_reassignment_completes_when_added_replicas_are_in_sync(
    leader: int,
    isr: tuple[int, ...],
    active: set[int],
    expected: tuple[int | None, tuple[int, ...] | None, tuple[int, ...] | None],
) -> None:
    before = _partition(leader, (1, 2, 3) if active == {1} else (1,), adding=(2, 3), removing=(1,))
    record = _change(before, ONLINE, active, isr)
    reported = (record.leader, record.isr, record.replicas) if record else (None, None, None)
    assert reported == expected


def test_completed_reassignment_clears_adding_and_removing() -> None:
    record = _change(_partition(1, (1,), (2, 3), (1,)), ONLINE, {1, 2, 3}, (1, 2, 3))
    assert record is not None
    assert (record.adding_replicas, record.removing_replicas) == ((), ())
    assert record.directories == (GOOD, GOOD)


def test_unclean_election_prefers_original_replicas_over_added_ones() -> None:
    """An added replica is first in the list and may have no records yet."""
    before = _partition(2, (2,), adding=(1,), removing=(3,))
    record = _change(before, UNCLEAN, {1, 3}, ())
    assert record is not None
    assert (record.leader, record.isr) == (3, (3,))


def test_reordered_replicas_keep_migrating_directories() -> None:
    """A record that changes replicas without directories means that no directory is known."""
    before = dataclasses.replace(_partition(1, (1, 2, 3)), directories=(MIGRATING_DIR,) * 3)
    other_order = Assignment.of_partition(before).reassigned_to(
        _ids(3, 2, 1), lambda _: MIGRATING_DIR
    )
    record = change_partition(
        KEY,
        before,
        rules=RULES,
        election=ONLINE,
        acceptance=lambda *_: Acceptance.ACCEPTABLE,
        assignment=other_order,
    )
    assert record is not None
    assert (record.replicas, record.directories) == ((3, 2, 1), None)
    assert before.merge(record).directories == before.directories


def test_reordered_replicas_keep_directories_and_leader_epoch() -> None:
    before = _partition(1, (1, 2, 3))
    other_order = Assignment.of_partition(before).reassigned_to(_ids(3, 2, 1), lambda _: GOOD)
    record = _change(before, ONLINE, {1, 2, 3}, assignment=other_order)
    assert record is not None
    assert before.merge(record).directories == (GOOD, GOOD, GOOD)
    assert record.leader is None, "no replica was removed, so the epoch stays"
