"""Who may rely on the time: not a process that stood still, before others have answered it."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.telemetry import get_logger
from kraftjbod.raft.election_ticks import ElectionTicks
from kraftjbod.raft.machine.following import NOTHING
from kraftjbod.raft.machine.messages import AppendRejected, AppendReply
from tests.faults.rig import ManualClock
from tests.unit.raft.test_quorum_view import N1, N2, leader


@pytest.mark.parametrize(
    ("pause_ms", "is_stuck", "is_alone", "leads", "is_fresh"),
    [
        (1, False, False, True, True),
        (100, False, False, True, False),
        (1, True, False, False, True),
        (100, True, True, True, True),
    ],
)
async def test_a_leader_with_company_is_in_doubt_or_gives_up(
    pause_ms: int, is_stuck: bool, is_alone: bool, leads: bool, is_fresh: bool
) -> None:
    clock, core, ticked = ManualClock(), leader(), asyncio.Event()
    ticks = _ticks(clock, ticked, is_stuck=is_stuck, is_alone=is_alone)
    running = asyncio.create_task(ticks.run(core))
    await asyncio.sleep(0)
    clock.ms += pause_ms
    assert ticks.are_fresh is (pause_ms < 100)
    await ticked.wait()
    running.cancel()
    assert (core.leadership is not None) is leads
    assert ticks.are_fresh is is_fresh


async def test_a_leader_that_stood_still_is_believed_once_a_majority_answers_anew() -> None:
    clock, core, ticked = ManualClock(), leader(), asyncio.Event()
    ticks = _ticks(clock, ticked)
    answer = AppendReply(sender=N2, to=N1, term=core.term, durable_offset=0)
    running = asyncio.create_task(ticks.run(core))
    await asyncio.sleep(0)
    clock.ms += 100
    with capture_logs() as events:
        await _tick(ticked)
    assert [(e["event"], e["pause_ms"]) for e in events] == [("raft_leader_stood_still", 100)]
    core.step(answer)  # It waited in a socket while this process stood still.
    for _ in range(4):
        await _tick(ticked)
    assert not ticks.are_fresh
    core.step(answer)
    await _tick(ticked)
    running.cancel()
    assert ticks.are_fresh
    assert core.leadership is not None


async def test_a_leader_that_was_voted_out_while_it_stood_still_is_none() -> None:
    clock, core, ticked = ManualClock(), leader(), asyncio.Event()
    ticks = _ticks(clock, ticked)
    running = asyncio.create_task(ticks.run(core))
    await asyncio.sleep(0)
    clock.ms += 100
    await _tick(ticked)
    core.step(AppendRejected(sender=N2, to=N1, term=core.term + 1, previous_offset=0, hint=NOTHING))
    assert core.leadership is None
    await _tick(ticked)
    running.cancel()
    assert ticks.are_fresh, "as a follower, or a leader of another term"


def _ticks(
    clock: ManualClock, ticked: asyncio.Event, *, is_stuck: bool = False, is_alone: bool = False
) -> ElectionTicks:
    return ElectionTicks(
        clock=clock,
        election_timeout_ms=100,
        log=get_logger(),
        is_disk_stuck=lambda: is_stuck,
        is_alone=lambda: is_alone,
        is_reading=lambda: False,
        changed=ticked.set,
    )


async def _tick(ticked: asyncio.Event) -> None:
    ticked.clear()
    await ticked.wait()
