"""``CallMeter``: computing takes the virtual time of its Python calls."""

from __future__ import annotations

import sys

import pytest

from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.testing.simulation.call_meter import QUANTUM, CallMeter
from kraftjbod.testing.simulation.simulated_thread import SimulatedExecutor, pause
from kraftjbod.testing.simulation.virtual_loop import VirtualLoop, virtual_loop
from kraftjbod.testing.simulation.world import World


class _Clock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.now_us // 1000


def _nothing() -> None:
    return


def _trace_nothing(*_: object) -> None:
    return


def _call(times: int) -> None:
    for _ in range(times):
        _nothing()


def _costly(us_per_call: float = 1.0) -> tuple[World, VirtualLoop]:
    world = World(seed=1)
    world.meter = CallMeter()
    loop = virtual_loop(world, "a")
    loop.iteration_us, loop.us_per_call = 10, us_per_call
    return world, loop


@pytest.mark.parametrize(("calls", "next_us"), [(5 * QUANTUM, 5_110), (QUANTUM // 2, 200)])
def test_iteration_takes_the_time_of_its_calls_above_the_quantum(calls: int, next_us: int) -> None:
    world, loop = _costly()
    ran: list[int] = []
    loop.call_after_us(100, _call, calls)
    loop.call_after_us(200, lambda: ran.append(world.now_us))
    world.run_until(1_000_000)
    assert ran == [next_us]
    assert sys.gettrace() is None


def test_calls_of_a_free_process_cost_nothing() -> None:
    world, loop = _costly()
    free, ran = virtual_loop(world, "client"), list[int]()
    free.call_after_us(100, _call, 5 * QUANTUM)
    for one in (free, loop):
        one.call_after_us(200, lambda: ran.append(world.now_us))
    world.run_until(1_000_000)
    assert ran == [200, 200]


def test_calls_of_a_thread_delay_its_next_wait_and_its_result_and_not_the_loop() -> None:
    world, loop = _costly()
    said: list[tuple[str, int]] = []
    executor: LogDirExecutor = SimulatedExecutor(
        name="d0",
        clock=_Clock(world),  # type: ignore[arg-type] # as much of one as is used
    )

    def op() -> None:
        _call(3 * QUANTUM)
        pause(500)
        said.append(("read", world.now_us))
        _call(2 * QUANTUM)

    async def ask() -> None:
        await executor.submit_op(op)
        said.append(("done", world.now_us))

    loop.create_task(ask())
    loop.call_after_us(1_000, lambda: said.append(("loop", world.now_us)))
    world.run_until(1_000_000)
    assert said == [("loop", 1_000), ("read", 3_500), ("done", 5_500)]
    executor.shutdown(wait=False)
    world.run_until(1_001_000)


def test_counting_under_another_trace_function_keeps_it_and_counts_nothing() -> None:
    meter = CallMeter()
    before = sys.gettrace()
    sys.settrace(_trace_nothing)
    try:
        with meter.counting():
            _call(10)
        kept = sys.gettrace()
    finally:
        sys.settrace(before)
    assert kept is _trace_nothing
    assert meter.take() == meter.calls == 0
