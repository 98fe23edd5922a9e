"""``SimulatedHost``: remains of a killed process, and of a host without power."""

from __future__ import annotations

import asyncio
import gc
import signal
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_network import MemoryNetwork
from kraftjbod.testing.simulation.simulated_host import HostClock, SimulatedHost, SimulatedProcess
from kraftjbod.testing.simulation.world import World


class _Writer:
    """A process that writes a byte per millisecond, and syncs the first ten."""

    def __init__(self) -> None:
        self.cleaned_up = 0

    async def __call__(self, process: SimulatedProcess) -> int:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        file = process.make_vfs().open("/h/d/f", OpenMode.CREATE)
        try:
            while not stopped.is_set():
                file.write_at(file.size(), [b"x"])
                if file.size() == 10:
                    file.sync()
                    process.make_vfs().sync_dir("/h/d")
                await asyncio.sleep(0.001)
        finally:
            self.cleaned_up += 1
        return 7


Make = Callable[[], tuple[SimulatedHost, _Writer]]


@pytest.fixture
def make_host() -> Iterator[Make]:
    made: list[SimulatedHost] = []

    def make() -> tuple[SimulatedHost, _Writer]:
        host, life = _host()
        made.append(host)
        return host, life

    yield make
    for host in made:
        host.kill()
        for process in host.past:
            process.bury()


def _host() -> tuple[SimulatedHost, _Writer]:
    world, life = World(seed=1), _Writer()
    host = SimulatedHost(world, MemoryNetwork(world), "h", life)
    host.add_disk("/h/d", 1).vfs.make_dirs("/h/d")
    host.start()
    return host, life


def _size(host: SimulatedHost) -> int:
    return len(host.disks["/h/d"].vfs.read_if_exists("/h/d/f") or b"")


def test_killed_process_runs_no_cleanup_and_loses_no_bytes(make_host: Make) -> None:
    host, life = make_host()
    host.world.run_until(50_500)
    host.kill()
    host.world.run_until(90_000)
    assert (_size(host), life.cleaned_up, host.exit_code) == (51, 0, None)
    host.past[0].bury()
    assert (_size(host), life.cleaned_up) == (51, 1)
    host.start()
    host.world.run_until(100_000)
    assert _size(host) > 51


def test_power_cut_keeps_synced_bytes_and_is_repeatable(make_host: Make) -> None:
    left = set()
    for _ in range(2):
        host, _ = make_host()
        host.world.run_until(50_000)
        host.power_cut()
        left.add(_size(host))
    assert len(left) == 1
    assert 10 <= left.pop() <= 51 + 200


def test_stopped_process_ends_with_cleanup(make_host: Make) -> None:
    host, life = make_host()
    host.world.run_until(20_000)
    host.stop()
    host.world.run_until(30_000)
    assert (host.is_up, host.exit_code, life.cleaned_up) == (False, 7, 1)


def test_wall_clock_jump_leaves_monotonic_clock_unchanged(make_host: Make) -> None:
    host, _ = make_host()
    clock = HostClock(host)
    before = clock.now_ms(), clock.wall_ms()
    host.wall_offset_ms = 3_600_000
    assert clock.now_ms() == before[0]
    assert clock.wall_ms() == before[1] + 3_600_000
    assert clock.possible_now().doubt_ms == 3_600_000


def test_kill_at_operation_prevents_that_operation(make_host: Make) -> None:
    host, _ = make_host()
    assert host.process is not None
    file = host.process.make_vfs().open("/h/d/g", OpenMode.CREATE)
    host.at_operation(2, host.kill)
    file.write_at(0, [b"first"])
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write_at(5, [b"second"])
    assert host.disks["/h/d"].vfs.read_if_exists("/h/d/g") == b"first"
    assert not host.is_up


def test_stop_during_a_pause_is_handled_after_the_pause(make_host: Make) -> None:
    host, life = make_host()
    host.world.run_until(20_500)
    resume = host.pause_process()
    host.stop()
    host.world.run_until(50_000)
    assert (_size(host), host.is_up) == (21, True)
    resume()
    host.world.run_until(60_000)
    assert (host.exit_code, life.cleaned_up) == (7, 1)
    assert _size(host) <= 22


def test_process_killed_during_a_pause_never_continues(make_host: Make) -> None:
    host, life = make_host()
    resume = host.pause_process()
    host.kill()
    host.start()
    resume()
    host.world.run_until(10_500)
    assert (_size(host), life.cleaned_up) == (11, 0)


def test_bury_closes_coroutines_of_tasks_that_never_began() -> None:
    """A request that arrives just before its process is killed leaves no warning behind."""

    async def answer() -> None:
        raise AssertionError("the process was killed before")

    async def run(answering: Coroutine[Any, Any, None]) -> None:
        await answering

    async def life(process: SimulatedProcess) -> int:
        task = asyncio.get_running_loop().create_task(run(answer()))
        host.kill()
        await task
        return 0

    world = World(seed=1)
    host = SimulatedHost(world, MemoryNetwork(world), "h", life)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        host.start()
        world.run_until(1_000)
        for process in host.past:
            process.bury()
        host.past.clear()
        gc.collect()
    assert [str(one.message) for one in caught] == []
