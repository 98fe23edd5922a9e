"""Jobs behind the requests, each called once by hand, and the loop that calls them."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.core.config import TopicConfig
from kraftjbod.storage.log_manager import LogManager
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    ManualClock,
    batch,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
)
from tests.faults.vfs_mem import MemVfs

CONFIG = TopicConfig(segment_bytes=1024, flush_ms=50)


async def make() -> tuple[LogManager, MemVfs, ManualClock]:
    vfs, clock = MemVfs(), ManualClock()
    format_dir(vfs, "/d1", 1)
    manager = manager_of([open_dir(vfs, clock=clock)], CONFIG, clock)
    await manager.load()
    return manager, vfs, clock


async def test_flush_by_time():
    manager, _, clock = await make()
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(batch(), headers_of(batch()), 0)
    await manager._housekeeping.flush_overdue()
    assert handle.recovery_point == 0
    clock.ms += 50
    await manager._housekeeping.flush_overdue()
    assert handle.recovery_point == 1


async def test_rolled_segment_is_flushed_in_the_background():
    manager, _, _ = await make()
    handle = await manager.create(TP, TOPIC_ID)
    background = asyncio.ensure_future(manager.run_background())
    data = batch(body=bytes(600))
    for _ in range(2):
        await handle.append_as_leader(data, headers_of(data), 0)
    while handle.recovery_point < 2:
        await asyncio.sleep(0.001)
    background.cancel()
    with pytest.raises(asyncio.CancelledError):
        await background


async def test_dead_dir_does_not_stop_the_jobs():
    manager, _, clock = await make()
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(batch(), headers_of(batch()), 0)
    handle.log_dir.go_offline("gone")
    clock.ms += 100_000
    await manager._housekeeping.flush_overdue()
    await manager._housekeeping.retain()
    await manager._housekeeping.purge_due()
    await manager.checkpoint_recovery_points()
    await manager.checkpoint_high_watermarks({TP: 1})
    assert handle.recovery_point == 0


async def test_checkpoint_of_recovery_points():
    manager, vfs, _ = await make()
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(batch(), headers_of(batch()), 0)
    await handle.flush()
    await manager.checkpoint_recovery_points()
    assert vfs.read_if_exists("/d1/recovery-point-offset-checkpoint") == b"0\n1\nt 0 1\n"
    assert vfs.read_if_exists("/d1/log-start-offset-checkpoint") == b"0\n0\n"
    await handle.truncate_to(0)
    assert vfs.read_if_exists("/d1/recovery-point-offset-checkpoint") == b"0\n1\nt 0 0\n"
