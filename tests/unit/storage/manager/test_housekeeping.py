"""Background jobs of a log manager, each called directly, and the loop that runs them."""

from __future__ import annotations

import asyncio
from errno import ENOSPC

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import LogDirImpairedError, OffsetOutOfRangeError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.wall_guard import SETTLES_AFTER_MS, WallGuard
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.manager.housekeeping import Housekeeping
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    ManualClock,
    batch,
    checkpoint,
    chores,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    random_bytes_of,
    read_log,
)
from tests.faults.vfs_fault import Fault, FaultVfs

CONFIG = TopicConfig(segment_bytes=1024, flush_ms=50)


async def make() -> tuple[LogManager, MemVfs, ManualClock]:
    vfs, clock = MemVfs(), ManualClock()
    format_dir(vfs, "/d1", 1)
    manager = manager_of([open_dir(vfs, clock=clock)], CONFIG, clock)
    await manager.load()
    return manager, vfs, clock


async def test_flush_overdue_flushes_after_flush_ms() -> None:
    manager, _, clock = await make()
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(batch(), headers_of(batch()), 0)
    await chores(manager).flush_overdue()
    assert handle.recovery_point == 0
    clock.ms += 50
    await chores(manager).flush_overdue()
    assert handle.recovery_point == 1


async def test_rolled_segment_is_flushed_in_the_background() -> None:
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


async def test_background_jobs_skip_an_offline_directory() -> None:
    manager, _, clock = await make()
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(batch(), headers_of(batch()), 0)
    handle.log_dir.go_offline("gone")
    clock.ms += 100_000
    await chores(manager).flush_overdue()
    await chores(manager).retain()
    await chores(manager).purge_due()
    await checkpoint(manager)
    await manager.checkpoint_high_watermarks({TP: 1})
    assert handle.recovery_point == 0


async def test_checkpoint_writes_recovery_points_and_log_starts() -> None:
    manager, vfs, _ = await make()
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(batch(), headers_of(batch()), 0)
    await handle.flush()
    await checkpoint(manager)
    assert vfs.read_if_exists("/d1/recovery-point-offset-checkpoint") == b"0\n1\nt 0 1\n"
    assert vfs.read_if_exists("/d1/log-start-offset-checkpoint") == b"0\n1\nt 0 0\n"
    await handle.truncate_to(0)
    assert vfs.read_if_exists("/d1/recovery-point-offset-checkpoint") == b"0\n1\nt 0 0\n"


async def test_background_jobs_of_a_hung_directory_delay_no_other_directory() -> None:
    """Flushes and purges of a healthy disk continue while another disk does not respond."""
    hung, well, clock = FaultVfs(MemVfs()), MemVfs(), ManualClock()
    format_dir(hung, "/d1", 1)
    format_dir(well, "/d2", 2)
    dirs = [open_dir(hung, clock=clock), open_dir(well, "/d2", 2, clock=clock)]
    manager = LogManager(
        dirs=dirs,
        clock=clock,
        default_config=CONFIG.model_copy(update={"flush_ms": 1, "file_delete_delay_ms": 0}),
        random_bytes=random_bytes_of(),
        flush_check_interval_ms=1,
    )
    await manager.load()
    data = batch()
    handles = [
        await manager.create(TopicPartition("t", n), TOPIC_ID, log_dir.directory_id)
        for n, log_dir in enumerate(dirs)
    ]
    hung.inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"sync"})))
    for handle in handles:
        await handle.append_as_leader(data, headers_of(data), 0)
    clock.ms += 1_000
    background = asyncio.ensure_future(manager.run_background())
    try:
        async with asyncio.timeout(20):
            while handles[1].recovery_point < 1:
                await asyncio.sleep(0.001)
            await manager.delete(TopicPartition("t", 1))
            while [entry for entry in well.list_dir("/d2") if entry.is_dir]:
                await asyncio.sleep(0.001)
        assert handles[0].recovery_point == 0
    finally:
        background.cancel()
        hung.release()
        with pytest.raises(asyncio.CancelledError):
            await background


async def fill_disk(manager: LogManager, vfs: MemVfs) -> None:
    """Leave no free space, and let an append detect that."""
    vfs.capacity_bytes = vfs.used_bytes()
    handle = manager.get(TP)
    assert handle is not None
    with pytest.raises(LogDirImpairedError):
        await handle.append_as_leader(batch(), headers_of(batch()), 0)


async def segments(manager: LogManager, count: int, config: TopicConfig = CONFIG) -> LogHandle:
    handle = await manager.create(TP, TOPIC_ID, config=config)
    data = batch(body=bytes(600))
    for _ in range(count):
        await handle.append_as_leader(data, headers_of(data), 0)
    handle.high_watermark = handle.log_end_offset
    return handle


async def test_reclaim_space_of_a_full_directory_applies_retention_at_once() -> None:
    manager, vfs, clock = await make()
    handle = await segments(manager, 4)
    await fill_disk(manager, vfs)
    used = vfs.used_bytes()
    await chores(manager).reclaim_space()
    assert handle.log_start_offset == 0
    # A smaller retention applies at once, without waiting for the next interval or delay.
    manager.update_config(TP.topic, CONFIG.model_copy(update={"retention_bytes": 600}), [0])
    await chores(manager).reclaim_space()
    assert handle.log_start_offset == 3
    assert vfs.used_bytes() < used - 1800
    with pytest.raises(OffsetOutOfRangeError):
        await read_log(handle, 0, 1 << 20, 2**62, True)
    # Retention by time is repeated every few seconds.
    handle.set_config(CONFIG.model_copy(update={"retention_ms": 0}))
    await chores(manager).reclaim_space()
    assert handle.size_bytes > 0
    clock.ms += 3_000
    await chores(manager).reclaim_space()
    assert (handle.size_bytes, handle.log_start_offset) == (0, 4)


async def test_reclaim_space_of_a_directory_with_space_does_nothing() -> None:
    manager, vfs, _ = await make()
    handle = await segments(manager, 4, CONFIG.model_copy(update={"retention_bytes": 600}))
    await chores(manager).reclaim_space()
    assert handle.log_start_offset == 0
    await handle.apply_retention()
    used = vfs.used_bytes()
    await chores(manager).reclaim_space()
    assert vfs.used_bytes() == used


async def test_reclaim_space_purges_a_deleted_replica_at_once() -> None:
    manager, vfs, _ = await make()
    await segments(manager, 4)
    await fill_disk(manager, vfs)
    await manager.delete(TP)
    await chores(manager).reclaim_space()
    assert [entry.name for entry in vfs.list_dir("/d1") if entry.is_dir] == []


async def test_flush_that_found_no_space_is_retried() -> None:
    mem, clock = MemVfs(), ManualClock()
    format_dir(mem, "/d1", 1)
    vfs = FaultVfs(mem)
    manager = manager_of([open_dir(vfs, clock=clock)], CONFIG, clock)
    await manager.load()
    handle = await segments(manager, 1)
    fault = vfs.inject(Fault(errno=ENOSPC, path="*leader-epoch*", sticky=False))
    chores(manager).request_flush(handle)
    background = asyncio.ensure_future(chores(manager).run_jobs())
    while not fault.hits:
        await asyncio.sleep(0.001)
    while handle.recovery_point < handle.log_end_offset:
        await chores(manager).flush_overdue()
        await asyncio.sleep(0.001)
    background.cancel()


async def test_background_job_unexpected_error_of_a_replica_affects_no_other_replica() -> None:
    vfs, clock = FaultVfs(MemVfs()), ManualClock()
    format_dir(vfs, "/d1", 1)
    manager = manager_of([open_dir(vfs, clock=clock)], CONFIG, clock)
    await manager.load()
    bad, good = [await manager.create(TopicPartition("t", n), TOPIC_ID) for n in (0, 1)]
    for handle in (bad, good):
        await handle.append_as_leader(batch(), headers_of(batch()), 0)

    def see(kind: str, path: str) -> None:
        if kind == "sync" and "/t-0/" in path:
            raise ZeroDivisionError(path)

    vfs.on_operation = see
    clock.ms += 50
    with capture_logs() as logged:
        await chores(manager).flush_overdue()
    assert (bad.recovery_point, good.recovery_point) == (0, 1)
    assert [e["job"] for e in logged if e["event"] == "background_job_failed"] == ["housekeeping"]
    assert bad.log_dir.jobs.failures == 1
    assert bad.log_dir.is_online


async def test_background_job_that_fails_as_a_whole_ends_no_other_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager, _, clock = await make()
    handle = await manager.create(TP, TOPIC_ID)

    async def broken(_: Housekeeping) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Housekeeping, "retain", broken)
        background = asyncio.ensure_future(manager.run_background())
        while not handle.log_dir.jobs.failures:
            await asyncio.sleep(0.001)
            clock.ms += 1000
    data = batch(body=bytes(600))
    for _ in range(2):
        await handle.append_as_leader(data, headers_of(data), 0)
    while handle.recovery_point < 2:
        await asyncio.sleep(0.001)
    background.cancel()
    with pytest.raises(asyncio.CancelledError):
        await background


async def test_retain_ignores_a_clock_jump_until_the_clock_is_trusted() -> None:
    manager, _, clock = await make()
    handle = await manager.create(TP, TOPIC_ID)
    jump_ms, guard, jumped = 2 * handle.config.retention_ms, WallGuard(), [0]
    clock.possible_now = lambda: guard.sample(clock.now_ms(), clock.now_ms() + jumped[-1])
    for one in (0, jump_ms, -jump_ms, jump_ms):
        jumped.append(one)
        data = batch(body=bytes(600), timestamp=clock.wall_ms())
        await handle.append_as_leader(data, headers_of(data), 0)
        handle.high_watermark = handle.log_end_offset
        await chores(manager).retain()
        assert handle.log_start_offset == 0
    clock.ms += SETTLES_AFTER_MS
    await chores(manager).retain()
    assert handle.log_start_offset == handle.log_end_offset == 4
