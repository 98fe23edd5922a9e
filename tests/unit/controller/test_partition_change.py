"""Elections as a table."""

from __future__ import annotations

import pytest

from kraftjbod.controller.partition_change import Election, change_partition
from kraftjbod.core.ids import (
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
ONLINE, PREFERRED, UNCLEAN = Election.ONLINE, Election.PREFERRED, Election.UNCLEAN


def _ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def _partition(leader: int, isr: tuple[int, ...]) -> PartitionRegistration:
    return PartitionRegistration(
        replicas=_ids(1, 2, 3),
        directories=(GOOD, GOOD, GOOD),
        isr=_ids(*isr),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
        leader_recovering=False,
    )


def _change(
    before: PartitionRegistration,
    election: Election,
    active: set[int],
    isr: tuple[int, ...] | None = None,
    directories: tuple[DirectoryId, ...] | None = None,
) -> PartitionChangeRecord | None:
    return change_partition(
        KEY,
        before,
        election=election,
        is_acceptable=lambda broker, directory: broker in active and directory == GOOD,
        isr=None if isr is None else _ids(*isr),
        directories=directories,
    )


@pytest.mark.parametrize(
    ("leader", "isr", "election", "active", "wanted", "expected"),
    [
        pytest.param(2, (1, 2), ONLINE, {1, 2}, None, None, id="the leader stays"),
        pytest.param(2, (1, 2), PREFERRED, {1, 2}, None, (1, None), id="the first takes over"),
        pytest.param(2, (2, 3), PREFERRED, {1, 2}, None, None, id="the first is not in sync"),
        pytest.param(2, (1, 2), PREFERRED, {2}, None, None, id="the first is not active"),
        pytest.param(1, (1, 2), ONLINE, {2}, (2,), (2, (2,)), id="the next in order"),
        pytest.param(1, (1, 3), ONLINE, {2, 3}, (3,), (3, (3,)), id="only from the in-sync set"),
        pytest.param(1, (1,), ONLINE, {2, 3}, (), (-1, None), id="the last member stays"),
        pytest.param(-1, (1,), ONLINE, {1}, None, (1, None), id="and leads when it is back"),
        pytest.param(-1, (1,), ONLINE, {2}, None, None, id="nobody else may"),
        pytest.param(1, (1,), UNCLEAN, {3}, (), (3, (3,)), id="unclean: anybody acceptable"),
        pytest.param(1, (1, 2), UNCLEAN, {2, 3}, (2,), (2, (2,)), id="unclean: clean if it can"),
        pytest.param(1, (1,), UNCLEAN, set(), (), (-1, None), id="unclean: nobody at all"),
    ],
)
def test_elections(
    leader: int,
    isr: tuple[int, ...],
    election: Election,
    active: set[int],
    wanted: tuple[int, ...] | None,
    expected: tuple[int, tuple[int, ...] | None] | None,
) -> None:
    record = _change(_partition(leader, isr), election, active, wanted)
    assert (record and (record.leader, record.isr)) == expected


def test_only_an_unclean_leader_recovers() -> None:
    clean = _change(_partition(1, (1, 2)), UNCLEAN, {2}, (2,))
    unclean = _change(_partition(1, (1,)), UNCLEAN, {2}, ())
    assert clean is not None
    assert clean.leader_recovering is None
    assert unclean is not None
    assert unclean.leader_recovering is True


def test_the_wanted_directories_decide() -> None:
    record = _change(_partition(1, (1, 2)), ONLINE, {1, 2}, (2,), (BAD, GOOD, GOOD))
    assert record is not None
    assert (record.leader, record.isr, record.directories) == (2, (2,), (BAD, GOOD, GOOD))


def test_nothing_new_is_no_record() -> None:
    before = _partition(1, (1, 2))
    assert _change(before, ONLINE, {1, 2}, (1, 2), (GOOD, GOOD, GOOD)) is None
