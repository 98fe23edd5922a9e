"""``SimulatedExecutor``: a directory's thread in virtual time, which waits where a real one
would."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.testing.simulation.simulated_thread import Gate, SimulatedExecutor, pause
from kraftjbod.testing.simulation.virtual_loop import VirtualLoop, virtual_loop
from kraftjbod.testing.simulation.world import World


class _Clock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.now_us // 1000


def _executor(world: World) -> LogDirExecutor:
    return SimulatedExecutor(name="d0", clock=_Clock(world))  # type: ignore[arg-type]


def _begin(world: World, loop: VirtualLoop, gate: Gate, said: list[str]) -> LogDirExecutor:
    executor = _executor(world)

    def op(name: str) -> str:
        pause(1_000)
        said.append(f"{name} half done")
        gate.pass_through()
        pause(1_000)
        return name

    async def ask() -> None:
        done = [executor.submit_op(lambda name=name: op(name)) for name in ("first", "second")]
        said.extend([await future for future in done])

    loop.create_task(ask())
    return executor


def test_executor_runs_jobs_in_order_and_waits_at_a_gate() -> None:
    world, gate, said = World(seed=1), Gate(), list[str]()
    loop = virtual_loop(world, "a")
    gate.close()
    executor = _begin(world, loop, gate, said)
    world.run_until(5_000_000)
    assert said == ["first half done"]
    assert executor.running_for_ms() == 5_000
    gate.open()
    world.run_until(5_010_000)
    assert said == ["first half done", "second half done", "first", "second"]
    assert executor.running_for_ms() == 0
    executor.shutdown(wait=False)
    world.run_until(5_020_000)
    assert loop.threads == {}


@pytest.mark.parametrize("is_hanging", [False, True])
def test_operation_in_flight_completes_during_a_pause_of_its_process(is_hanging: bool) -> None:
    """The next operation of the same job begins after the pause."""
    world, gate, said = World(seed=1), Gate(), list[str]()
    loop = virtual_loop(world, "a")

    def op() -> None:
        for _ in range(2):
            pause(1_000)
            gate.pass_through()
            said.append("synced")

    async def ask() -> None:
        await _executor(world).submit_op(op)
        said.append("answered")

    loop.create_task(ask())
    if is_hanging:
        gate.close()
    world.run_until(2_000 if is_hanging else 500)
    loop.pause_process()
    gate.open()
    world.run_until(50_000)
    assert said == ["synced"]
    loop.go_on()
    world.run_until(60_000)
    assert said == ["synced", "synced", "answered"]


def test_thread_of_dead_process_never_continues() -> None:
    world, gate, said = World(seed=1), Gate(), list[str]()
    loop = virtual_loop(world, "a")
    gate.close()
    _begin(world, loop, gate, said)
    world.run_until(5_000_000)
    loop.is_dead = True
    gate.open()
    world.run_until(9_000_000)
    assert said == ["first half done"]
    for thread in list(loop.threads):
        thread.bury()
    assert said == ["first half done"]


def test_thread_has_no_running_event_loop() -> None:
    world = World(seed=1)
    loop = virtual_loop(world, "a")
    executor = _executor(world)

    async def ask() -> object:
        return await executor.submit_op(asyncio.get_running_loop)

    task = loop.create_task(ask())
    world.run_until(1_000)
    assert isinstance(task.exception(), RuntimeError)
