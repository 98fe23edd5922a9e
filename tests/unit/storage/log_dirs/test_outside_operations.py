"""``run_copy`` between two directories: attribution of errors, hung copies and pauses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from errno import EIO, ENOSPC, EROFS
from typing import TypeVar

import pytest

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor, MakeExecutor
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.outside_operations import run_copy
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from kraftjbod.testing.simulation.simulated_thread import SimulatedExecutor, pause
from kraftjbod.testing.simulation.virtual_loop import virtual_loop
from kraftjbod.testing.simulation.world import World
from tests.faults.rig import TP, ManualClock, directory_id, format_dir, open_dir


def fail_with(number: int, path: str | None = None) -> None:
    raise OSError(number, "on demand", path)


def pair(
    io_timeout_ms: int = 30_000, make_executor: MakeExecutor = LogDirExecutor
) -> tuple[LogDir, LogDir, LogDirExecutor]:
    dirs = []
    for number in (1, 2):
        mem = MemVfs()
        format_dir(mem, f"/d{number}", number)
        path, limit_ms = f"/d{number}", io_timeout_ms
        dirs.append(
            open_dir(mem, path, number, io_timeout_ms=limit_ms, make_executor=make_executor)
        )
    return dirs[0], dirs[1], make_executor(name="mover", clock=ManualClock())


T = TypeVar("T")


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def copy(
    source: LogDir,
    target: LogDir,
    executor: LogDirExecutor,
    op: Callable[[bool], T],
    read_again: Callable[[], None] | None = None,
) -> T:
    return await run_copy(
        source,
        target,
        executor,
        op,
        read_again=read_again or (lambda: None),
        settle=lambda result: result,
        replica=TP,
    )


@pytest.mark.parametrize(
    ("number", "path", "reading", "offline"),
    [
        (EIO, None, EIO, 1),
        (EIO, None, None, 2),
        (EROFS, None, EIO, 2),
        (EIO, "/d1/t-0/0.log", None, 1),
        (EIO, "/d2/t-0.future/0.log", None, 2),
        (EIO, "/d10/t-0/0.log", None, 2),
    ],
    ids=[
        "source",
        "target",
        "target is read-only",
        "source by name and only once",
        "target by name",
        "another path by name",
    ],
)
async def test_run_copy_error_takes_only_the_failed_directory_offline(
    number: int, path: str | None, reading: int | None, offline: int
) -> None:
    source, target, executor = pair()
    with pytest.raises(KafkaStorageError) as caught:
        await copy(
            source,
            target,
            executor,
            lambda by_kernel: fail_with(number, path),
            lambda: None if reading is None else fail_with(reading),
        )
    assert caught.value.directory_id == directory_id(offline)
    assert [source.is_online, target.is_online] == [offline == 2, offline == 1]


async def test_run_copy_without_space_saturates_the_target() -> None:
    source, target, executor = pair()
    with pytest.raises(LogDirImpairedError) as caught:
        await copy(source, target, executor, lambda by_kernel: fail_with(ENOSPC))
    assert caught.value.directory_id == directory_id(2)
    assert [source.state, target.state] == [LogDirState.ONLINE, LogDirState.SATURATED]


async def test_run_copy_that_hangs_takes_the_target_offline_if_the_source_answers() -> None:
    source, target, executor = pair(io_timeout_ms=20)
    release = threading.Event()
    with pytest.raises(KafkaStorageError, match="a copy into it has been running") as caught:
        await copy(source, target, executor, lambda by_kernel: release.wait())
    assert caught.value.directory_id == directory_id(2)
    assert source.is_online
    release.set()


def test_run_copy_timeout_excludes_the_time_of_a_paused_process() -> None:
    source, target, executor = pair(io_timeout_ms=5_000, make_executor=SimulatedExecutor)
    world = World(seed=1)
    loop = virtual_loop(world, "a")

    def two_writes(by_kernel: bool) -> str:
        pause(500_000)
        pause(500_000)
        return "copied"

    copying = loop.create_task(copy(source, target, executor, two_writes))
    world.run_until(250_000)
    loop.pause_process()
    world.run_until(60_000_000)
    loop.go_on()
    world.run_until(61_000_000)
    assert copying.result() == "copied"
    assert [source.is_online, target.is_online] == [True, True]


async def test_run_copy_refuses_an_offline_directory() -> None:
    source, target, executor = pair()
    source.go_offline("pulled out")
    with pytest.raises(KafkaStorageError, match="pulled out"):
        await copy(source, target, executor, lambda by_kernel: 1)
    assert executor.is_idle


async def test_run_copy_waiting_for_its_thread_does_not_start_after_a_failure() -> None:
    """The directory may have been reattached by then, and its files belong to another object."""
    source, target, mover = pair()
    begun: list[bool] = []
    released = threading.Event()
    mover.submit_op(released.wait)
    copying = asyncio.ensure_future(copy(source, target, mover, begun.append))
    await asyncio.sleep(0)
    source.go_offline("pulled out")
    with pytest.raises(KafkaStorageError):
        await copying
    assert not source.is_busy
    released.set()
    await until(lambda: mover.is_idle)
    assert not begun


async def test_directory_is_busy_while_a_mover_thread_is_in_the_kernel() -> None:
    source, target, mover = pair()
    begun, released = threading.Event(), threading.Event()

    def hang(_by_kernel: bool) -> None:
        begun.set()
        released.wait()

    copying = asyncio.ensure_future(copy(source, target, mover, hang))
    await until(begun.is_set)
    source.go_offline("pulled out")
    with pytest.raises(KafkaStorageError):
        await copying
    assert source.is_busy
    assert target.is_busy
    released.set()
    await until(lambda: not source.is_busy)
