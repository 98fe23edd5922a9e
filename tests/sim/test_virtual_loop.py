"""``VirtualLoop`` used by asyncio. test_world.py tests its time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator

from kraftjbod.testing.simulation.virtual_loop import DriftingClock, virtual_loop
from kraftjbod.testing.simulation.world import World


def test_tasks_futures_and_generators_work_on_virtual_loop() -> None:
    world = World(seed=1)
    loop = virtual_loop(world, "a")
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for i in range(10):
                yield i
        finally:
            await asyncio.sleep(0)
            closed.append("generator")

    async def work() -> int:
        async for number in numbers():
            if number == 1:
                break
        first = asyncio.create_task(asyncio.sleep(1, "first"))
        second = asyncio.create_task(asyncio.sleep(2, "second"))
        done, waiting = await asyncio.wait({first, second}, return_when="FIRST_COMPLETED")
        assert (done, waiting) == ({first}, {second})
        return len(await asyncio.gather(first, second))

    task = loop.create_task(work())
    world.run_until(5_000_000)
    assert task.result() == 2
    assert closed == ["generator"]


def test_unhandled_exception_of_callback_is_recorded() -> None:
    world = World(seed=1)
    loop = virtual_loop(world, "a")

    def fail() -> None:
        raise ValueError("a bug")

    loop.call_soon(fail)
    world.run_until(1)
    assert [str(c["exception"]) for c in loop.complaints] == ["a bug"]
    assert "bug" in world.trace.lines[-1]


def test_coroutine_started_by_dead_process_is_closed() -> None:
    """Its ``finally`` blocks run when it is buried, and some start tasks."""
    loop = virtual_loop(World(seed=1), "a")
    loop.is_dead = True
    coroutine = asyncio.sleep(1)
    loop.create_task(coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def test_drifting_clock_never_jumps_and_fires_no_timer_early() -> None:
    now = [0]
    clock = DriftingClock(lambda: now[0])
    now[0] = 1_000
    clock.set_rate(1.1)
    assert clock.now_us() == 1_000
    now[0] = 2_000
    assert clock.now_us() == 2_100
    clock.set_rate(0.9)
    assert clock.now_us() == 2_100
    for own_us in (2_100, 2_101, 2_999.5, 7_777):
        now[0] = clock.world_us(own_us)
        assert clock.now_us() >= own_us
        now[0] -= 1
        assert clock.now_us() < own_us
