"""``MarkerQueue``: which partitions need markers, while leaders change."""

from __future__ import annotations

from kraftjbod.broker.transactions.marker_queue import Ending, MarkerQueue, Outcome
from kraftjbod.broker.transactions.transaction_records import TransactionMetadata, TransactionState
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicPartition
from kraftjbod.core.loop.timing import ExponentialBackoff

E = ErrorCode
A, B, C = (TopicPartition("t", index) for index in range(3))
ONE, TWO = BrokerId(1), BrokerId(2)


class World:
    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, BrokerId] = {A: ONE, B: ONE, C: TWO}
        backoff = ExponentialBackoff(initial_ms=10, max_ms=40, random_unit=lambda: 0.5)
        self.queue = MarkerQueue(leader_of=self.leaders.get, backoff=backoff)


def ending(producer_id: int = 7, name: str = "x") -> Ending:
    metadata = TransactionMetadata(
        producer_id=producer_id, timeout_ms=1, state=TransactionState.PREPARE_COMMIT
    )
    return Ending(name, metadata, index=0, coordinator_epoch=LeaderEpoch(3))


def test_marker_queue_combines_markers_per_leader() -> None:
    world, x, y = World(), ending(), ending(8, "y")
    assert world.queue.put(x, [A, B, C], 0) == world.queue.put(y, [A], 0) == frozenset()
    assert list(world.queue.idle_brokers()) == [ONE, TWO]
    assert world.queue.take(ONE) == {x: [A, B], y: [A]} and world.queue.take(TWO) == {x: [C]}
    assert list(world.queue.idle_brokers()) == []
    codes = {(7, A): E.NONE, (7, B): E.NONE, (8, A): E.NONE}
    assert world.queue.answered(ONE, codes, 0) == [
        Outcome(x, frozenset({A, B})),
        Outcome(y, frozenset({A})),
    ]
    assert len(world.queue) == 1, "one partition of x is pending"
    world.queue.answered(TWO, {(7, C): E.UNSUPPORTED_VERSION}, 0)
    assert len(world.queue) == 0


def test_marker_refused_or_lost_is_retried_with_the_current_leader() -> None:
    world, x = World(), ending()
    world.queue.put(x, [A, B], 0)
    world.queue.take(ONE)
    # The response for B is lost, and that for A names an error.
    assert world.queue.answered(ONE, {(7, A): E.NOT_LEADER_OR_FOLLOWER}, 100) == []
    assert world.queue.next_ms == 110 and world.queue.retry(109) == []
    assert list(world.queue.idle_brokers()) == []
    world.leaders[A] = TWO
    assert world.queue.retry(110) == []
    assert world.queue.take(TWO) == {x: [A]} and world.queue.take(ONE) == {x: [B]}


def test_marker_retry_completes_a_deleted_partition_without_a_marker() -> None:
    world, x = World(), ending()
    world.queue.put(x, [A, B], 0)
    world.queue.take(ONE)
    assert world.queue.answered(ONE, {}, 100) == []
    del world.leaders[B]
    assert world.queue.retry(110) == [Outcome(x, frozenset({B}))]
    assert world.queue.take(ONE) == {x: [A]}


def test_marker_without_a_leader_is_retried_with_backoff_and_delays_no_other() -> None:
    world, x = World(), ending()
    world.leaders[A] = NO_LEADER
    world.queue.put(x, [A, C], 0)
    assert world.queue.take(TWO) == {x: [C]}
    pauses, now_ms = [], 0
    for _ in range(4):
        assert world.queue.next_ms is not None
        pauses.append(world.queue.next_ms - now_ms)
        now_ms = world.queue.next_ms
        world.queue.retry(now_ms)
    assert pauses == [10, 20, 40, 40]


def test_marker_refused_as_fenced_drops_all_markers_of_its_transaction() -> None:
    for code in (E.INVALID_PRODUCER_EPOCH, E.TRANSACTION_COORDINATOR_FENCED):
        world, x = World(), ending()
        world.queue.put(x, [A, B, C], 0)
        world.queue.take(ONE)
        fenced = [Outcome(x, frozenset(), code)]
        assert world.queue.answered(ONE, {(7, A): E.NONE, (7, B): code}, 0) == fenced
        assert world.queue.take(TWO) == {} and len(world.queue) == 0


def test_late_response_for_a_former_coordinator_is_ignored() -> None:
    world, former, later = World(), ending(), ending()
    world.queue.put(former, [A, C], 0)
    world.queue.take(ONE)
    world.queue.drop_partition(0)
    world.queue.put(later, [A], 0)
    assert world.queue.answered(ONE, {(7, A): E.NONE}, 0) == []
    assert world.queue.take(ONE) == {later: [A]} and world.queue.take(TWO) == {}


def test_markers_of_deleted_partitions_are_done_immediately() -> None:
    world, x = World(), ending()
    world.leaders.clear()
    assert world.queue.put(x, [A], 0) == {A} and len(world.queue) == 0
