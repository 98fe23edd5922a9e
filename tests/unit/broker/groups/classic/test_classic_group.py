"""``ClassicGroup``: the state machine of a classic group."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kraftjbod.broker.groups.classic.classic_group import (
    NEW_MEMBER_TIMEOUT_MS,
    ClassicGroup,
    GroupLimits,
)
from kraftjbod.broker.groups.classic.group_events import (
    Answer,
    GroupState,
    GroupWritten,
    HeartbeatReceived,
    JoinAnswer,
    JoinRequested,
    LeaveRequested,
    SyncRequested,
    TimePassed,
    Unloaded,
    WriteGroup,
)
from kraftjbod.core.errors import ErrorCode

E = ErrorCode
DELAY_MS, SESSION_MS, REBALANCE_MS = 3_000, 10_000, 60_000
RANGE = (("range", b"topics"),)


class Scene:
    """A group with its events and answers. Tokens are numbers."""

    def __init__(self, *, max_size: int = 100, delay_ms: int = DELAY_MS) -> None:
        limits = GroupLimits(initial_rebalance_delay_ms=delay_ms, max_size=max_size)
        self.group = ClassicGroup("g", limits)
        self.now_ms = 1_000
        self.tokens = itertools.count(1)
        self.answers: dict[int, Any] = {}
        self.writes: list[WriteGroup] = []
        self.ids = (f"m{number}" for number in itertools.count(1))

    def feed(self, event: Any) -> None:
        for action in self.group.handle(event, self.now_ms):
            match action:
                case Answer(token, answer):
                    assert token not in self.answers, "answered twice"
                    self.answers[token] = answer  # type: ignore[index]  # numbers here
                case WriteGroup():
                    self.writes.append(action)

    def join(self, member_id: str = "", **more: Any) -> int:
        token = next(self.tokens)
        asked = {
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "fresh_member_id": next(self.ids),
            **more,
        }
        self.feed(JoinRequested(token=token, member_id=member_id, **asked))
        return token

    def enter(self, **more: Any) -> tuple[str, int]:
        """Join a new dynamic member, which joins again with the id of the first response."""
        first = self.answers[self.join(**more)]
        assert first.code is E.MEMBER_ID_REQUIRED
        return first.member_id, self.join(first.member_id, **more)

    def sync(self, member_id: str, assignments: Any = (), **more: Any) -> int:
        token = next(self.tokens)
        asked = {"generation": self.group.generation, **more}
        self.feed(
            SyncRequested(token=token, member_id=member_id, assignments=dict(assignments), **asked)
        )
        return token

    def beat(self, member_id: str, **more: Any) -> ErrorCode:
        token = next(self.tokens)
        asked = {"generation": self.group.generation, **more}
        self.feed(HeartbeatReceived(token=token, member_id=member_id, **asked))
        code: ErrorCode = self.answers[token].code
        return code

    def leave(self, *members: tuple[str, str | None]) -> tuple[ErrorCode, ...]:
        token = next(self.tokens)
        self.feed(LeaveRequested(token=token, members=members))
        codes: tuple[ErrorCode, ...] = self.answers[token].codes
        return codes

    def wrote(self, code: ErrorCode = E.NONE) -> None:
        self.feed(GroupWritten(self.writes.pop(0).write_id, code))

    def wait(self, ms: int) -> None:
        """Advance the time, and deliver an event at each deadline of the group."""
        end_ms = self.now_ms + ms
        while self.group.next_deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.group.next_deadline_ms)
            self.feed(TimePassed())
            assert self.group.next_deadline_ms > self.now_ms, "the deadline was not advanced"
        self.now_ms = end_ms

    def stable(self, count: int = 2, **more: Any) -> list[str]:
        """Return the members of a stable group of ``count``; the first one leads."""
        entered = [self.enter(**more) for _ in range(count)]
        self.wait(4 * DELAY_MS)
        members = [member_id for member_id, _ in entered]
        for member_id in members:
            is_leader = member_id == self.group.leader
            self.sync(member_id, {m: m.encode() for m in members} if is_leader else ())
        self.wrote()
        assert self.group.state is GroupState.STABLE
        return members

    def code(self, token: int) -> ErrorCode | None:
        answer = self.answers.get(token)
        return None if answer is None else answer.code


# --- joining --------------------------------------------------------------------------------------


def test_join_of_concurrent_members_creates_one_generation() -> None:
    scene = Scene()
    first, first_join = scene.enter()
    scene.wait(DELAY_MS - 1)
    second, second_join = scene.enter()
    assert not {first_join, second_join} & scene.answers.keys(), (
        "the join still waits for more members"
    )
    scene.wait(DELAY_MS + 1)
    answer: JoinAnswer = scene.answers[first_join]
    assert (answer.generation, answer.leader, answer.protocol_name) == (1, first, "range")
    assert answer.members == ((first, None, b"topics"), (second, None, b"topics"))
    assert scene.answers[second_join].members == ()


def test_initial_rebalance_delay_ends_with_the_rebalance_timeout() -> None:
    scene = Scene()
    _, join = scene.enter(rebalance_timeout_ms=5_000)
    for _ in range(4):
        scene.wait(1_400)
        scene.enter(rebalance_timeout_ms=5_000)
    assert scene.code(join) is E.NONE


def test_sync_returns_assignments_after_they_are_written() -> None:
    scene = Scene()
    (one, _), (two, _) = scene.enter(), scene.enter()
    scene.wait(4 * DELAY_MS)
    of_two = scene.sync(two)
    of_one = scene.sync(one, {one: b"1", two: b"2", "stranger": b"3"})
    assert (scene.code(of_one), scene.code(of_two)) == (None, None)
    scene.wrote()
    assert [scene.answers[token].assignment for token in (of_one, of_two)] == [b"1", b"2"]
    assert scene.beat(one) is E.NONE
    assert scene.answers[scene.sync(two)].assignment == b"2"


def test_sync_with_failed_write_starts_another_rebalance() -> None:
    scene = Scene()
    one, _ = scene.enter()
    scene.wait(DELAY_MS)
    sync = scene.sync(one, {one: b"1"})
    scene.wrote(E.COORDINATOR_NOT_AVAILABLE)
    assert scene.code(sync) is E.COORDINATOR_NOT_AVAILABLE
    assert scene.beat(one) is E.REBALANCE_IN_PROGRESS
    assert scene.answers[scene.join(one)].generation == 2


def test_new_member_makes_all_members_rejoin() -> None:
    scene = Scene()
    one, two = scene.stable()
    three, third_join = scene.enter()
    assert scene.beat(one) is E.REBALANCE_IN_PROGRESS
    first_join = scene.join(one)
    assert scene.code(third_join) is None
    second_join = scene.join(two)
    joins = [scene.answers[token] for token in (first_join, second_join, third_join)]
    assert [answer.generation for answer in joins] == [2, 2, 2]
    assert {member for member, _, _ in joins[0].members} == {one, two, three}
    assert scene.beat(one, generation=1) is E.ILLEGAL_GENERATION


def test_member_that_does_not_rejoin_in_time_is_removed() -> None:
    scene = Scene()
    one, two = scene.stable()
    join = scene.join(one, protocols=(("range", b"other topics"),))
    for _ in range(7):
        scene.wait(9_000)
        scene.beat(two)
    assert scene.answers[join].members == ((one, None, b"other topics"),)
    assert scene.beat(two) is E.UNKNOWN_MEMBER_ID


def test_member_that_does_not_sync_in_time_is_removed() -> None:
    scene = Scene()
    one, two = scene.stable()
    joins = [scene.join(one), scene.join(two)]
    assert [scene.code(join) for join in joins] == [E.NONE, E.NONE]
    scene.sync(two)
    for _ in range(7):
        scene.wait(9_000)
        scene.beat(one)
    assert one not in scene.group.members and scene.group.leader == two


@pytest.mark.parametrize("leads", [True, False])
def test_unchanged_rejoin_in_a_stable_group_rebalances_only_for_the_leader(leads: bool) -> None:
    """The leader may have new topics; other members receive the current generation."""
    scene = Scene()
    one, two = scene.stable()
    answer = scene.answers.get(scene.join(one if leads else two))
    assert (answer is None) == leads
    assert scene.group.generation == 1


def test_protocol_selection_prefers_the_most_voted_common_protocol() -> None:
    scene = Scene()
    sticky_first = {"protocols": (("sticky", b"s"), ("range", b"r"), ("own", b"o"))}
    scene.enter(**sticky_first)
    scene.enter(**sticky_first)
    _, join = scene.enter(protocols=(("range", b"R"), ("sticky", b"S")))
    scene.wait(4 * DELAY_MS)
    assert scene.answers[join].protocol_name == "sticky"
    assert scene.code(scene.join(protocols=(("own", b""),))) is E.INCONSISTENT_GROUP_PROTOCOL
    assert scene.code(scene.join(protocol_type="connect")) is E.INCONSISTENT_GROUP_PROTOCOL


def test_unused_member_id_expires_after_the_session_timeout() -> None:
    scene = Scene()
    one, two = scene.stable()
    member_id = scene.answers[scene.join()].member_id
    scene.join(one, protocols=(("range", b"x"),))
    join = scene.join(two)
    assert scene.code(join) is None, "the group waits for the pending member"
    scene.wait(SESSION_MS)
    assert scene.code(join) is E.NONE
    assert scene.code(scene.join(member_id)) is E.UNKNOWN_MEMBER_ID


def test_new_member_without_heartbeat_is_removed_after_the_new_member_timeout() -> None:
    scene = Scene()
    one, two = scene.stable(rebalance_timeout_ms=NEW_MEMBER_TIMEOUT_MS * 3)
    _, join = scene.enter()
    for _ in range(NEW_MEMBER_TIMEOUT_MS // 9_000 + 1):
        scene.wait(9_000)
        scene.beat(one)
        scene.beat(two)
    assert scene.code(join) is E.UNKNOWN_MEMBER_ID


def test_join_of_a_full_group_returns_group_max_size_reached() -> None:
    scene = Scene(max_size=2)
    one, two = scene.stable()
    assert scene.code(scene.join()) is E.GROUP_MAX_SIZE_REACHED
    assert scene.code(scene.join(two)) is E.NONE
    assert scene.beat(one) is E.NONE


# --- leaving --------------------------------------------------------------------------------------


def test_leave_group_removes_members_and_the_last_one_empties_the_group() -> None:
    scene = Scene()
    one, two = scene.stable()
    assert scene.leave((one, None)) == (E.NONE,)
    assert scene.beat(two) is E.REBALANCE_IN_PROGRESS
    assert scene.leave((two, None), ("unknown", None)) == (E.NONE, E.UNKNOWN_MEMBER_ID)
    assert scene.group.state is GroupState.EMPTY
    kept = scene.writes[-1].group
    assert (kept.generation, kept.members, kept.protocol_name) == (2, (), None)


def test_session_timeout_removes_silent_members_but_not_waiting_ones() -> None:
    scene = Scene()
    one, two = scene.stable()
    waiting = scene.join(two, protocols=(("range", b"x"),))
    scene.wait(SESSION_MS)
    assert one not in scene.group.members
    assert scene.answers[waiting].members == ((two, None, b"x"),)


def test_unloaded_group_answers_waiting_members_with_not_coordinator() -> None:
    scene = Scene()
    scene.stable()
    _, join = scene.enter()
    scene.feed(Unloaded())
    assert scene.code(join) is E.NOT_COORDINATOR
    assert scene.code(scene.join()) is E.COORDINATOR_NOT_AVAILABLE


# --- static members -------------------------------------------------------------------------------


def static_pair(scene: Scene) -> list[str]:
    joins = [scene.join(instance_id=name) for name in ("left", "right")]
    scene.wait(4 * DELAY_MS)
    members = [scene.answers[token].member_id for token in joins]
    scene.sync(members[1], instance_id="right")
    scene.sync(members[0], {m: m.encode() for m in members}, instance_id="left")
    scene.wrote()
    return members


def test_static_member_rejoins_without_a_rebalance() -> None:
    scene = Scene()
    left, right = static_pair(scene)
    join = scene.join(instance_id="left")
    assert scene.code(join) is None, "the new member id is written first"
    scene.wrote()
    answer: JoinAnswer = scene.answers[join]
    assert (answer.generation, answer.leader, answer.skip_assignment) == (1, answer.member_id, True)
    synced = scene.answers[scene.sync(answer.member_id, instance_id="left")]
    assert synced.assignment == left.encode()
    assert scene.beat(left, instance_id="left") is E.FENCED_INSTANCE_ID
    assert scene.beat(right, instance_id="right") is E.NONE


def test_rejoined_static_leader_without_skip_assignment_sees_the_former_leader() -> None:
    scene = Scene()
    left, _ = static_pair(scene)
    join = scene.join(instance_id="left", knows_skipping=False)
    scene.wrote()
    answer: JoinAnswer = scene.answers[join]
    assert answer.leader == left != answer.member_id and answer.members == ()


def test_static_rejoin_with_failed_write_has_no_effect() -> None:
    scene = Scene()
    left, _ = static_pair(scene)
    join = scene.join(instance_id="left")
    scene.wrote(E.NOT_COORDINATOR)
    assert scene.code(join) is E.NOT_COORDINATOR
    assert scene.beat(left, instance_id="left") is E.NONE


def test_static_member_keeps_the_rebalance_waiting_until_its_session_ends_or_it_is_removed() -> (
    None
):
    scene = Scene()
    left, right = static_pair(scene)
    join = scene.join(right, instance_id="right", protocols=(("range", b"x"),))
    scene.wait(SESSION_MS - 1)
    assert scene.code(join) is None
    assert scene.leave(("", "left"), ("", "unknown")) == (E.NONE, E.UNKNOWN_MEMBER_ID)
    assert scene.answers[join].leader == right
    assert scene.beat(left, instance_id="left") is E.UNKNOWN_MEMBER_ID


# --- commits and loading --------------------------------------------------------------------------


def test_check_commit_requires_a_member_of_the_current_generation() -> None:
    scene = Scene()

    def commit(member_id: str = "", generation: int = -1) -> ErrorCode:
        return scene.group.check_commit(member_id, None, generation, scene.now_ms)

    assert commit() is E.NONE, "any client may commit to an empty group"
    one, two = scene.stable()
    assert commit() is E.UNKNOWN_MEMBER_ID
    assert commit(one, 1) is E.NONE
    assert commit(one, 0) is E.ILLEGAL_GENERATION
    scene.join(one)
    assert commit(two, 1) is E.NONE, "the partitions are not revoked yet"
    scene.join(two)
    assert commit(two, 2) is E.REBALANCE_IN_PROGRESS


def test_loaded_group_continues_in_its_written_state() -> None:
    scene = Scene()
    one, two = scene.stable()
    scene.leave((two, None))
    scene.sync(one, generation=scene.answers[scene.join(one)].generation, assignments={one: b"all"})
    kept = scene.writes[0].group
    again = Scene()
    again.now_ms = 77_000
    again.group.load(kept, again.now_ms)
    assert again.group.state is GroupState.STABLE
    assert again.beat(one) is E.NONE
    assert again.answers[again.sync(one)].assignment == b"all"
    again.wait(SESSION_MS)
    assert again.group.state is GroupState.EMPTY
