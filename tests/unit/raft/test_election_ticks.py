"""Who may rely on the time: not a process that stood still, and not one without a disk."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.core.telemetry import get_logger
from kraftjbod.raft.election_ticks import ElectionTicks
from tests.faults.rig import ManualClock
from tests.unit.raft.test_quorum_view import leader


@pytest.mark.parametrize(
    ("pause_ms", "is_stuck", "is_alone", "leads"),
    [
        (1, False, False, True),
        (100, False, False, False),
        (1, True, False, False),
        (100, True, True, True),
    ],
)
async def test_a_leader_with_company_gives_up(
    pause_ms: int, is_stuck: bool, is_alone: bool, leads: bool
) -> None:
    clock, core, ticked = ManualClock(), leader(), asyncio.Event()
    ticks = ElectionTicks(
        clock=clock,
        election_timeout_ms=100,
        log=get_logger(),
        is_disk_stuck=lambda: is_stuck,
        is_alone=lambda: is_alone,
        changed=ticked.set,
    )
    running = asyncio.create_task(ticks.run(core))
    await asyncio.sleep(0)
    clock.ms += pause_ms
    assert ticks.are_fresh is (pause_ms < 100)
    await ticked.wait()
    running.cancel()
    assert (core.leadership is not None) is leads
