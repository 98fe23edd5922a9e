"""``World`` and ``VirtualLoop``: time jumps, order is kept, and dead processes stay dead."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.core import buggify
from kraftjbod.testing.simulation import world as worlds
from kraftjbod.testing.simulation.virtual_loop import virtual_loop
from kraftjbod.testing.simulation.world import EndlessLoopError, World


def test_world_jumps_from_timer_to_timer_in_order() -> None:
    world = World(seed=1)
    a, b = virtual_loop(world, "a"), virtual_loop(world, "b")
    said: list[tuple[str, float]] = []

    async def talk(name: str, pause_s: float) -> None:
        async with asyncio.timeout(100):
            for _ in range(2):
                await asyncio.sleep(pause_s)
                said.append((name, asyncio.get_running_loop().time()))

    tasks = [a.create_task(talk("a", 3600.0)), b.create_task(talk("b", 0.25))]
    world.run_until(10_000_000)
    assert said == [("b", 0.25), ("b", 0.5)]
    assert world.now_us == 10_000_000
    world.run_until(200_000_000)
    assert isinstance(tasks[0].exception(), TimeoutError)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_buggify_points_of_a_world_are_on_only_while_it_runs() -> None:
    fires: list[bool] = []
    for world in (World(seed=1), World(seed=2)):
        loop = virtual_loop(world, "a")
        loop.call_soon(lambda: fires.append(buggify.is_on))
        if world.seed == 2:
            world.points = buggify.Points(world.rng_of)
        world.run_until(1)
        assert not buggify.is_on
    assert fires == [False, True]


def test_iteration_cost_delays_only_the_process_that_computes() -> None:
    world = World(seed=1)
    busy, free = virtual_loop(world, "busy"), virtual_loop(world, "free")
    busy.iteration_us = 400_000
    ran: list[tuple[str, int]] = []
    for loop in (busy, free):
        for after_us in (100_000, 100_000, 200_000, 900_000):
            loop.call_after_us(after_us, lambda name=loop.name: ran.append((name, world.now_us)))
    world.run_until(2_000_000)
    assert [at_us for name, at_us in ran if name == "free"] == [100_000, 100_000, 200_000, 900_000]
    assert [at_us for name, at_us in ran if name == "busy"] == [100_000, 100_000, 500_000, 900_000]


def test_received_bytes_delay_the_next_iteration() -> None:
    world = World(seed=1)
    loop, ran = virtual_loop(world, "busy"), list[int]()
    loop.iteration_us, loop.us_per_byte = 1_000, 0.5
    loop.call_after_us(100, lambda: loop.spend_on(10_000))
    loop.call_after_us(200, lambda: ran.append(world.now_us))
    world.run_until(1_000_000)
    assert ran == [6_100]


def test_dead_loop_runs_no_callbacks() -> None:
    world = World(seed=1)
    loop = virtual_loop(world, "a")
    said: list[str] = []
    loop.call_later(1, said.append, "timer")
    loop.call_soon(said.append, "soon")
    loop.is_dead = True
    loop.call_soon(said.append, "late")
    world.run_until(5_000_000)
    assert said == []


def test_endless_callbacks_without_progress_of_time_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "MAX_CALLBACKS_AT_ONCE", 100)
    world = World(seed=1)
    loop = virtual_loop(world, "a")

    def again() -> None:
        loop.call_soon(loop.call_at, loop.time(), again)

    again()
    with pytest.raises(EndlessLoopError, match="a"):
        world.run_until(1)


def test_rng_of_depends_on_name_and_seed_only() -> None:
    assert World(1).rng_of("x").random() == World(1).rng_of("x").random()
    assert World(1).rng_of("x").random() != World(1).rng_of("y").random()
    assert World(1).rng_of("x").random() != World(2).rng_of("x").random()
