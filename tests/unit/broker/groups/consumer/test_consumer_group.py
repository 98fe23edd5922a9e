"""``ConsumerGroup``: the state machine of a consumer group (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.broker.groups.classic.group_events import GroupState, TimePassed, Unloaded
from kraftjbod.broker.groups.consumer.consumer_group_events import (
    LEAVING,
)
from kraftjbod.broker.groups.records.consumer_group_records import MemberFact
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.records import build_batch
from tests.unit.broker.groups.consumer.consumer_scene import (
    INTERVAL_MS,
    REBALANCE_MS,
    SESSION_MS,
    ConsumerScene,
    two,
)

E = ErrorCode


def test_consumer_group_revokes_a_partition_before_it_is_reassigned() -> None:
    scene = ConsumerScene()
    everything = scene.join("a").assignment
    scene.wait(INTERVAL_MS)
    epoch = scene.join("b").epoch
    kept = scene.beat("a", 2).assignment
    assert everything is not None and kept is not None and kept < everything
    assert not scene.beat("b", epoch).assignment, "a has not confirmed the revocation"
    scene.beat("a", 2, owned=kept)
    assert scene.beat("b", epoch).assignment == everything - kept


def test_member_that_does_not_revoke_in_time_is_removed() -> None:
    scene = ConsumerScene()
    scene.join("a")
    scene.wait(INTERVAL_MS)
    scene.join("b", rebalance_timeout_ms=1)
    reply = scene.beat("a", 2)
    assert reply.assignment is not None and len(reply.assignment) == 2
    for _ in range(REBALANCE_MS // 5_000 - 1):
        scene.wait(5_000)
        scene.beat("a", 2)  # A heartbeat without owned partitions.
        scene.beat("b", scene.group.state.current("b").epoch)
    scene.wait(5_000)
    assert scene.beat("a", 2).code is E.UNKNOWN_MEMBER_ID
    reply = scene.beat("b", scene.group.state.current("b").epoch)
    assert reply.assignment == scene.topics.all("t")


def test_member_without_heartbeat_is_removed_after_the_session_timeout() -> None:
    scene, epoch = two()
    scene.wait(SESSION_MS - 1)
    scene.beat("a", epoch)
    scene.wait(1)
    assert list(scene.group.state.members) == ["a"]
    assert scene.beat("a", epoch).assignment == scene.topics.all("t")


def test_group_is_empty_after_its_last_member_leaves() -> None:
    scene, epoch = two()
    for member_id in "ab":
        assert scene.beat(member_id, LEAVING).epoch == LEAVING
    assert scene.group.state.phase is GroupState.EMPTY and scene.group.is_idle
    assert scene.beat("a", epoch).code is E.UNKNOWN_MEMBER_ID
    assert scene.join("c").assignment == scene.topics.all("t")


@pytest.mark.parametrize(
    ("epoch", "owned", "code"),
    [
        pytest.param(3, None, E.NONE, id="current"),
        pytest.param(4, None, E.FENCED_MEMBER_EPOCH, id="newer"),
        pytest.param(2, None, E.FENCED_MEMBER_EPOCH, id="previous, owned partitions missing"),
        pytest.param(2, (0, 1), E.NONE, id="previous, after a lost response"),
        pytest.param(2, (0, 1, 2, 3), E.FENCED_MEMBER_EPOCH, id="previous, owns too much"),
        pytest.param(1, (0, 1), E.FENCED_MEMBER_EPOCH, id="outdated"),
        pytest.param(0, (), E.NONE, id="rejoin"),
    ],
)
def test_consumer_heartbeat_epoch_must_be_current_previous_or_zero(
    epoch: int, owned: Any, code: ErrorCode
) -> None:
    scene, _ = two()
    own = sorted(scene.group.state.current("a").assigned)
    others = sorted(scene.group.state.current("b").assigned)
    said = None if owned is None else frozenset([*own, *others][: len(owned)])
    answer = scene.beat("a", epoch, owned=said)
    assert answer.code is code
    if epoch == 0:
        assert answer.assignment == frozenset(own), (
            "a rejoining member receives its full assignment"
        )


def test_assignment_interval_delays_assignments_but_not_joins() -> None:
    scene, epoch = two()
    scene.wait(INTERVAL_MS)
    assert scene.join("c").epoch == epoch + 1, "the interval has passed"
    joined = scene.join("d")
    assert (joined.epoch, scene.group.state.epoch) == (epoch + 1, epoch + 2)
    assert scene.group.state.phase is GroupState.ASSIGNING
    scene.wait(INTERVAL_MS)
    scene.beat("d", joined.epoch)
    assert scene.group.state.phase is GroupState.RECONCILING


def test_invalid_consumer_group_joins_are_rejected() -> None:
    scene = ConsumerScene(max_size=1)
    assert scene.beat("a", 3).code is E.UNKNOWN_MEMBER_ID
    assert scene.join("a", assignor="mine").code is E.UNSUPPORTED_ASSIGNOR
    assert scene.join("a", topic_regex="a(").code is E.INVALID_REGULAR_EXPRESSION
    assert not scene.log, "rejected joins leave no facts"
    assert scene.join("a").code is E.NONE
    assert scene.join("b").code is E.GROUP_MAX_SIZE_REACHED


def test_heartbeats_during_a_write_share_the_next_batch() -> None:
    scene = ConsumerScene()
    scene.writes_at_once = False
    tokens = [
        scene.ask(
            name,
            0,
            topic_names=frozenset({"t"}),
            rebalance_timeout_ms=1,
            owned=frozenset(),
        )
        for name in ("a", "b", "c")
    ]
    assert len(scene.writes) == 1 and not scene.answers
    scene.wrote()
    assert scene.answers.keys() == {tokens[0]} and len(scene.writes) == 1
    scene.wrote()
    assert scene.answers.keys() == set(tokens)


def test_batch_refused_as_too_large_is_decided_again_in_smaller_batches() -> None:
    scene = ConsumerScene(assignment_interval_ms=0)
    scene.writes_at_once = False
    joining = {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": frozenset({"t"})}
    tokens = [scene.ask(f"m{n}", 0, owned=frozenset(), **joining) for n in range(9)]
    scene.wrote()
    sizes: list[int] = []
    while scene.writes:
        members = [fact for fact in scene.writes[0].facts if isinstance(fact, MemberFact)]
        sizes.append(len(members))
        is_too_large = len(members) > 2
        scene.wrote(E.UNKNOWN_SERVER_ERROR if is_too_large else E.NONE, is_too_large=is_too_large)
    assert sizes[0] == 8 and 0 < sizes[1] < 8
    assert [scene.answers[token].code for token in tokens] == [E.NONE] * 9
    # A single request that is too large is refused, so that its member does not join.
    token = scene.ask("large", 0, owned=frozenset(), **joining)
    scene.wrote(E.UNKNOWN_SERVER_ERROR, is_too_large=True)
    assert scene.answers[token].code is E.UNKNOWN_SERVER_ERROR and not scene.writes
    assert scene.group.state.members.keys() == {f"m{n}" for n in range(9)}


def test_members_with_simultaneous_session_end_are_removed_in_limited_batches() -> None:
    scene = ConsumerScene(assignment_interval_ms=0)
    for number in range(20):
        scene.join(f"m{number}")
    scene.writes_at_once, scene.max_batch_bytes = False, 700
    scene.now_ms += SESSION_MS
    scene.feed(TimePassed())
    batches = 0
    while scene.writes:
        size_bytes = len(build_batch(scene.writes[0].records))
        assert size_bytes <= 700
        batches += 1
        scene.wrote()
    assert not scene.group.state.members and batches > 1


def test_failed_write_reverts_the_join() -> None:
    scene = ConsumerScene()
    scene.writes_at_once = False
    more: Any = {"topic_names": frozenset({"t"}), "rebalance_timeout_ms": 1, "owned": frozenset()}
    token = scene.ask("a", 0, **more)
    scene.wrote(E.COORDINATOR_NOT_AVAILABLE)
    assert scene.answers[token].code is E.COORDINATOR_NOT_AVAILABLE
    assert not scene.group.is_used and not list(scene.group.state.facts())


def test_removal_of_silent_members_is_retried_after_a_failed_write() -> None:
    scene, epoch = two()
    scene.writes_at_once = False
    scene.wait(SESSION_MS)
    assert len(scene.writes) == 1
    scene.wrote(E.COORDINATOR_NOT_AVAILABLE)
    assert len(scene.group.state.members) == 2
    scene.wait(2_000)
    scene.wrote()
    assert not scene.group.state.members
    assert scene.group.state.epoch > epoch


def test_unloaded_consumer_group_answers_waiting_members_with_not_coordinator() -> None:
    scene = ConsumerScene()
    scene.writes_at_once = False
    tokens = [scene.ask(name, 0, topic_names=frozenset(), owned=frozenset()) for name in "ab"]
    scene.feed(Unloaded())
    assert [scene.answers[token].code for token in tokens] == [E.NOT_COORDINATOR] * 2
    scene.wrote()
    assert scene.group.next_deadline_ms > 1 << 60
