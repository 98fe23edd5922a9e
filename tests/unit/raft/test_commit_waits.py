"""``CommitWaits``: waiting for an entry ends by commit, lost term, timeout or stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kraftjbod.raft.commit_waits import CommitWaits
from tests.faults.rig import ManualClock

_LONG_MS = 60_000


class Committed:
    offset = 4


@pytest.mark.parametrize(
    ("then", "is_known"),
    [
        (lambda waits, committed: (setattr(committed, "offset", 5), waits.wake_all()), True),
        (lambda waits, _: waits.lose_term(), False),
        (lambda waits, _: waits.end(), False),
    ],
    ids=["committed", "another-leads", "stopped"],
)
async def test_commit_waits_end_with_commit_lost_term_or_stop(
    then: Callable[[CommitWaits, Committed], object], is_known: bool
) -> None:
    committed = Committed()
    waits = CommitWaits(clock=ManualClock(), committed_offset=lambda: committed.offset)
    waiting = asyncio.create_task(waits.wait_for(5, _LONG_MS))
    until = asyncio.create_task(waits.until(5))
    await asyncio.sleep(0)
    waits.wake_all()
    await asyncio.sleep(0)
    assert not waiting.done() and not until.done(), "it has not come yet"
    then(waits, committed)
    await waiting
    assert await until is is_known


async def test_commit_waits_end_by_timeout_and_at_once_when_committed_or_stopped() -> None:
    waits = CommitWaits(clock=ManualClock(), committed_offset=lambda: 4)
    await waits.wait_for(5, 1)
    await waits.wait_for(4, _LONG_MS)
    assert await waits.until(4)
    waits.end()
    await waits.wait_for(5, _LONG_MS)
    assert not await waits.until(5)
