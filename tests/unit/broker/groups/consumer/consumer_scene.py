"""A consumer group with its topics, and members that send heartbeats."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Any

from kraftjbod.broker.groups.classic.group_events import (
    Answer,
    GroupState,
    HeartbeatReceived,
    JoinRequested,
    LeaveRequested,
    SyncRequested,
    TimePassed,
)
from kraftjbod.broker.groups.consumer.consumer_group import ConsumerGroup
from kraftjbod.broker.groups.consumer.consumer_group_events import (
    BecameClassic,
    ConsumerAnswer,
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    FactsWritten,
    MigrationPolicy,
    Moment,
    WriteFacts,
)
from kraftjbod.broker.groups.consumer.group_topics import GroupTopic, Layout
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicId, TopicIdPartition

SESSION_MS, REBALANCE_MS, INTERVAL_MS = 45_000, 60_000, 1_000
CONSUMER = ConsumerGroupSettings(
    session_timeout_ms=SESSION_MS,
    heartbeat_interval_ms=5_000,
    assignment_interval_ms=INTERVAL_MS,
    max_size=100,
    assignors=("uniform", "range"),
    migration_policy=MigrationPolicy.BIDIRECTIONAL,
    regex_refresh_ms=600_000,
    classic_max_size=100,
)


def topic_id(number: int) -> TopicId:
    return TopicId(bytes(15) + bytes([number]))


class Topics:
    """The topics of the cluster; ``version`` grows with every change."""

    def __init__(self, **sizes: int) -> None:
        self.version = 0
        self.topics: dict[str, GroupTopic] = {}
        self._ids = itertools.count(1)
        for name, size in sizes.items():
            self.put(name, size)

    def put(self, name: str, size: int) -> None:
        self.version += 1
        before = self.topics.get(name)
        own_id = topic_id(next(self._ids)) if before is None else before.topic_id
        self.topics[name] = GroupTopic(own_id, size)

    def drop(self, name: str) -> None:
        self.version += 1
        self.topics.pop(name, None)

    @property
    def layout(self) -> Layout:
        return self.version

    def layout_of(self, names: Collection[str]) -> Layout:
        return tuple((name, self.topics.get(name)) for name in sorted(names))

    def topic(self, name: str) -> GroupTopic | None:
        return self.topics.get(name)

    def name(self, wanted: TopicId) -> str | None:
        return next((name for name, one in self.topics.items() if one.topic_id == wanted), None)

    def names(self) -> Iterable[str]:
        return self.topics

    def hash_of(self, names: Collection[str]) -> int:
        found = sorted((name, self.topics[name]) for name in names if name in self.topics)
        return hash(tuple(found)) if found else 0

    def all(self, name: str) -> frozenset[TopicIdPartition]:
        own = self.topics[name]
        return frozenset(TopicIdPartition(own.topic_id, index) for index in range(own.size))


class ConsumerScene:
    """A group with its events and answers. Tokens are numbers."""

    def __init__(self, **settings: Any) -> None:
        made = {name: getattr(CONSUMER, name) for name in CONSUMER.__dataclass_fields__}
        self.settings = ConsumerGroupSettings(**{**made, **settings})
        self.group = ConsumerGroup("g", self.settings)
        self.topics = Topics(t=4, u=2)
        self.now_ms = 1_000
        self.tokens = itertools.count(1)
        self.answers: dict[int, Any] = {}
        self.writes: list[WriteFacts] = []
        #: All facts in the log.
        self.log: list[Any] = []
        self.became: BecameClassic | None = None
        self.writes_at_once = True
        self.max_batch_bytes = 1 << 20

    @property
    def moment(self) -> Moment:
        wall_ms = 1_000_000 + self.now_ms
        return Moment(self.now_ms, wall_ms, self.topics, self.max_batch_bytes)

    def feed(self, event: Any) -> None:
        for action in self.group.handle(event, self.moment):
            match action:
                case Answer(token, answer):
                    assert token not in self.answers, "answered twice"
                    self.answers[token] = answer  # type: ignore[index]  # numbers here
                case WriteFacts():
                    assert not self.writes, "one batch at a time"
                    self.writes.append(action)
                case BecameClassic():
                    self.became = action
        if self.writes and self.writes_at_once:
            self.wrote()

    def wrote(self, code: ErrorCode = ErrorCode.NONE, *, is_too_large: bool = False) -> None:
        facts = self.writes.pop(0).facts
        if code is ErrorCode.NONE:
            self.log += facts
        self.feed(FactsWritten(code, is_too_large))

    def ask(self, member_id: str, epoch: int, **more: Any) -> int:
        token = next(self.tokens)
        self.feed(ConsumerHeartbeat(token=token, member_id=member_id, epoch=epoch, **more))
        return token

    def beat(self, member_id: str, epoch: int, **more: Any) -> ConsumerAnswer:
        answer: ConsumerAnswer = self.answers[self.ask(member_id, epoch, **more)]
        return answer

    def join(self, member_id: str, *names: str, **more: Any) -> ConsumerAnswer:
        said = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "topic_names": frozenset(names or ("t",)),
            "owned": frozenset(),
            **more,
        }
        return self.beat(member_id, 0, **said)

    def wait(self, ms: int) -> None:
        """Advance the time, and deliver an event at each deadline of the group."""
        end_ms = self.now_ms + ms
        while self.group.next_deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.group.next_deadline_ms)
            self.feed(TimePassed())
            assert self.group.next_deadline_ms > self.now_ms, "the deadline was not advanced"
        self.now_ms = end_ms

    # --- members of the classic protocol ----------------------------------------------------------

    def classic_join(self, member_id: str, subscription: bytes, **more: Any) -> Any:
        asked = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (("cooperative-sticky", subscription),),
            "fresh_member_id": f"fresh-{next(self.tokens)}",
            **more,
        }
        return self._classic(JoinRequested, member_id=member_id, **asked)

    def classic_sync(self, member_id: str, generation: int) -> Any:
        return self._classic(
            SyncRequested, member_id=member_id, generation=generation, assignments={}
        )

    def classic_beat(self, member_id: str, generation: int) -> ErrorCode:
        code: ErrorCode = self._classic(
            HeartbeatReceived, member_id=member_id, generation=generation
        ).code
        return code

    def classic_leave(self, *members: tuple[str, str | None]) -> tuple[ErrorCode, ...]:
        codes: tuple[ErrorCode, ...] = self._classic(LeaveRequested, members=members).codes
        return codes

    def _classic(self, kind: Any, **fields: Any) -> Any:
        token = next(self.tokens)
        self.feed(kind(token=token, **fields))
        return self.answers.get(token)


def two(**settings: Any) -> tuple[ConsumerScene, int]:
    """Return a group with members a and b that share topic t, and their epoch."""
    scene = ConsumerScene(**settings)
    first = scene.join("a")
    assert (first.epoch, first.assignment) == (2, scene.topics.all("t"))
    scene.wait(INTERVAL_MS)
    assert scene.join("b").assignment == frozenset(), "a still owns all partitions"
    reply = scene.beat("a", 2)
    assert reply.assignment is not None and (reply.epoch, len(reply.assignment)) == (2, 2)
    reply = scene.beat("a", 2, owned=reply.assignment)
    assert (reply.epoch, reply.assignment) == (3, None)
    reply = scene.beat("b", 3)
    assert reply.assignment is not None and len(reply.assignment) == 2
    assert scene.group.state.phase is GroupState.STABLE
    return scene, 3
