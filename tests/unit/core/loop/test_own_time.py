"""``wait_awake``: a pause of the process does not count as waiting time; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.core.loop.own_time import wait_awake
from kraftjbod.testing.simulation.virtual_loop import VirtualLoop, virtual_loop
from kraftjbod.testing.simulation.world import World

TIMEOUT_MS = 1_000


@pytest.fixture
def loop() -> VirtualLoop:
    return virtual_loop(World(seed=1), "a")


def begin(loop: VirtualLoop) -> tuple[asyncio.Future[None], asyncio.Task[bool]]:
    awaited: asyncio.Future[None] = loop.create_future()
    return awaited, loop.create_task(wait_awake(awaited, TIMEOUT_MS))


def test_wait_awake_times_out_and_leaves_the_future_pending(loop: VirtualLoop) -> None:
    awaited, waiting = begin(loop)
    loop.world.run_until(990_000)
    assert not waiting.done()
    loop.world.run_until(1_001_000)
    assert waiting.result() is False
    assert not awaited.done()


@pytest.mark.parametrize("error", [None, OSError("late")])
def test_wait_awake_returns_at_once_on_result_or_error(
    loop: VirtualLoop, error: OSError | None
) -> None:
    awaited, waiting = begin(loop)
    if error is None:
        loop.call_after_us(500_000, awaited.set_result, None)
    else:
        loop.call_after_us(500_000, awaited.set_exception, error)
    loop.world.run_until(500_001)
    assert waiting.result() is True
    assert awaited.exception() is error


def test_wait_awake_after_a_pause_waits_the_remaining_time(loop: VirtualLoop) -> None:
    _, waiting = begin(loop)
    loop.world.run_until(500_000)
    loop.pause_process()
    loop.world.run_until(60_000_000)
    loop.go_on()
    loop.world.run_until(60_440_000)
    assert not waiting.done()
    loop.world.run_until(60_501_000)
    assert waiting.result() is False
