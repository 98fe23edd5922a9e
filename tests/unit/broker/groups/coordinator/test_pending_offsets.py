"""``PendingOffsets``: offsets of open transactions."""

from __future__ import annotations

from kraftjbod.broker.groups.classic.classic_group import GroupLimits
from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.coordinator.group_partition import GroupPartition
from kraftjbod.broker.groups.coordinator.pending_offsets import PendingOffset, PendingOffsets
from kraftjbod.broker.groups.records.group_records import CommittedOffset, OffsetFact
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from tests.unit.broker.groups.consumer.consumer_scene import CONSUMER

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
ONE, TWO = 7, 8


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset=offset)


class Log:
    """Facts of a group in the order of the log."""

    def __init__(self) -> None:
        limits = GroupLimits(initial_rebalance_delay_ms=0, max_size=9)
        self.groups = GroupPartition(limits, CONSUMER)
        self._end = 0

    def commit(self, where: TopicPartition, offset: int | None, producer_id: int = -1) -> None:
        committed = None if offset is None else at(offset)
        self.groups.take(OffsetFact("g", where, committed), self._end, producer_id)
        self._end += 1

    def end(self, producer_id: int, *, commits: bool = True) -> None:
        self.groups.transaction_ended(producer_id, self._end, commits=commits)
        self._end += 1

    @property
    def held(self) -> dict[TopicPartition, int]:
        return {where: one.offset for where, one in self.groups.offsets("g").items()}


def test_pending_offsets_apply_when_their_transaction_commits() -> None:
    log = Log()
    log.commit(A, 5, ONE)
    log.commit(B, 6, TWO)
    assert log.held == {} and log.groups.state_of("g") is GroupState.EMPTY
    log.end(ONE)
    log.end(TWO, commits=False)
    assert log.held == {A: 5} and not log.groups.pending.groups
    log.end(ONE)
    assert log.held == {A: 5}, "a marker without pending offsets"


def test_later_group_commit_overrides_a_pending_offset() -> None:
    log = Log()
    log.commit(A, 5, ONE)
    log.commit(A, 9)
    log.commit(B, 3)
    log.commit(B, 4, ONE)
    log.end(ONE)
    assert log.held == {A: 9, B: 4}


def test_marker_keeps_pending_offsets_that_follow_it() -> None:
    log = Log()
    log.commit(A, 5, ONE)
    log.commit(B, 6, ONE)
    log.groups.transaction_ended(ONE, 1, commits=True)
    assert log.held == {A: 5} and list(log.groups.pending.of_group("g")) == [B]
    log.end(ONE)
    assert log.held == {A: 5, B: 6} and not log.groups.pending.groups


def test_tombstone_removes_pending_offsets() -> None:
    log = Log()
    log.commit(A, 5, ONE)
    log.commit(A, 6, TWO)
    log.commit(A, None)
    log.commit(B, 7, TWO)
    for producer_id in (ONE, TWO):
        log.end(producer_id)
    assert log.held == {B: 7}


def test_pending_offsets_do_not_expire_but_are_deleted_with_the_group() -> None:
    log = Log()
    log.commit(A, 1)
    log.commit(B, 1)
    log.commit(A, 2, ONE)
    gone = [fact.topic_partition for fact in log.groups.expired("g", 10**9, 1)]  # type: ignore[union-attr]
    assert gone == [B]
    assert log.groups.check_deletion("g") is ErrorCode.NONE
    for fact in log.groups.deletion("g"):
        log.groups.take(fact)
    assert log.groups.state_of("g") is GroupState.DEAD


def test_pending_offset_is_open_until_its_commit_arrived_and_its_transaction_ended() -> None:
    pending = PendingOffsets()
    pending.arrives("g", [A])
    pending.arrives("g", [A])
    pending.arrived("g", [A])
    assert pending.is_open("g", A) and not pending.is_open("g", B)
    pending.add(ONE, PendingOffset("g", A, at(1)))
    pending.arrived("g", [A])
    assert pending.is_open("g", A) and list(pending.of_group("g")) == [A]
    assert pending.end(ONE, 1) == [PendingOffset("g", A, at(1))]
    assert not pending.is_open("g", A) and not pending.groups
