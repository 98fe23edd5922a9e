"""``close_logs`` at a clean stop: order and number of fsyncs, power cuts, and full disks."""

from __future__ import annotations

from collections import Counter
from errno import EMFILE, ENOSPC

import pytest

from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.manager.closing import close_logs
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.vfs import OpenMode, Vfs
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.large_log import CountingVfs, count_steps
from tests.faults.rig import (
    TOPIC_ID,
    ManualClock,
    batch,
    checkpoint,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
)
from tests.faults.vfs_fault import Fault, FaultVfs

REPLICAS = 20
MARK = "/d1/.kafka_cleanshutdown"


async def start(vfs: Vfs, clock: ManualClock | None = None) -> LogManager:
    if not vfs.exists("/d1/meta.properties"):
        format_dir(vfs, "/d1", 1)
    manager = manager_of([open_dir(vfs, "/d1", 1, clock=clock)])
    await manager.load()
    return manager


async def append(handle: LogHandle, epoch: int = 0) -> None:
    await handle.append_as_leader(batch(), headers_of(batch()), epoch)


async def start_with_records(vfs: Vfs, clock: ManualClock | None = None) -> LogManager:
    manager = await start(vfs, clock)
    for partition in range(REPLICAS):
        await append(await manager.create(TopicPartition("t", partition), TOPIC_ID))
    return manager


async def test_close_logs_syncs_all_files_before_the_first_directory() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await start_with_records(vfs)
    done: list[str] = []
    vfs.on_operation = lambda kind, path: done.append(kind)
    assert await close_logs(manager.dirs()[0], manager.handles()) is None
    first_sync, last_sync = done.index("sync"), len(done) - 1 - done[::-1].index("sync")
    assert "write_at" not in done[first_sync:]
    assert "sync_dir" not in done[:last_sync]
    # The log, both indexes, leader epochs, the producer snapshot, and the directory.
    counts = Counter(done)
    assert (counts["sync"], counts["sync_dir"]) == (5 * REPLICAS, REPLICAS)


async def test_close_logs_reports_progress_between_fsyncs() -> None:
    vfs, clock = FaultVfs(MemVfs()), ManualClock()
    manager = await start_with_records(vfs, clock)
    log_dir = manager.dirs()[0]
    running_ms: list[int] = []

    def count(kind: str, path: str) -> None:
        if kind in ("sync", "sync_dir"):
            running_ms.append(log_dir.running_ms)
            clock.ms += 1_000

    vfs.on_operation = count
    await close_logs(log_dir, manager.handles())
    assert running_ms == [0] * (6 * REPLICAS)


async def test_close_logs_of_unchanged_logs_needs_one_operation_per_replica() -> None:
    mem = MemVfs()
    await (await start_with_records(mem)).close(1)
    vfs = CountingVfs(mem)
    manager = await start(vfs)
    steps = count_steps(manager.dirs()[0], vfs)
    await close_logs(manager.dirs()[0], manager.handles())
    # One fsync per directory.
    assert sum(operations for _, operations in steps) == REPLICAS
    assert {kind for kind, _ in steps} == {OpKind.CLOSE}


@pytest.mark.parametrize("is_truncated", [False, True])
async def test_close_logs_rewrites_the_snapshot_of_a_changed_log(is_truncated: bool) -> None:
    """The snapshot is rewritten also if the log has the same end offset as when it was loaded."""
    vfs = MemVfs()
    manager = await start(vfs)
    handle = await manager.create(TopicPartition("t", 0), TOPIC_ID)
    await append(handle)
    await manager.close(1)
    manager = await start(vfs)
    (handle,) = manager.handles()
    if is_truncated:
        await handle.truncate_to(0)
    records = batch(producer=(7, 0, 0))
    await handle.append_as_leader(records, headers_of(records), 1)
    await manager.close(2)
    (handle,) = (await start(vfs.crash_clone(1))).handles()
    assert [one.producer_id for one in await handle.known_producers()] == [7]
    assert handle.latest_epoch == 1


@each_case("seed", range(3))
async def test_close_logs_power_cut_loses_no_flushed_record(seed: int) -> None:
    """The power is cut at each operation; each log has a flushed and an unflushed record."""
    vfs = FaultVfs(mem := MemVfs())
    manager = await start(vfs)
    for partition in range(3):
        handle = await manager.create(TopicPartition("t", partition), TOPIC_ID)
        await append(handle)
        await handle.flush()
        await append(handle, epoch=1)
    await checkpoint(manager)
    left: list[MemVfs] = []
    vfs.on_operation = lambda kind, path: left.append(mem.crash_clone(seed * 1000 + len(left)))
    await manager.close(1)
    vfs.on_operation = None
    left.append(mem.crash_clone(seed))
    for clone in left:
        is_clean = clone.exists(MARK)
        loaded = await start(clone)
        for handle in loaded.handles():
            assert handle.log_start_offset == 0
            assert handle.view.damages == ()
            assert handle.log_end_offset in ((2,) if is_clean else (1, 2))
            assert handle.latest_epoch == handle.log_end_offset - 1
        assert len(loaded.handles()) == 3
        for log_dir in loaded.dirs():
            log_dir.close()
    assert is_clean


async def tear_end(vfs: FaultVfs, handle: LogHandle) -> None:
    """Let an append fail halfway, and the truncation of its bytes, which the kernel writes."""
    vfs.inject(Fault(effect=DiskFault.SHORT_WRITE, errno=EMFILE, kinds=frozenset({"write_at"})))
    vfs.inject(Fault(errno=EMFILE, kinds=frozenset({"truncate"})))
    with pytest.raises(OverloadedError):
        await append(handle)
    vfs.clear()
    vfs.inner.open(handle.view.segments[-1].path, OpenMode.READ_WRITE).sync()


@pytest.mark.parametrize("kind", ["write_at", "rename"])
async def test_close_logs_on_a_full_disk_syncs_files_of_the_failed_attempt(kind: str) -> None:
    """Each write, and each rename, of the stop finds no space once, and the reserve is released.

    A load after a clean stop trusts the files without a scan.
    """
    nth, fault = 0, None
    while fault is None or fault.hits:
        nth += 1
        vfs = FaultVfs(mem := MemVfs())
        manager = await start(vfs)
        for partition in range(2):
            handle = await manager.create(TopicPartition("t", partition), TOPIC_ID)
            await append(handle, epoch=3)
            if partition:
                await handle.flush()
                await tear_end(vfs, handle)
        fault = vfs.inject(
            Fault(errno=ENOSPC, path="/d1/t-*", kinds=frozenset({kind}), nth=nth, sticky=False)
        )
        assert await close_logs(manager.dirs()[0], manager.handles()) is None
        for partition in range(2):
            names = [entry.name for entry in mem.list_dir(f"/d1/t-{partition}")]
            assert not [name for name in names if name.endswith(".tmp")]
            paths = [f"/d1/t-{partition}/{name}" for name in names]
            assert [path for path in paths if mem.open(path, OpenMode.READ).is_dirty] == []
    assert nth > 7


async def test_close_logs_without_any_space_closes_all_files() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await start_with_records(vfs)
    vfs.inject(Fault(errno=ENOSPC, path="/d1/t-0/*", kinds=frozenset({"write_at"})))
    error = await close_logs(manager.dirs()[0], manager.handles())
    assert error is not None and "No space" in error.message
    for handle in manager.handles():
        assert all(segment.file is None for segment in handle.view.segments)
