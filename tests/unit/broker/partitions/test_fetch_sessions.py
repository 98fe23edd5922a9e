"""``FetchSession`` and ``FetchSessions`` of followers: changes, waits, epochs and limits."""

from __future__ import annotations

import asyncio
import itertools
import random
from _collections_abc import dict_values
from collections import Counter
from collections.abc import Iterator

import pytest

from kraftjbod.broker.partitions.fetch_sessions import (
    FetchFrom,
    FetchSession,
    FetchSessions,
    Follower,
    SessionLimits,
    SessionPart,
)
from kraftjbod.core.errors import ErrorCode, OperatingError, OverloadedError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, TopicId, TopicIdPartition, TopicPartition
from tests.faults.rig import ManualClock

KEY = TopicIdPartition(TopicId(b"t" * 16), 0)
OTHER = TopicIdPartition(TopicId(b"t" * 16), 1)
PART = SessionPart(FetchFrom(TopicPartition("t", 0), 0, 100))


def session() -> FetchSession:
    made = FetchSession(1, 0)
    made.parts[KEY] = PART
    return made


def test_fetch_session_take_news_returns_changed_partitions_once() -> None:
    made = session()
    made.moved(KEY, 1)
    made.noted(OTHER)
    assert made.take_news() == [KEY]
    assert made.take_news() == []


async def test_fetch_session_wait_ends_when_enough_bytes_are_readable() -> None:
    made = session()
    waiting = asyncio.create_task(made.wait(10, 60_000))
    await asyncio.sleep(0)
    made.moved(KEY, 4)
    made.noted(KEY)
    await asyncio.sleep(0)
    assert not waiting.done()
    made.moved(KEY, 6)
    await waiting


async def test_fetch_session_wait_ends_on_a_role_change() -> None:
    made = session()
    waiting = asyncio.create_task(made.wait(10, 60_000))
    await asyncio.sleep(0)
    made.changed(KEY)
    await waiting
    assert made.take_news() == [KEY]


async def test_fetch_session_wait_ends_at_its_deadline() -> None:
    waiting = asyncio.create_task(session().wait(10, 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    await waiting


ONE, TWO, THREE = (Follower(BrokerId(n), BrokerEpoch(10 * n)) for n in (1, 2, 3))


def sessions_of(clock: ManualClock | None = None, **limits: int) -> FetchSessions:
    return FetchSessions(
        clock=clock or ManualClock(),
        random_bytes=random.Random(1).randbytes,
        limits=SessionLimits(**limits),
    )


def test_fetch_session_epoch_must_increase_by_one() -> None:
    sessions = sessions_of()
    opened, _ = sessions.open(ONE)
    assert sessions.take(opened.session_id, 1) is opened
    assert sessions.take(opened.session_id, 2) is opened
    for epoch in (2, 4):
        with pytest.raises(OperatingError) as refused:
            sessions.take(opened.session_id, epoch)
        assert refused.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    with pytest.raises(OperatingError) as refused:
        sessions.take(99, 1)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_fetch_session_ids_differ_by_more_than_1000() -> None:
    sessions = sessions_of()
    ids = [sessions.open(ONE)[0].session_id for _ in range(10)]
    assert all(abs(one - other) > 1000 for one, other in itertools.combinations(ids, 2))


def test_opening_a_session_above_the_limit_evicts_the_followers_least_recently_used_one() -> None:
    sessions = sessions_of(max_per_follower=2)
    other, _ = sessions.open(TWO)
    first, _ = sessions.open(ONE)
    second, _ = sessions.open(ONE)
    sessions.take(first.session_id, 1)
    _, gone = sessions.open(ONE)
    assert gone == [second]
    assert sessions.take(other.session_id, 1) is other
    assert len(sessions) == 3


def test_fetch_sessions_of_a_follower_do_not_evict_the_fair_share_of_another() -> None:
    """Sessions are opened in random order; each follower keeps its fair share."""
    chance = random.Random(227)
    followers = (None, ONE, TWO, THREE)
    for _ in range(200):
        limits = {"max_sessions": chance.randint(3, 12), "max_per_follower": chance.randint(1, 12)}
        sessions, alive = sessions_of(**limits), dict[int, FetchSession]()
        for _ in range(60):
            opening = chance.choice(followers)
            before = Counter(s.follower for s in alive.values())
            try:
                opened, gone = sessions.open(opening)
            except OverloadedError:
                assert opening is None
                assert not before[None]
                continue
            for session in gone:
                del alive[session.session_id]
                owner = session.follower
                assert owner in (opening, None) or before[owner] > before[opening]
                if owner is None and opening is not None:
                    assert len(alive) + 1 >= limits["max_sessions"]
            alive[opened.session_id] = opened
            held = Counter(s.follower for s in alive.values())
            assert max(held.values()) <= limits["max_per_follower"]
            assert len(sessions) == len(alive) <= limits["max_sessions"]


class _OldestOnly(dict[int, FetchSession]):
    """Sessions of which at most the first two may be visited."""

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(super().__iter__(), 2)

    def values(self) -> dict_values[int, FetchSession]:
        return {session_id: self[session_id] for session_id in self}.values()


def test_opening_a_fetch_session_visits_only_the_oldest_sessions() -> None:
    """A broker can have ten thousand sessions, and followers open them in turn."""
    clock = ManualClock()
    sessions = sessions_of(clock, max_sessions=6, max_idle_ms=1_000)
    sessions._sessions = _OldestOnly()
    idle, _ = sessions.open(TWO)
    used = [sessions.open(TWO)[0] for _ in range(4)]
    clock.ms += 900
    for session in used:
        sessions.take(session.session_id, 1)
    clock.ms += 900
    first, gone = sessions.open(ONE)
    assert gone == [idle]
    sessions.open(THREE)
    _, gone = sessions.open(ONE)
    assert gone == used[:1]
    restarted = Follower(ONE.broker_id, BrokerEpoch(ONE.epoch + 1))
    assert first in sessions.open(restarted)[1] and len(sessions) == 5


def test_refused_epoch_does_not_prolong_a_fetch_session() -> None:
    clock = ManualClock()
    sessions = sessions_of(clock, max_idle_ms=1_000)
    first, _ = sessions.open(ONE)
    second, _ = sessions.open(TWO)
    with pytest.raises(OperatingError):
        sessions.take(first.session_id, 9)
    clock.ms += 900
    sessions.take(second.session_id, 1)
    clock.ms += 900
    assert sessions.open(THREE)[1] == [first]


def test_restarted_broker_replaces_its_old_fetch_sessions() -> None:
    sessions = sessions_of()
    old, _ = sessions.open(ONE)
    other, _ = sessions.open(TWO)
    _, gone = sessions.open(ONE._replace(epoch=BrokerEpoch(99)))
    assert gone == [old]
    assert sessions.take(other.session_id, 1) is other


def test_idle_fetch_session_is_closed_when_another_opens() -> None:
    clock = ManualClock()
    sessions = sessions_of(clock, max_idle_ms=100)
    idle, _ = sessions.open(ONE)
    clock.ms += 101
    _, gone = sessions.open(TWO)
    assert gone == [idle]


def test_fetch_session_limits_its_partitions() -> None:
    opened, _ = sessions_of(max_partitions=1).open(ONE)
    opened.follow(KEY, PART.wanted)
    opened.follow(KEY, PART.wanted)
    with pytest.raises(OperatingError) as refused:
        opened.follow(OTHER, PART.wanted)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
