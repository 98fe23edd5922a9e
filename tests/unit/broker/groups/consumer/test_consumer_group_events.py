"""Random events of a consumer group, with invariants that hold after each of them.

A member behaves like a client: it revokes partitions immediately, reports its owned partitions,
repeats a request with all fields if no response arrived, and rejoins when it is fenced.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.consumer.consumer_group import ConsumerGroup
from kraftjbod.broker.groups.consumer.consumer_group_events import LEAVING, ConsumerAnswer
from kraftjbod.broker.groups.records.group_records import fact_of, record_of
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicIdPartition
from tests.unit.broker.groups.consumer.consumer_scene import REBALANCE_MS, ConsumerScene

E = ErrorCode
NAMES = ("t", "u", "v")
STEPS = 80


def key(fact: Any) -> Any:
    return replace(fact, value=None)


def by_key(group: ConsumerGroup) -> dict[Any, Any]:
    """Values by fact without its value."""
    return {key(fact): fact.value for fact in group.state.facts()}  # type: ignore[union-attr]  # all of these have one


class Client:
    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.owned: frozenset[TopicIdPartition] = frozenset()
        self.names = frozenset({"t"})
        self.is_sure = False
        #: The token of the pending request.
        self.token: int | None = None


class Walk(ConsumerScene):
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        super().__init__(assignors=self.rng.choice([("uniform", "range"), ("range",)]))
        self.writes_at_once = False
        self.max_batch_bytes = self.rng.choice([300, 1_000, 1 << 20])
        self.clients: list[Client] = []
        self.epoch = 0
        self.count = 0
        #: A coordinator that has read the log up to position ``read``.
        self.reader, self.read = ConsumerGroup("g", self.settings), 0

    # --- events ----------------------------------------------------------------------------------

    def step(self) -> None:
        often, now_and_then = (
            [self.beat_one, self.beat_one, self.end_write],
            [self.add_client, self.remove_client],
        )
        now_and_then += [
            self.change_subscription,
            self.lose_responses,
            self.pass_time,
            self.change_topics,
            self.reload_group,
        ]
        self.rng.choice([*often, *often[1:], *now_and_then])()
        self.deliver_responses()
        self.check()

    def add_client(self) -> None:
        if len(self.clients) < 5:
            self.count += 1
            self.clients.append(Client(f"m{self.count}"))

    def beat_one(self) -> None:
        free = [one for one in self.clients if one.token is None]
        if free:
            self.send(self.rng.choice(free))

    def send(self, client: Client) -> None:
        all_of_it = client.epoch == 0 or not client.is_sure
        client.token = self.ask(
            client.member_id,
            client.epoch,
            topic_names=client.names if all_of_it else None,
            rebalance_timeout_ms=REBALANCE_MS if all_of_it else -1,
            owned=client.owned,
        )

    def end_write(self) -> None:
        if self.writes:
            code, is_too_large = self.rng.choice(
                [
                    *([(E.NONE, False)] * 7),
                    *([(E.COORDINATOR_NOT_AVAILABLE, False)] * 2),
                    (E.UNKNOWN_SERVER_ERROR, True),
                ]
            )
            self.wrote(code, is_too_large=is_too_large)

    def remove_client(self) -> None:
        if self.clients and self.rng.random() < 0.4:
            client = self.clients.pop(self.rng.randrange(len(self.clients)))
            self.ask(client.member_id, LEAVING)

    def change_subscription(self) -> None:
        for client in self.clients[:1]:
            if client.token is None:
                client.names = frozenset(self.rng.sample(NAMES, self.rng.randint(1, 3)))
                client.is_sure = False

    def lose_responses(self) -> None:
        """Clients lose a response and repeat the request with all fields."""
        for client in self.clients:
            if client.token is not None and self.rng.random() < 0.3:
                client.token, client.is_sure = None, False

    def pass_time(self) -> None:
        self.wait(self.rng.choice([10, 1_000, 5_000, 20_000]))

    def change_topics(self) -> None:
        name = self.rng.choice(NAMES)
        self.topics.put(name, self.rng.randint(1, 6))

    def reload_group(self) -> None:
        """Another coordinator reads the log after compaction."""
        if self.rng.random() < 0.5 and not self.writes:
            self.group = ConsumerGroup("g", self.settings)
            for fact in self.compacted():
                self.group.load(fact)
            self.group.loaded(self.now_ms)

    def compacted(self) -> list[Any]:
        """Return the log, compacted up to a random position, without the oldest tombstones."""
        upto = self.rng.randint(0, len(self.log))
        gone = self.rng.randint(0, upto)
        last = {key(fact): at for at, fact in enumerate(self.log[:upto])}
        kept = [
            fact
            for at, fact in enumerate(self.log[:upto])
            if last[key(fact)] == at and (fact.value is not None or at >= gone)
        ]
        return kept + self.log[upto:]

    def read_on(self) -> ConsumerGroup:
        """Read the rest of the log, with each fact encoded and decoded."""
        for fact in self.log[self.read :]:
            read = fact_of(record_of(fact, 0))
            assert read == fact
            self.reader.load(read)  # type: ignore[arg-type]  # of no other kind
        self.read = len(self.log)
        return self.reader

    # --- clients receive responses ---------------------------------------------------------------

    def deliver_responses(self) -> None:
        for client in self.clients:
            answer = self.answers.get(client.token or 0)
            if answer is None:
                continue
            client.token = None
            self.receive(client, answer)

    def receive(self, client: Client, answer: ConsumerAnswer) -> None:
        match answer.code:
            case E.NONE:
                client.is_sure = True
                client.epoch = answer.epoch
                if answer.assignment is not None:
                    client.owned = answer.assignment
            case E.FENCED_MEMBER_EPOCH | E.UNKNOWN_MEMBER_ID | E.GROUP_ID_NOT_FOUND:
                client.epoch, client.owned, client.is_sure = 0, frozenset(), False
            case _:
                client.is_sure = False

    # --- invariants ------------------------------------------------------------------------------

    def check(self) -> None:
        state = self.group.state
        held = [
            (one, member_id)
            for member_id in state.members
            for current in [state.current(member_id)]
            for one in (*current.assigned, *current.revoking)
        ]
        assert len(held) == len({one for one, _ in held}), "a partition has two owners"
        assert dict(held) == state.holders
        for client in self.clients:
            # A member in the current epoch reads only partitions that are assigned to it or being
            # revoked.
            current = state.current(client.member_id)
            if client.epoch > 0 and client.epoch == current.epoch and not self.writes:
                assert client.owned <= current.assigned.keys() | current.revoking.keys()
        for member_id in state.members:
            assert state.current(member_id).epoch <= state.assignment_epoch <= state.epoch
        if not self.writes:
            assert state.epoch >= self.epoch, "the group epoch decreased"
            self.epoch = state.epoch
            ours, theirs = (by_key(group) for group in (self.group, self.read_on()))
            assert ours == theirs, "the log differs from memory"

    def settle(self) -> None:
        """Send heartbeats until the group converges."""
        for _ in range(40):
            while self.writes:
                self.wrote()
                self.deliver_responses()
            for client in self.clients:
                if client.token is None:
                    self.send(client)
                while self.writes:
                    self.wrote()
                self.deliver_responses()
                self.check()
            self.wait(1_500)
        while self.writes:
            self.wrote()
        self.deliver_responses()


@given(st.integers(0, 2**32))
def test_consumer_group_keeps_its_invariants_in_random_events_and_converges(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
    walk.lose_responses()
    for client in walk.clients:
        client.token, client.is_sure = None, False
    walk.settle()
    state = walk.group.state
    living = {client.member_id for client in walk.clients}
    assert state.members.keys() >= living
    walk.wait(60_000 if not walk.clients else 0)
    if walk.clients and state.members.keys() == living:
        assert state.phase is GroupState.STABLE
        read = [one for client in walk.clients for one in client.owned]
        wanted = {name for client in walk.clients for name in client.names}
        there = {
            one for name in wanted if name in walk.topics.topics for one in walk.topics.all(name)
        }
        assert len(read) == len(set(read)) and set(read) == there, (
            "each partition has exactly one reader"
        )
