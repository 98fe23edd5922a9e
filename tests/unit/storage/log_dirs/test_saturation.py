"""Saturation: errors of other threads, a queue without a place, and a stall in between.

The whole story, with a disk that fills up and is freed, is in tests/faults/dirs/test_full_dir.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from errno import EIO, ENOSPC
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.log_dir_state import LogDirEvent, LogDirState
from kraftjbod.storage.log_dirs.dir_condition import DirCondition
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.free_space_policy import FreeSpacePolicy
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.log_dirs.reserve_file import ReserveFile
from kraftjbod.storage.log_dirs.saturation import Saturation
from kraftjbod.storage.vfs import Space
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import ManualClock, directory_id, random_bytes_of

MIB = 1024 * 1024


class Scene:
    """Saturation whose probes are done at once, and whose changes are counted."""

    def __init__(self, *, max_ops: int = 100) -> None:
        self.mem = MemVfs()
        self.mem.make_dirs("/d1")
        self.condition = DirCondition("/d1", directory_id(1))
        self.executor = LogDirExecutor(name="x", clock=ManualClock(), max_ops=max_ops)
        self.reserve = ReserveFile(
            vfs=self.mem, directory="/d1", size_bytes=MIB, random_bytes=random_bytes_of()
        )
        self.changes = 0
        self.saturation = Saturation(
            self.condition,
            vfs=self.mem,
            executor=self.executor,
            reserve=self.reserve,
            plan=FreeSpacePolicy(reserve_bytes=MIB),
            probe=self.probe,
            report_change=self.count,
        )
        self.saturation.secure_reserve(lambda: None)

    def count(self) -> None:
        self.changes += 1

    def probe(self, op: Callable[[], Any], settle: Callable[[Any], None]) -> asyncio.Future[None]:
        settle(op())
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def check(self, free_bytes: int) -> None:
        space = Space(total_bytes=9 * MIB, usable_bytes=free_bytes, free_inodes=1000)
        self.saturation.note_space(space, lambda: None)


def full() -> OSError:
    return OSError(ENOSPC, "No space")


async def test_an_error_from_another_thread_frees_the_reserve_too() -> None:
    scene = Scene()
    with capture_logs() as logged:
        scene.saturation.fill_up("append: No space", full(), is_attempt=False)
    assert scene.saturation.reserve_bytes == 0
    assert (scene.condition.state, scene.changes) == (LogDirState.SATURATED, 1)
    assert [line["event"] for line in logged] == ["log_dir_reserve_released", "log_dir_saturated"]
    scene.saturation.fill_up("append: No space", full(), is_attempt=False)
    assert scene.changes == 1


async def test_only_an_error_that_is_judged_full_frees_it() -> None:
    scene = Scene()
    for error in (OSError(EIO, "broken"), ValueError("a bug")):
        scene.saturation.give_reserve_if_full(OpKind.APPEND, error)
    flush = full()
    try:
        with FailsAs(OpKind.FLUSH):
            raise flush
    except OSError as e:
        scene.saturation.give_reserve_if_full(OpKind.APPEND, e)
    assert scene.saturation.reserve_bytes == MIB
    scene.saturation.give_reserve_if_full(OpKind.APPEND, full())
    assert scene.saturation.reserve_bytes == 0


async def test_it_is_rebuilt_by_the_second_good_check() -> None:
    scene = Scene()
    scene.saturation.fill_up("append: No space", full(), is_attempt=False)
    scene.check(2 * MIB)
    assert scene.saturation.reserve_bytes == 0
    scene.check(2 * MIB)
    assert scene.saturation.reserve_bytes == MIB
    assert (scene.condition.state, scene.saturation.full_reason) == (LogDirState.ONLINE, "")
    assert scene.changes == 2


async def test_a_queue_without_a_place_waits_for_the_next_check() -> None:
    scene = Scene(max_ops=1)
    scene.saturation.fill_up("append: No space", full(), is_attempt=False)
    busy = scene.executor.submit_op(lambda: None)
    for _ in range(3):
        scene.check(2 * MIB)
    assert scene.condition.state is LogDirState.SATURATED
    await busy
    scene.check(2 * MIB)
    assert scene.condition.state is LogDirState.ONLINE
    scene.executor.shutdown()


async def test_full_is_remembered_through_a_stall() -> None:
    scene = Scene()
    scene.condition.step(LogDirEvent.SUSPECTED, "slow")
    scene.saturation.fill_up("append: No space", full(), is_attempt=False)
    assert (scene.condition.state, scene.changes) == (LogDirState.STALLED, 0)
    assert scene.saturation.full_reason
    for _ in range(2):
        scene.check(2 * MIB)
    assert scene.saturation.full_reason == "", "it healed meanwhile"
    assert scene.condition.state is LogDirState.STALLED


@pytest.mark.parametrize(("free", "is_full"), [(2 * MIB - 1, True), (2 * MIB, False)])
async def test_a_dir_that_was_full_is_so_after_a_restart_until_it_would_have_healed(
    free: int, is_full: bool
) -> None:
    scene = Scene()
    scene.reserve.release()
    scene.mem.make_dirs("/d1/t-0")
    scene.mem.capacity_bytes = scene.mem.used_bytes() + free
    if is_full:
        with pytest.raises(OSError, match=f"{free} free bytes are too few"):
            scene.saturation.secure_reserve(lambda: None)
    else:
        scene.saturation.secure_reserve(lambda: None)
    assert scene.saturation.reserve_bytes == (0 if is_full else MIB)


async def test_a_reserve_that_is_there_speaks_for_the_dir() -> None:
    scene = Scene()
    scene.mem.make_dirs("/d1/t-0")
    scene.mem.capacity_bytes = scene.mem.used_bytes()
    scene.saturation.secure_reserve(lambda: None)
    assert scene.saturation.reserve_bytes == MIB
