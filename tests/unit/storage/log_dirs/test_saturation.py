"""``Saturation``: errors of other threads, a full queue, and a stall while the disk is full.

``tests/faults/dirs/test_full_dir.py`` has the whole sequence of a disk that fills up and is freed.
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


class Saturated:
    """A ``Saturation`` whose probes run at once, and whose reported changes are counted."""

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


async def test_saturation_fill_up_releases_the_reserve_and_reports_one_change() -> None:
    saturated = Saturated()
    with capture_logs() as logged:
        saturated.saturation.fill_up("append: No space", full(), is_attempt=False)
    assert saturated.saturation.reserve_bytes == 0
    assert (saturated.condition.state, saturated.changes) == (LogDirState.SATURATED, 1)
    assert [line["event"] for line in logged] == ["log_dir_reserve_released", "log_dir_saturated"]
    saturated.saturation.fill_up("append: No space", full(), is_attempt=False)
    assert saturated.changes == 1


async def test_saturation_releases_the_reserve_only_for_errors_judged_full() -> None:
    saturated = Saturated()
    for error in (OSError(EIO, "broken"), ValueError("a bug")):
        saturated.saturation.give_reserve_if_full(OpKind.APPEND, error)
    flush = full()
    try:
        with FailsAs(OpKind.FLUSH):
            raise flush
    except OSError as e:
        saturated.saturation.give_reserve_if_full(OpKind.APPEND, e)
    assert saturated.saturation.reserve_bytes == MIB
    saturated.saturation.give_reserve_if_full(OpKind.APPEND, full())
    assert saturated.saturation.reserve_bytes == 0


async def test_saturation_rebuilds_the_reserve_at_the_second_good_check() -> None:
    saturated = Saturated()
    saturated.saturation.fill_up("append: No space", full(), is_attempt=False)
    saturated.check(2 * MIB)
    assert saturated.saturation.reserve_bytes == 0
    saturated.check(2 * MIB)
    assert saturated.saturation.reserve_bytes == MIB
    assert (saturated.condition.state, saturated.saturation.full_reason) == (LogDirState.ONLINE, "")
    assert saturated.changes == 2


async def test_saturation_with_a_full_queue_waits_for_the_next_check() -> None:
    saturated = Saturated(max_ops=1)
    saturated.saturation.fill_up("append: No space", full(), is_attempt=False)
    busy = saturated.executor.submit_op(lambda: None)
    for _ in range(3):
        saturated.check(2 * MIB)
    assert saturated.condition.state is LogDirState.SATURATED
    await busy
    saturated.check(2 * MIB)
    assert saturated.condition.state is LogDirState.ONLINE
    saturated.executor.shutdown()


async def test_saturation_is_remembered_during_a_stall() -> None:
    saturated = Saturated()
    saturated.condition.step(LogDirEvent.SUSPECTED, "slow")
    saturated.saturation.fill_up("append: No space", full(), is_attempt=False)
    assert (saturated.condition.state, saturated.changes) == (LogDirState.STALLED, 0)
    assert saturated.saturation.full_reason
    for _ in range(2):
        saturated.check(2 * MIB)
    assert saturated.saturation.full_reason == "", "it healed meanwhile"
    assert saturated.condition.state is LogDirState.STALLED


@pytest.mark.parametrize(("free", "is_full"), [(2 * MIB - 1, True), (2 * MIB, False)])
async def test_secure_reserve_of_a_missing_reserve_raises_unless_the_directory_would_heal(
    free: int, is_full: bool
) -> None:
    saturated = Saturated()
    saturated.reserve.release()
    saturated.mem.make_dirs("/d1/t-0")
    saturated.mem.capacity_bytes = saturated.mem.used_bytes() + free
    if is_full:
        with pytest.raises(OSError, match=f"{free} free bytes are too few"):
            saturated.saturation.secure_reserve(lambda: None)
    else:
        saturated.saturation.secure_reserve(lambda: None)
    assert saturated.saturation.reserve_bytes == (0 if is_full else MIB)


async def test_secure_reserve_accepts_complete_reserve_on_full_disk() -> None:
    saturated = Saturated()
    saturated.mem.make_dirs("/d1/t-0")
    saturated.mem.capacity_bytes = saturated.mem.used_bytes()
    saturated.saturation.secure_reserve(lambda: None)
    assert saturated.saturation.reserve_bytes == MIB
