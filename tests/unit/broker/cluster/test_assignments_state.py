"""``AssignmentsState``: batches, one request at a time, and retries of refused assignments."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.broker.cluster.assignments_state import (
    MAX_REFUSALS_AWAITED,
    Accepted,
    Action,
    Answered,
    AssignmentRequested,
    AssignmentsState,
    Dropped,
    Failed,
    Send,
    WakeAt,
    WokeUp,
)
from kraftjbod.core.errors import InvalidTransition
from kraftjbod.core.ids import LOST_DIR, DirectoryId, TopicId, TopicIdPartition
from kraftjbod.core.loop.timing import ExponentialBackoff

A, B = DirectoryId(b"A" * 16), DirectoryId(b"B" * 16)
T, U = TopicId(b"t" * 16), TopicId(b"u" * 16)
GRANTED = Answered(refused=frozenset())


def key(index: int, topic: TopicId = T) -> TopicIdPartition:
    return TopicIdPartition(topic, index)


def machine(*, gone: set[TopicIdPartition] | None = None, max_batch: int = 3) -> AssignmentsState:
    left = gone if gone is not None else set()
    return AssignmentsState(
        is_replica=lambda partition: partition not in left,
        backoff=ExponentialBackoff(initial_ms=100, max_ms=10_000, random_unit=lambda: 0.5),
        gather_ms=20,
        max_batch=max_batch,
    )


def assign(m: AssignmentsState, index: int, directory_id: DirectoryId = A) -> list[Action]:
    return m.handle(AssignmentRequested(partition=key(index), directory_id=directory_id), 0)


def sent(actions: list[Action]) -> dict[TopicIdPartition, DirectoryId]:
    (send,) = [action for action in actions if isinstance(action, Send)]
    return {
        TopicIdPartition(topic.topic_id, index): directory.directory_id
        for directory in send.directories
        for topic in directory.topics
        for index in topic.partitions
    }


def test_assignments_gather_and_are_grouped_by_directory_and_topic() -> None:
    m = machine(max_batch=10)
    assert assign(m, 1) == [WakeAt(20)]
    assert assign(m, 0) == []
    assign(m, 2, B)
    m.handle(AssignmentRequested(partition=key(5, U), directory_id=A), 0)
    (send,) = m.handle(WokeUp(), 20)
    assert isinstance(send, Send)
    found = [
        (d.directory_id, [(t.topic_id, t.partitions) for t in d.topics]) for d in send.directories
    ]
    assert found == [(A, [(T, (0, 1)), (U, (5,))]), (B, [(T, (2,))])]
    assert m.queued == 4
    (accepted,) = m.handle(GRANTED, 30)
    assert isinstance(accepted, Accepted) and len(accepted.partitions) == 4 and m.queued == 0


def test_is_idle_with_many_waiting_assignments_allocates_no_copy() -> None:
    """A broker that reported 100,000 replicas at its start collected all of them for each
    assignment."""
    m = machine()
    for index in range(10_000):
        assign(m, index)
    tracemalloc.start()
    try:
        assert not m.is_idle
        assert tracemalloc.get_traced_memory()[1] < 10_000, "bytes"
    finally:
        tracemalloc.stop()


def test_full_batch_is_sent_immediately_and_the_rest_afterwards() -> None:
    m = machine()
    assign(m, 0)
    assign(m, 1)
    assert len(sent(assign(m, 2))) == 3
    assert assign(m, 3) == []
    assert sent(m.handle(GRANTED, 5)) == {key(3): A}
    m.handle(GRANTED, 6)
    assert m.queued == 0


def test_last_assignment_of_a_replica_wins() -> None:
    m = machine()
    assign(m, 0, A)
    assign(m, 0, B)
    assert m.queued == 1
    assert sent(m.handle(WokeUp(), 20)) == {key(0): B}


def test_assignment_in_flight_is_not_repeated() -> None:
    m = machine()
    assign(m, 0, A)
    m.handle(WokeUp(), 20)
    assert assign(m, 0, A) == [] and m.queued == 1
    assert m.handle(GRANTED, 30) == [Accepted((key(0),))] and m.queued == 0


def test_changed_assignment_in_flight_is_sent_next_unless_it_is_reverted() -> None:
    m = machine()
    assign(m, 0, A)
    m.handle(WokeUp(), 20)
    assign(m, 0, B)
    assert m.queued == 1
    assign(m, 0, A)
    assert m.handle(GRANTED, 30) == [Accepted((key(0),))]
    assign(m, 1, A)
    m.handle(WokeUp(), 60)
    assign(m, 1, B)
    assert sent(m.handle(GRANTED, 70)) == {key(1): B}


def test_refused_assignment_is_retried_with_growing_backoff() -> None:
    m = machine()
    assign(m, 0)
    assign(m, 1)
    m.handle(WokeUp(), 20)
    assert m.handle(Answered(refused=frozenset({key(1)})), 30) == [
        Accepted((key(0),)),
        WakeAt(130),
    ]
    assert m.queued == 1
    assert sent(m.handle(WokeUp(), 130)) == {key(1): A}
    assert m.handle(Answered(refused=frozenset({key(1)})), 140) == [WakeAt(340)]
    m.handle(WokeUp(), 340)
    assert m.handle(GRANTED, 350) == [Accepted((key(1),))] and m.queued == 0


def test_permanently_refused_assignment_delays_no_other_and_does_not_block_idle() -> None:
    m, now_ms, sendings = machine(), 30, 0
    assign(m, 0)
    m.handle(WokeUp(), 20)
    actions = m.handle(Answered(refused=frozenset({key(0)})), now_ms)
    while not m.is_idle:
        sendings += 1
        # Other assignments are sent while the refused one waits.
        others = m.handle(AssignmentRequested(partition=key(sendings), directory_id=B), now_ms)
        assert others == [WakeAt(now_ms + 20)]
        assert sent(m.handle(WokeUp(), now_ms + 20)) == {key(sendings): B}
        (_, due) = m.handle(GRANTED, now_ms + 25)
        assert isinstance(due, WakeAt) and due.at_ms > now_ms + 25
        # Repeating the same assignment does not shorten its backoff.
        assert assign(m, 0) == []
        now_ms = due.at_ms
        assert sent(m.handle(WokeUp(), now_ms)) == {key(0): A}
        actions = m.handle(Answered(refused=frozenset({key(0)})), now_ms)
        assert actions == [WakeAt(now_ms + min(10_000, 100 << sendings))]
    assert sendings == MAX_REFUSALS_AWAITED and m.queued == m.queued_into(A) == 1
    assert m.handle(AssignmentRequested(partition=key(0), directory_id=B), now_ms) == [
        WakeAt(now_ms + 20)
    ]
    assert not m.is_idle, "a changed assignment is worth waiting for"


def test_failed_request_requeues_assignments_but_keeps_newer_ones() -> None:
    m = machine()
    assign(m, 0, A)
    assign(m, 1, A)
    m.handle(WokeUp(), 20)
    assign(m, 0, B)
    assert m.handle(Failed(), 30) == [WakeAt(130)]
    assert sent(m.handle(WokeUp(), 130)) == {key(0): B, key(1): A}


def test_full_batch_after_a_failure_waits_for_the_backoff() -> None:
    m = machine()
    assign(m, 0)
    m.handle(WokeUp(), 20)
    m.handle(Failed(), 30)
    assert [assign(m, index) for index in (1, 2, 3)] == [[], [], []]
    assert len(sent(m.handle(WokeUp(), 130))) == 3


def test_assignments_of_unhosted_replicas_are_dropped() -> None:
    """Otherwise assignments of a deleted topic would be retried forever."""
    gone: set[TopicIdPartition] = set()
    m = machine(gone=gone)
    assign(m, 0)
    assign(m, 1)
    gone.add(key(0))
    assert sent(m.handle(WokeUp(), 20)) == {key(1): A}
    gone.add(key(1))
    m.handle(Answered(refused=frozenset({key(1)})), 30)
    assert m.handle(WokeUp(), 130) == [Dropped((key(1),))] and m.queued == 0


def test_late_success_of_an_older_assignment_is_not_reported_to_the_newer_one() -> None:
    """KIP-858: the answer to a cancelled move does not accept the move that followed it."""
    m = machine()
    assign(m, 0, B)
    m.handle(WokeUp(), 20)
    assign(m, 0, A)
    actions = m.handle(GRANTED, 30)
    assert not [action for action in actions if isinstance(action, Accepted)]
    assert sent(actions) == {key(0): A}
    assert m.handle(GRANTED, 40) == [Accepted((key(0),))]


def test_assignment_of_a_lost_replica_is_sent_after_the_report_of_its_loss() -> None:
    """Otherwise a failing move would withdraw the report that a copy lacks records."""
    m = machine()
    assign(m, 0, LOST_DIR)
    assign(m, 0, B)
    assert assign(m, 0, A) == [] and m.queued == m.queued_into(A) == 1 and m.is_losing(key(0))
    assert sent(m.handle(WokeUp(), 20)) == {key(0): LOST_DIR}
    assert m.handle(Answered(refused=frozenset({key(0)})), 30) == [WakeAt(130)]
    assert m.is_losing(key(0))
    assert sent(m.handle(WokeUp(), 130)) == {key(0): LOST_DIR}
    actions = m.handle(GRANTED, 140)
    assert sent(actions) == {key(0): A} and len(actions) == 1 and not m.is_losing(key(0))
    assert m.handle(GRANTED, 150) == [Accepted((key(0),))] and m.is_idle


def test_queued_into_lasts_until_the_assignment_is_accepted() -> None:
    m = machine()
    assert not m.queued_into(A)
    assign(m, 0, A)
    assert m.queued_into(A) and not m.queued_into(B)
    m.handle(WokeUp(), 20)
    assert m.queued_into(A)
    m.handle(GRANTED, 30)
    assert not m.queued_into(A)


def test_unexpected_answer_raises_invalid_transition() -> None:
    for answer in (GRANTED, Failed()):
        with pytest.raises(InvalidTransition):
            machine().handle(answer, 0)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("assign"), st.integers(0, 9), st.sampled_from([A, B, LOST_DIR])),
            st.tuples(st.just("answer"), st.sets(st.integers(0, 9)), st.booleans()),
        ),
        max_size=60,
    )
)
def test_assignments_in_any_order_report_all_losses_and_end_with_the_last_request(
    steps: list[tuple[str, object, object]],
) -> None:
    m = machine()
    requested: dict[TopicIdPartition, DirectoryId] = {}
    known: dict[TopicIdPartition, DirectoryId] = {}
    unreported_losses: set[TopicIdPartition] = set()
    request: dict[TopicIdPartition, DirectoryId] = {}
    now_ms, wake_ms = 0, -1

    def run(actions: list[Action]) -> None:
        nonlocal request, wake_ms
        for action in actions:
            if isinstance(action, WakeAt):
                assert action.at_ms >= now_ms
                wake_ms = action.at_ms
            elif isinstance(action, Accepted):
                assert all(
                    known[partition] == requested[partition] for partition in action.partitions
                )
            else:
                assert not request and len(sent([action])) <= 3
                request = sent([action])
                assert all(request[k] == LOST_DIR for k in request.keys() & unreported_losses)
        m.check_invariants()
        assert all(map(m.is_losing, unreported_losses))

    def answer(refused: frozenset[TopicIdPartition], arrives: bool) -> None:
        nonlocal request, wake_ms, now_ms
        if not request and wake_ms >= 0:
            now_ms, wake_ms = max(now_ms, wake_ms), -1
            run(m.handle(WokeUp(), now_ms))
        if not request:
            return
        asked, request = request, {}
        if not arrives:
            run(m.handle(Failed(), now_ms))
            return
        known.update({k: v for k, v in asked.items() if k not in refused})
        unreported_losses.difference_update(
            k for k, v in asked.items() if v == LOST_DIR and k not in refused
        )
        run(m.handle(Answered(refused=refused), now_ms))

    for kind, first, second in steps:
        if kind == "assign":
            assert isinstance(first, int) and isinstance(second, DirectoryId)
            requested[key(first)] = second
            unreported_losses |= {key(first)} if second == LOST_DIR else set()
            run(m.handle(AssignmentRequested(partition=key(first), directory_id=second), now_ms))
        else:
            assert isinstance(first, set)
            answer(frozenset(map(key, first)), bool(second))
    for _ in range(20):
        answer(frozenset(), True)
    assert known == requested and m.queued == 0
