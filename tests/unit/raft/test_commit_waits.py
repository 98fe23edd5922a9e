"""Who waits for an entry is let go by it, by a lost term, by time, or by the end."""

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
        (lambda waits, committed: (setattr(committed, "offset", 5), waits.stir()), True),
        (lambda waits, _: waits.lose_term(), False),
        (lambda waits, _: waits.end(), False),
    ],
    ids=["committed", "another-leads", "stopped"],
)
async def test_what_lets_go(
    then: Callable[[CommitWaits, Committed], object], is_known: bool
) -> None:
    committed = Committed()
    waits = CommitWaits(clock=ManualClock(), committed_offset=lambda: committed.offset)
    waiting = asyncio.create_task(waits.wait_for(5, _LONG_MS))
    until = asyncio.create_task(waits.until(5))
    await asyncio.sleep(0)
    waits.stir()
    await asyncio.sleep(0)
    assert not waiting.done() and not until.done(), "it has not come yet"
    then(waits, committed)
    await waiting
    assert await until is is_known


async def test_time_lets_go_and_so_does_what_is_there_or_never_will_be() -> None:
    waits = CommitWaits(clock=ManualClock(), committed_offset=lambda: 4)
    await waits.wait_for(5, 1)
    await waits.wait_for(4, _LONG_MS)
    assert await waits.until(4)
    waits.end()
    await waits.wait_for(5, _LONG_MS)
    assert not await waits.until(5)
