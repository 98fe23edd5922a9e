"""Random events of a classic group, with invariants that hold after each of them."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.broker.groups.classic.classic_group import NEVER
from kraftjbod.broker.groups.classic.group_events import (
    GroupState,
    GroupWritten,
    JoinAnswer,
    SyncAnswer,
    Unloaded,
)
from kraftjbod.core.errors import ErrorCode
from tests.unit.broker.groups.classic.test_classic_group import RANGE, Scene

E = ErrorCode


class Walk(Scene):
    """Members with random requests, and the invariants of the group after each step."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        super().__init__(
            max_size=self.rng.choice((2, 4, 100)), delay_ms=self.rng.choice((0, 3_000))
        )
        self.asked: dict[int, Any] = {}
        self.known_ids: list[str] = []
        self.generations: dict[int, set[tuple[str, str]]] = defaultdict(set)
        self.last_generation = 0
        #: Assignments whose write succeeded, by generation and member.
        self.assigned: dict[tuple[int, str], set[bytes]] = defaultdict(set)

    def feed(self, event: Any) -> None:
        if hasattr(event, "token"):
            self.asked[event.token] = event
        before = set(self.answers)
        super().feed(event)
        for token in self.answers.keys() - before:
            self.check_answer(self.asked[token], self.answers[token])
        self.check_group()

    def check_answer(self, asked: Any, answer: Any) -> None:
        if isinstance(answer, JoinAnswer):
            if answer.member_id:
                self.known_ids.append(answer.member_id)
            if answer.code is E.NONE:
                self.generations[answer.generation].add((answer.protocol_name or "", ""))
                names = {protocol for protocol, _ in self.generations[answer.generation]}
                assert len(names) == 1, "one generation, one protocol"
                if answer.members:
                    assert answer.leader == answer.member_id
                    assert answer.member_id in {member for member, _, _ in answer.members}
        if isinstance(answer, SyncAnswer) and answer.code is E.NONE:
            written = self.assigned[asked.generation, asked.member_id]
            assert answer.assignment in written, "exactly what the leader gave it"

    def check_group(self) -> None:
        group = self.group
        assert group.generation >= self.last_generation
        self.last_generation = group.generation
        assert (group.leader is None) or group.leader in group.members
        statics = {one.instance_id: one.member_id for one in group.members.values()}
        statics.pop(None, None)
        assert statics == group.static_members
        assert all(one.member_id == key for key, one in group.members.items())
        assert not group.members.keys() & group.pending.keys()
        waiting = [
            token
            for one in group.members.values()
            for token in (one.join_token, one.sync_token)
            if token is not None
        ]
        assert len(set(waiting)) == len(waiting) and not set(waiting) & self.answers.keys()
        if not self.writes and (waiting or group.members or group.pending):
            assert group.next_deadline_ms < NEVER, "the group waits without a deadline"
        if group.state in (GroupState.STABLE, GroupState.EMPTY):
            assert not waiting
        if group.state is GroupState.EMPTY:
            assert not group.members

    def step(self) -> None:
        rng, group = self.rng, self.group
        # A member knows its id only after the response.
        informed = [member_id for member_id in group.members if member_id in self.known_ids]
        known = rng.choice([*informed, *group.pending, *self.known_ids[-5:], "stranger", ""])
        instance = rng.choice((None, None, None, "a", "b"))
        generation = group.generation - (rng.random() < 0.1)
        match rng.choices(range(7), (5, 5, 3, 1, 4, 3, 1))[0]:
            case 0:
                protocols = rng.choice(
                    (RANGE, RANGE, (("range", b"2"), ("sticky", b"")), (("sticky", b""),))
                )
                self.join(
                    "" if rng.random() < 0.4 else known,
                    instance_id=instance,
                    protocols=protocols,
                    asks_again=rng.random() < 0.7,
                    knows_skipping=rng.random() < 0.5,
                )
            case 1:
                assignments = {m: rng.randbytes(2) for m in group.members if rng.random() < 0.9}
                own = group.members.get(known)
                self.sync(
                    known,
                    assignments,
                    generation=generation,
                    instance_id=own.instance_id if own else instance,
                )
            case 2:
                self.beat(known, generation=generation, instance_id=instance)
            case 3:
                self.leave((known, None), ("", instance))
            case 4:
                if self.writes:
                    self.end_write(
                        rng.choice((E.NONE, E.NONE, E.NONE, E.COORDINATOR_NOT_AVAILABLE))
                    )
            case 5:
                self.wait(rng.choice((1, 1_000, 3_000, 9_000)))
            case 6:
                self.wait(rng.choice((61_000, 301_000)))

    def end_write(self, code: ErrorCode) -> None:
        write = self.writes.pop(0)
        if code is E.NONE:
            for member in write.group.members:
                self.assigned[write.group.generation, member.member_id].add(member.assignment)
        self.feed(GroupWritten(write.write_id, code))


@given(st.integers(0, 2**32))
def test_classic_group_keeps_its_invariants_in_random_events(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(120):
        walk.step()
    # After all members go silent, every request is answered and the group becomes empty.
    for _ in range(20):
        while walk.writes:
            walk.end_write(E.NONE)
        walk.wait(301_000)
    assert walk.asked.keys() - walk.answers.keys() == set()
    assert walk.group.state is GroupState.EMPTY and not walk.group.pending


@given(st.integers(0, 2**32))
def test_unloaded_classic_group_answers_all_requests(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(60):
        walk.step()
    Scene.feed(walk, Unloaded())
    assert walk.asked.keys() - walk.answers.keys() == set()
