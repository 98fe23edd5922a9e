"""Fetch sessions: what has news, what wakes a wait, what epochs are for."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.broker.fetch_sessions import FetchFrom, FetchSession, FetchSessions, SessionPart
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicId, TopicIdPartition, TopicPartition
from tests.faults.rig import ManualClock

KEY = TopicIdPartition(TopicId(b"t" * 16), 0)
OTHER = TopicIdPartition(TopicId(b"t" * 16), 1)
PART = SessionPart(FetchFrom(TopicPartition("t", 0), 0, 100))


def session() -> FetchSession:
    made = FetchSession(1, 0)
    made.parts[KEY] = PART
    return made


def test_only_partitions_of_the_session_have_news():
    made = session()
    made.moved(KEY, 1)
    made.noted(OTHER)
    assert made.take_news() == [KEY]
    assert made.take_news() == []


async def test_a_wait_ends_when_enough_can_be_read():
    made = session()
    waiting = asyncio.create_task(made.wait(10, 60_000))
    await asyncio.sleep(0)
    made.moved(KEY, 4)
    made.noted(KEY)
    await asyncio.sleep(0)
    assert not waiting.done()
    made.moved(KEY, 6)
    await waiting


async def test_a_change_of_role_ends_a_wait_at_once():
    made = session()
    waiting = asyncio.create_task(made.wait(10, 60_000))
    await asyncio.sleep(0)
    made.changed(KEY)
    await waiting
    assert made.take_news() == [KEY]


async def test_a_wait_ends_at_its_deadline():
    await session().wait(10, 1)


def test_epochs_grow_by_one_and_nothing_else_is_taken():
    sessions = FetchSessions(clock=ManualClock())
    opened, _ = sessions.open()
    assert sessions.take(opened.session_id, 1) is opened
    assert sessions.take(opened.session_id, 2) is opened
    with pytest.raises(OperatingError) as refused:
        sessions.take(opened.session_id, 2)
    assert refused.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    with pytest.raises(OperatingError) as refused:
        sessions.take(99, 1)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_least_recently_used_goes_when_there_are_too_many():
    sessions = FetchSessions(clock=ManualClock(), max_sessions=2)
    first, _ = sessions.open()
    second, _ = sessions.open()
    sessions.take(first.session_id, 1)
    _, gone = sessions.open()
    assert gone == [second]
    assert len(sessions) == 2


def test_what_was_not_used_for_long_is_forgotten():
    clock = ManualClock()
    sessions = FetchSessions(clock=clock, max_idle_ms=100)
    idle, _ = sessions.open()
    clock.ms += 101
    _, gone = sessions.open()
    assert gone == [idle]
