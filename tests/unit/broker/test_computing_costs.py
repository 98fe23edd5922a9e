"""Costs of events at a broker and a controller in executed bytecodes, at 1, 10 and 100 times a
size.

All of this runs on the event loop. An event whose cost grows with a size makes the whole of as many
events quadratic: the loop is late, heartbeats are missed, and clients see timeouts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from kraftjbod.broker.groups.classic.classic_group import ClassicGroup, GroupLimits
from kraftjbod.broker.groups.classic.group_events import GroupState, JoinRequested, TimePassed
from kraftjbod.broker.groups.coordinator.group_partition import GroupPartition
from kraftjbod.broker.groups.records.group_records import (
    CommittedOffset,
    GroupFact,
    GroupMember,
    GroupMetadata,
    OffsetFact,
)
from kraftjbod.broker.partitions.delayed_operations import FetchPurgatory, OffsetPurgatory
from kraftjbod.broker.partitions.fetch_sessions import FetchSessions, Follower
from kraftjbod.broker.transactions.marker_queue import Ending, MarkerQueue
from kraftjbod.broker.transactions.transaction_records import TransactionMetadata
from kraftjbod.controller.brokers.heartbeat_manager import BrokerHeartbeatManager
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    TopicPartition,
)
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.metadata.records import PartitionChangeRecord, PartitionRecord, TopicRecord
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from tests.faults.rig import ManualClock
from tests.unit.broker.groups.consumer.consumer_scene import CONSUMER, ConsumerScene
from tests.work_count import count_bytecodes

UNIT: Final = 20
#: An event at 100 times the size may execute so many more bytecodes, for binary searches.
SLACK: Final = 400
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LONG_MS: Final = 600_000

Event = Callable[[], object]


def require_constant(make: Callable[[int], dict[str, Event]]) -> None:
    """Require that each event executes as many bytecodes at 100 times the size.

    :param make: takes the size, and returns the events in their order.
    """
    counts: dict[str, list[int]] = {}
    for times in (1, 10, 100):
        for name, event in make(UNIT * times).items():
            counts.setdefault(name, []).append(count_bytecodes(event))
    for name, (one, ten, hundred) in counts.items():
        assert max(ten, hundred) <= one + SLACK, (name, one, ten, hundred)


class Timers:
    """The last timer of the running loop, which fires when it is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.call_later = loop.call_later
        self.fire: Callable[[], object] = lambda: None
        monkeypatch.setattr(loop, "call_later", self._set)

    def _set(self, delay_s: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        self.fire = callback
        return self.call_later(delay_s, callback)


async def test_offset_purgatory_visits_only_the_waits_that_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow follower makes thousands of produces wait for one partition."""
    made, timers = [], Timers(monkeypatch)

    def make(size: int) -> dict[str, Event]:
        clock = ManualClock()
        waits = OffsetPurgatory(kind="produces", clock=clock)
        made.append(waits)
        for number in range(size):
            waits.wait(T0, 1_000 + number, LONG_MS)
        hasty = waits.wait(T0, 10**9, 1)

        def sweep() -> None:
            clock.ms += 20
            timers.fire()
            assert hasty.result() is ErrorCode.REQUEST_TIMED_OUT

        return {
            "one more": lambda: waits.wait(T0, 5, LONG_MS),
            "the first is reached": lambda: waits.reached(T0, 5),
            "one of the rest is reached": lambda: waits.reached(T0, 1_000),
            "none is reached": lambda: waits.reached(T0, 1_000),
            "one is overdue": sweep,
            "another partition fails": lambda: waits.fail(T1, ErrorCode.KAFKA_STORAGE_ERROR),
        }

    require_constant(make)
    for waits in made:
        waits.close()


async def test_offset_purgatory_completes_offsets_in_any_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deletions of records ask for any offset."""
    dice, timers = random.Random(1), Timers(monkeypatch)
    clock = ManualClock()
    waits = OffsetPurgatory(kind="deletions", clock=clock)
    pending = {}
    for number in range(500):
        offset, timeout_ms = dice.randrange(300), dice.choice([50, LONG_MS])
        pending[waits.wait(T0, offset, timeout_ms)] = (offset, timeout_ms, number)
    clock.ms += 100
    timers.fire()
    for watermark in (10, 120, 299):
        waits.reached(T0, watermark)
        for done, (offset, timeout_ms, _) in pending.items():
            is_late = timeout_ms == 50
            assert done.done() is (is_late or offset <= watermark)
            if done.done():
                expected = ErrorCode.REQUEST_TIMED_OUT if is_late else ErrorCode.NONE
                assert done.result() is expected
    assert len(waits) == 0 and not waits.is_waited_for(T0)
    waits.close()


async def test_fetch_purgatory_visits_only_the_fetches_of_a_partition() -> None:
    made = []

    def make(size: int) -> dict[str, Event]:
        waits = FetchPurgatory()
        made.append(waits)
        for number in range(size):
            waits.wait([TopicPartition("other", number)], 1_000, LONG_MS)
        return {
            "one more": lambda: waits.wait([T0], 1_000, LONG_MS),
            "bytes arrive": lambda: waits.arrived(T0, 10),
            "a leader moves": lambda: waits.wake(T0),
        }

    require_constant(make)
    for waits in made:
        waits.close()


@pytest.mark.parametrize("known", [True, False])
def test_fetch_session_costs_the_same_beside_many_sessions(known: bool) -> None:
    def make(size: int) -> dict[str, Event]:
        sessions = FetchSessions(clock=ManualClock(), random_bytes=random.Random(1).randbytes)
        follower = Follower(BrokerId(1), BrokerEpoch(1)) if known else None
        for _ in range(min(size, 900)):
            opened, _ = sessions.open(follower)
        return {
            "fetch": lambda: sessions.take(opened.session_id, 1),
            "open": lambda: sessions.open(follower),
        }

    require_constant(make)


def empty_groups() -> GroupPartition:
    return GroupPartition(GroupLimits(initial_rebalance_delay_ms=0, max_size=10**6), CONSUMER)


def test_tombstone_costs_the_same_beside_many_open_transactions() -> None:
    """An application of many transactional members, each with offsets of another partition."""

    def make(size: int) -> dict[str, Event]:
        groups = empty_groups()
        committed = CommittedOffset(offset=5)
        for number in range(size):
            where = TopicPartition("t", number)
            groups.take(OffsetFact("g", where, committed), number, producer_id=number)
        return {
            "commit in a transaction": lambda: groups.take(
                OffsetFact("g", T0, committed), size, producer_id=size
            ),
            "tombstone": lambda: groups.take(OffsetFact("g", T1, None), size + 1),
            "marker": lambda: groups.transaction_ended(2, size + 2, commits=True),
            "commit of another group": lambda: groups.take(OffsetFact("h", T1, committed), 1),
        }

    require_constant(make)


def test_expiration_cost_of_a_group_grows_linearly_with_members_and_partitions() -> None:
    """As many members as partitions: the cost was the product of both."""
    counts = []
    for size in (UNIT, 10 * UNIT, 100 * UNIT):
        groups = empty_groups()
        for number in range(size):
            where = TopicPartition("read", number)
            groups.take(OffsetFact("g", where, CommittedOffset(offset=5, commit_ms=0)))
        groups.take(
            GroupFact(
                "g",
                GroupMetadata(
                    protocol_type="consumer",
                    protocol_name="range",
                    leader="0",
                    generation=1,
                    since_ms=0,
                    members=tuple(
                        GroupMember(
                            member_id=str(number),
                            instance_id=None,
                            client_id="c",
                            client_host="/h",
                            rebalance_timeout_ms=1,
                            session_timeout_ms=1,
                            subscription=b"\0\1\0\0\0\1\0\4read\xff\xff\xff\xff",
                            assignment=b"",
                        )
                        for number in range(size)
                    ),
                ),
            )
        )
        groups.loaded(0)
        counts.append(count_bytecodes(partial(groups.expired, "g", 10**9, 1)))
    one, ten, hundred = counts
    assert hundred - ten <= 10 * (ten - one) * 1.1, counts


def join_of(number: int, *, is_new: bool = True, owned: bytes = b"") -> JoinRequested:
    return JoinRequested(
        token=object(),
        member_id="" if is_new else f"m{number}",
        fresh_member_id=f"m{number}",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(("range", b"s" + owned), ("uniform", b"s")),
        asks_again=False,
    )


def joined(members: int) -> ClassicGroup:
    """Return a group with members that wait for the end of their first join phase."""
    group = ClassicGroup("g", GroupLimits(initial_rebalance_delay_ms=3_000, max_size=10**6))
    for number in range(members):
        group.handle(join_of(number), 0)
    return group


def test_join_costs_the_same_beside_many_members_that_wait() -> None:
    """A phase in which all members rejoin costs the sum of their joins, not the square."""

    def make(size: int) -> dict[str, Event]:
        starting, again = joined(size), joined(size)
        for now_ms in (3_000, 6_000):
            again.handle(TimePassed(), now_ms)
        assert again.state is GroupState.COMPLETING_REBALANCE
        for number in range(size - 1):
            again.handle(join_of(number, is_new=False, owned=b"1"), 6_001)
        assert again.state is GroupState.PREPARING_REBALANCE
        return {
            "join": lambda: starting.handle(join_of(size), 0),
            "join again": lambda: again.handle(join_of(size - 2, is_new=False, owned=b"2"), 6_002),
        }

    require_constant(make)


def test_heartbeat_of_a_consumer_group_costs_the_same_beside_many_members() -> None:
    def make(size: int) -> dict[str, Event]:
        scene = ConsumerScene(max_size=10**6)
        for number in range(size // 4):
            answer = scene.join(f"m{number}")
        for _ in range(3):
            scene.now_ms += 1_000
            answer = scene.beat(f"m{size // 4 - 1}", answer.epoch)
        return {"heartbeat": lambda: scene.beat(f"m{size // 4 - 1}", answer.epoch)}

    require_constant(make)


def test_markers_cost_the_same_beside_many_ending_transactions() -> None:
    def make(size: int) -> dict[str, Event]:
        queue = MarkerQueue(
            leader_of=lambda one: BrokerId(one.partition % 2),
            backoff=ExponentialBackoff(initial_ms=1, max_ms=2, random_unit=random.Random(1).random),
        )
        for number in range(size):
            queue.put(ending(number), [T0], 0)
        queue.take(BrokerId(0))
        return {
            "put": lambda: queue.put(ending(size), [T1], 0),
            "take": lambda: queue.take(BrokerId(1)),
            "answered": lambda: queue.answered(BrokerId(1), {(size, T1): ErrorCode.NONE}, 0),
        }

    require_constant(make)


def ending(producer_id: int) -> Ending:
    metadata = TransactionMetadata(producer_id=producer_id, timeout_ms=1)
    return Ending(f"id{producer_id}", metadata, index=0, coordinator_epoch=LeaderEpoch(1))


def test_heartbeat_at_a_controller_costs_the_same_beside_many_brokers() -> None:
    def make(size: int) -> dict[str, Event]:
        manager = BrokerHeartbeatManager(session_timeout_ms=9_000, reconnect_grace_ms=500)
        for number in range(size):
            manager.touch(BrokerId(number), BrokerEpoch(1), 0)
        return {
            "heartbeat": lambda: manager.touch(BrokerId(1), BrokerEpoch(1), 5),
            "session": lambda: manager.has_valid_session(BrokerId(1), 5),
            "replacement": lambda: manager.may_be_replaced(BrokerId(1), 5),
            "refusal": lambda: manager.refused(BrokerId(1), BrokerEpoch(1)),
        }

    require_constant(make)


@pytest.mark.parametrize("grown", ["topics", "partitions"])
def test_replay_of_a_change_costs_the_same_beside_many_partitions(grown: str) -> None:
    def make(size: int) -> dict[str, Event]:
        state, delta = MetadataState(), MetadataDelta()
        topics = size if grown == "topics" else 1
        for number in range(topics):
            records = [TopicRecord(name=f"t{number}", topic_id=topic_id(number))]
            parts = range(1 if grown == "topics" else size)
            state.replay(
                [*records, *(partition_record(number, index) for index in parts)],
                offset=number,
                epoch=1,
                delta=delta,
            )
        change = PartitionChangeRecord(
            topic_id=topic_id(0), partition_id=0, leader=BrokerId(2), isr=(BrokerId(2),)
        )
        return {
            "change": lambda: state.replay([change], offset=topics, epoch=1, delta=delta),
            "rehearsal": lambda: state.excerpt([change]),
            "new partition": lambda: state.replay(
                [partition_record(0, size)], offset=topics + 1, epoch=1, delta=delta
            ),
        }

    require_constant(make)


def topic_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16))


def partition_record(topic: int, index: int) -> PartitionRecord:
    replicas = (BrokerId(1), BrokerId(2))
    return PartitionRecord(
        topic_id=topic_id(topic),
        partition_id=index,
        replicas=replicas,
        isr=replicas,
        directories=(DirectoryId(bytes(15) + b"\1"), DirectoryId(bytes(15) + b"\2")),
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
    )
