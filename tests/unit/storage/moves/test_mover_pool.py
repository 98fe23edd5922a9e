"""``MoverPool``: one thread per move, in order, and replaced when a disk hangs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kraftjbod.core.errors import OverloadedError
from kraftjbod.storage.moves.mover_pool import MoverPool
from tests.faults.rig import ManualClock


async def test_mover_pool_runs_each_executor_in_a_named_thread() -> None:
    pool = MoverPool(threads=2, clock=ManualClock())
    async with pool.executor() as a, pool.executor() as b:
        names = [await one.submit_op(lambda: threading.current_thread().name) for one in (a, b)]
    assert names == ["replica-alter-log-dirs-0", "replica-alter-log-dirs-1"]
    pool.close()


async def test_mover_pool_serves_moves_in_order() -> None:
    pool, order = MoverPool(threads=1, clock=ManualClock()), list[int]()

    async def move(number: int) -> None:
        async with pool.executor() as executor:
            await executor.submit_op(lambda: order.append(number))

    await asyncio.gather(*(move(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]
    pool.close()


async def test_mover_pool_replaces_a_hung_thread() -> None:
    pool, release = MoverPool(threads=1, clock=ManualClock()), threading.Event()
    async with pool.executor() as stuck:
        hanging: asyncio.Future[bool] = stuck.submit_op(release.wait)
    with pytest.raises(OverloadedError):
        await hanging
    async with pool.executor() as fresh:
        assert fresh is not stuck
        assert await fresh.submit_op(lambda: 42) == 42
    async with pool.executor() as again:
        assert again is fresh
    release.set()
    pool.close()
