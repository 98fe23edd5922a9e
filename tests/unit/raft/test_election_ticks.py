"""``ElectionTicks``: the leader lease counts by the clock from the time of the answered message."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.config_model import MINUTE_MS
from kraftjbod.core.telemetry import get_logger
from kraftjbod.raft.election_ticks import ELECTION_TICKS, HEARTBEAT_TICKS, ElectionTicks
from kraftjbod.raft.machine.core import RaftCore, Role
from kraftjbod.raft.machine.following import NOTHING
from kraftjbod.raft.machine.messages import (
    Append,
    AppendRejected,
    AppendReply,
    HardState,
    PreVote,
    PreVoteReply,
)
from tests.faults.rig import ManualClock
from tests.unit.raft.test_quorum_view import N1, N2, N3, VOTERS, leader

TIMEOUT_MS = 100
#: A follower's first tick after a message may come at once.
LEASE_MS = TIMEOUT_MS - TIMEOUT_MS // ELECTION_TICKS


@pytest.mark.parametrize(
    ("pause_ms", "is_stuck", "is_alone", "leads", "is_valid"),
    [
        (1, False, False, True, True),
        (100, False, False, True, False),
        (1, True, False, False, False),
    ],
)
async def test_leader_lease_ends_after_a_pause_or_with_a_stuck_disk(
    pause_ms: int, is_stuck: bool, is_alone: bool, leads: bool, is_valid: bool
) -> None:
    clock, core, ticked = ManualClock(), leader(), asyncio.Event()
    ticks = _ticks(clock, ticked, is_stuck=is_stuck, is_alone=is_alone)
    running = asyncio.create_task(ticks.run_ticks(core))
    await asyncio.sleep(0)
    clock.ms += pause_ms
    assert ticks.is_lease_valid(core) is (pause_ms < TIMEOUT_MS)
    await ticked.wait()
    running.cancel()
    assert (core.leadership is not None) is leads
    assert ticks.is_lease_valid(core) is is_valid


def _answer(core: RaftCore, sent_tick: int = -1) -> AppendReply:
    return AppendReply(sender=N2, to=N1, term=core.term, durable_offset=0, sent_tick=sent_tick)


def _sent_ticks(core: RaftCore) -> list[int]:
    """Ticks of the messages to N2 since the last call."""
    sent = [one for one in core.ready().messages if isinstance(one, Append)]
    return [one.sent_tick for one in sent if one.to == N2]


async def test_leader_lease_starts_when_the_answered_message_was_sent() -> None:
    """An answer may wait in a socket for as long as the others need to elect another leader."""
    clock, core, ticked = ManualClock(), leader(), asyncio.Event()
    ticks = _ticks(clock, ticked)
    running = asyncio.create_task(ticks.run_ticks(core))
    await asyncio.sleep(0)
    clock.ms += 40
    await _tick(ticked)
    core.propose(b"x")
    sent_ms, sent_tick = clock.ms, _sent_ticks(core)[-1]
    clock.ms += 90
    await _tick(ticked)
    core.step(_answer(core, sent_tick))
    clock.ms = sent_ms + LEASE_MS - 1
    assert ticks.is_lease_valid(core)
    clock.ms += 1
    assert not ticks.is_lease_valid(core)
    running.cancel()


async def test_leader_lease_ends_before_a_follower_votes_for_another_candidate() -> None:
    """The follower's first tick comes directly after the leader's message."""
    clock, core, ticked = ManualClock(), leader(), asyncio.Event()
    ticks = _ticks(clock, ticked)
    running = asyncio.create_task(ticks.run_ticks(core))
    await _tick(ticked)
    core.step(_answer(core, core.leadership.now if core.leadership else -1))
    running.cancel()
    assert ticks.is_lease_valid(core)
    follower = _follower(draw=ELECTION_TICKS - 1)
    follower.tick()
    waited = 0
    while not _votes_for_another(follower):
        follower.tick()
        waited += 1
    clock.ms += int(waited * ticks.tick_ms)
    assert not ticks.is_lease_valid(core)


def _votes_for_another(follower: RaftCore) -> bool:
    follower.ready()
    log_end = {"last_offset": 9, "last_term": 9}
    follower.step(PreVote(sender=N3, to=N2, term=follower.term, **log_end))
    replies = [one for one in follower.ready().messages if isinstance(one, PreVoteReply)]
    return any(one.granted for one in replies)


async def test_leader_lease_ends_by_the_clock_when_ticks_are_late() -> None:
    """Each tick is late by most of a timeout, so a few ticks take several timeouts."""
    clock, core, ticked = ManualClock(), leader(), asyncio.Event()
    ticks = _ticks(clock, ticked)
    running = asyncio.create_task(ticks.run_ticks(core))
    await asyncio.sleep(0)
    for _ in range(2):
        clock.ms += 90
        await _tick(ticked)
    running.cancel()
    assert core.leadership is not None, "by its ticks it was heard a moment ago"
    assert not ticks.is_lease_valid(core)


async def test_leader_lease_of_a_paused_leader_is_valid_after_new_answers() -> None:
    clock, core, ticked = ManualClock(), leader(), asyncio.Event()
    ticks = _ticks(clock, ticked)
    running = asyncio.create_task(ticks.run_ticks(core))
    await asyncio.sleep(0)
    clock.ms += TIMEOUT_MS
    with capture_logs() as events:
        await _tick(ticked)
    assert [(e["event"], e["pause_ms"]) for e in events] == [("raft_leader_stood_still", 100)]
    core.step(_answer(core, 0))  # The answer waited in a socket while this process was paused.
    await _tick(ticked)
    assert not ticks.is_lease_valid(core)
    core.step(_answer(core, _sent_ticks(core)[-1]))
    running.cancel()
    assert ticks.is_lease_valid(core)
    assert core.leadership is not None


async def test_leader_lease_treats_answers_without_sent_tick_as_one_heartbeat_old() -> None:
    clock, core, ticked = ManualClock(), leader(), asyncio.Event()
    ticks = _ticks(clock, ticked)
    running = asyncio.create_task(ticks.run_ticks(core))
    await asyncio.sleep(0)
    for _ in range(2):
        await _tick(ticked)
    core.step(_answer(core))
    running.cancel()
    assert core.leadership is not None
    assert core.leadership.followed_tick == core.leadership.now - HEARTBEAT_TICKS


async def test_leader_wakes_once_per_heartbeat_and_sends_five_per_election_timeout() -> None:
    clock, ticked = ManualClock(), asyncio.Event()
    core = leader(election_ticks=ELECTION_TICKS, heartbeat_ticks=HEARTBEAT_TICKS)
    ticks = _ticks(clock, ticked)
    core.step(_answer(core, 0))
    core.ready()
    running = asyncio.create_task(ticks.run_ticks(core))
    sent = []
    for _ in range(5):
        await _tick(ticked)
        sent.append(_sent_ticks(core))
        core.step(_answer(core, sent[-1][-1]))
    running.cancel()
    assert sent == [[4], [8], [12], [16], [ELECTION_TICKS]]


async def test_follower_wakes_once_per_four_ticks_while_it_has_a_leader() -> None:
    clock, core, ticked = ManualClock(), _follower(), asyncio.Event()
    ticks = _ticks(clock, ticked)
    running = asyncio.create_task(ticks.run_ticks(core))
    wakeups = 0
    while core.leader is not None:
        await _tick(ticked)
        wakeups += 1
    running.cancel()
    assert wakeups == ELECTION_TICKS // 4


async def test_follower_ticks_from_before_a_message_do_not_count_after_it() -> None:
    """A message in the middle of a sleep must not be followed by ticks from before it."""
    clock, core, ticked = ManualClock(), _follower(), asyncio.Event()
    ticks = _ticks(clock, ticked)
    running = asyncio.create_task(ticks.run_ticks(core))
    await asyncio.sleep(0)
    clock.ms += int(3 * ticks.tick_ms)
    ticks.count_passed_ticks(core)
    core.step(_heartbeat(core))
    await _tick(ticked)  # counts the one tick that is left
    for _ in range(4):
        await _tick(ticked)
    assert core.leader == N1, "17 of 20 ticks since the message"
    await _tick(ticked)
    running.cancel()
    assert core.leader is None


async def test_follower_wakes_at_once_when_the_leader_is_gone() -> None:
    clock, core, ticked = ManualClock(), _follower(draw=2), asyncio.Event()
    ticks = _ticks(clock, ticked, timeout_ms=10 * MINUTE_MS)
    running = asyncio.create_task(ticks.run_ticks(core))
    await asyncio.sleep(0)
    ticks.count_passed_ticks(core)
    core.note_leader_gone()
    ticks.note_change(core)
    await ticked.wait()  # at once, although the sleep would have taken minutes
    running.cancel()
    assert core.role is Role.FOLLOWER, "no tick has passed"


async def test_leader_lease_ends_with_the_leadership() -> None:
    clock, core, ticked = ManualClock(), leader(), asyncio.Event()
    ticks = _ticks(clock, ticked)
    running = asyncio.create_task(ticks.run_ticks(core))
    await _tick(ticked)
    core.step(AppendRejected(sender=N2, to=N1, term=core.term + 1, previous_offset=0, hint=NOTHING))
    running.cancel()
    assert not ticks.is_lease_valid(core)


def _follower(draw: int = 0) -> RaftCore:
    core = RaftCore(
        key=N2,
        voters=VOTERS,
        hard_state=HardState(),
        first_payload_of_term=b"",
        draw_below=lambda _bound: draw,
        election_ticks=ELECTION_TICKS,
        heartbeat_ticks=HEARTBEAT_TICKS,
    )
    core.step(_heartbeat(core))
    return core


def _heartbeat(core: RaftCore) -> Append:
    return Append(sender=N1, to=core.key, term=1, previous_offset=-1, previous_term=0)


def _ticks(
    clock: ManualClock,
    ticked: asyncio.Event,
    *,
    is_stuck: bool = False,
    is_alone: bool = False,
    timeout_ms: int = TIMEOUT_MS,
) -> ElectionTicks:
    return ElectionTicks(
        clock=clock,
        election_timeout_ms=timeout_ms,
        log=get_logger(),
        is_disk_stuck=lambda: is_stuck,
        is_alone=lambda: is_alone,
        is_reading=lambda: False,
        changed=ticked.set,
    )


async def _tick(ticked: asyncio.Event) -> None:
    ticked.clear()
    await ticked.wait()
