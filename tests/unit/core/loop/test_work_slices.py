"""``WorkSlices``: long work on the event loop yields to other tasks."""

from __future__ import annotations

import asyncio
import gc
import weakref
from itertools import pairwise

from kraftjbod.core.loop.work_slices import WorkSlices, in_slices


def endless() -> WorkSlices:
    """Return slices of zero length, so that each event loop iteration has one turn."""
    return WorkSlices(slice_ms=0)


async def test_workers_share_the_slice_of_each_event_loop_iteration() -> None:
    slices, rounds = endless(), 0
    turns: list[tuple[int, int]] = []

    async def work(worker: int) -> None:
        for _ in range(5):
            await slices.turn()
            turns.append((rounds, worker))

    workers = [asyncio.ensure_future(work(worker)) for worker in range(10)]
    while not all(worker.done() for worker in workers):
        await asyncio.sleep(0)
        rounds += 1
    assert len(turns) == 50
    assert all(before < after for (before, _), (after, _) in pairwise(turns))
    # The first worker works before a queue exists.
    assert [worker for _, worker in turns][1:41] == list(range(10)) * 4


async def test_cancelled_waiter_blocks_no_other_waiter() -> None:
    slices = endless()
    await slices.turn()
    waiting = [asyncio.ensure_future(slices.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.gather(waiting[0], waiting[2])
    assert waiting[1].cancelled()


async def test_in_slices_keeps_order_and_does_not_yield_for_little_work() -> None:
    had_a_turn = False

    def note() -> None:
        nonlocal had_a_turn
        had_a_turn = True

    asyncio.get_running_loop().call_soon(note)
    assert [item async for item in in_slices(range(3))] == [0, 1, 2]
    assert not had_a_turn


def test_work_slices_of_closed_event_loop_are_freed() -> None:
    async def work() -> weakref.ref[asyncio.AbstractEventLoop]:
        assert [item async for item in in_slices("a")] == ["a"]
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(work())
    gc.collect()
    assert loop() is None
