"""A replica that moves between two disks while it is written to, and the conditions afterwards."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from kraftjbod.core.ids import Uuid
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDirFailureChannel
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.moves.mover_pool import MoverPool
from kraftjbod.storage.vfs import Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    ManualClock,
    batch,
    checkpoint,
    directory_id,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    read_log,
    stamped,
)
from tests.faults.vfs_fault import FaultVfs

NO_LIMIT = 2**62
CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=0)
MOVE = Uuid(bytes(range(16, 32)))


@dataclass
class Written:
    """The batches that a workload wrote, and the offsets up to which they are durable."""

    #: All batches by offset; a truncation can lead to several at one offset.
    batches: dict[int, list[bytes]] = field(default_factory=dict)
    #: End of the records that survive a power cut.
    certain_end: int = 0
    #: End of the records that survive a crash of the process.
    acked_end: int = 0
    #: Records before this offset must not come back.
    certain_start: int = 0
    is_created: bool = False

    def copy(self) -> Written:
        batches = {offset: list(found) for offset, found in self.batches.items()}
        ends = (self.certain_end, self.acked_end)
        return Written(batches, *ends, self.certain_start, self.is_created)


def two_disks() -> tuple[MemVfs, MemVfs]:
    disks = (MemVfs(), MemVfs())
    for i, disk in enumerate(disks, 1):
        format_dir(disk, f"/d{i}", i)
        disk.sync_dir(f"/d{i}")
    return disks


def manager_on(
    *vfss: Vfs,
    channel: LogDirFailureChannel | None = None,
    clock: ManualClock | None = None,
    io_suspect_ms: int = 2000,
    io_timeout_ms: int = 30_000,
) -> LogManager:
    dirs = [
        open_dir(
            vfs,
            f"/d{i}",
            i,
            channel=channel,
            clock=clock,
            io_suspect_ms=io_suspect_ms,
            io_timeout_ms=io_timeout_ms,
        )
        for i, vfs in enumerate(vfss, 1)
    ]
    return manager_of(dirs, CONFIG)


async def caught_up(manager: LogManager, written: Written, pool: MoverPool) -> LogHandle:
    """Create a replica in the first directory with a complete future copy in the second."""
    handle, rng = await manager.create(TP, TOPIC_ID, directory_id(1)), random.Random(5)
    written.is_created = True
    for _ in range(10):
        await append(handle, written, rng, 0)
    future = await manager.create_future(TP, manager.dirs()[1], MOVE)
    async with pool.executor() as executor:
        while not (await future.catch_up(handle, executor, 700)).is_caught_up:
            pass
    return handle


async def append(handle: LogHandle, written: Written, rng: random.Random, epoch: int) -> None:
    data = batch(rng.randint(1, 3), body=rng.randbytes(rng.randint(10, 300)))
    done = handle.append_as_leader(data, headers_of(data), epoch)
    # Noted before the append is done, because a crash may keep the write.
    stored = stamped(data, base_offset=handle.log_end_offset, leader_epoch=epoch)
    written.batches.setdefault(handle.log_end_offset, []).append(stored)
    await done
    written.acked_end = handle.log_end_offset


async def run_workload(manager: LogManager, written: Written, rng: random.Random) -> None:
    """Append, copy, roll, flush, delete, truncate, promote, append and stop.

    Checkpoints of housekeeping are written in between, as after DeleteRecords of other replicas.
    """
    handle = await manager.create(TP, TOPIC_ID, directory_id(1))
    written.is_created = True
    for _ in range(6):
        await append(handle, written, rng, 0)
    future = await manager.create_future(TP, manager.dirs()[1], MOVE)
    pool, epoch = MoverPool(threads=1, clock=ManualClock()), 0
    async with pool.executor() as executor:
        for step in range(14):
            for _ in range(rng.randint(0, 2)):
                await append(handle, written, rng, epoch)
            if rng.random() < 0.8:
                await future.catch_up(handle, executor, rng.randint(100, 900))
            if rng.random() < 0.3:
                await future.sync()
            if step % 5 == 2:
                await handle.flush()
                written.certain_end = handle.recovery_point
                await checkpoint(manager)
            if step in (3, 9, 12):
                await delete(handle, written)
            if step in (4, 7, 10):
                await truncate(handle, written, rng.randint(2, 9))
                epoch += 1
        promotion = asyncio.ensure_future(manager.promote_future(TP, executor))
        while not promotion.done():
            await checkpoint(manager)
        moved = await promotion
    assert moved.durable_log_start == written.certain_start
    written.certain_end = moved.log_end_offset
    for _ in range(4):
        await append(moved, written, rng, epoch)
    await manager.close(1)
    written.certain_end = moved.log_end_offset
    pool.close()


async def delete(handle: LogHandle, written: Written) -> None:
    """Delete up to 12 offsets from the end; an unclean leader may truncate below that."""
    handle.high_watermark = handle.log_end_offset
    await handle.start_at(max(handle.log_start_offset, handle.log_end_offset - 12))
    await handle.keep_log_start()
    written.certain_start = handle.log_start_offset


async def truncate(handle: LogHandle, written: Written, by: int) -> None:
    offset = handle.log_end_offset - by
    # The batch with this offset is removed as a whole, and a batch has up to 3 records.
    certain_end = written.certain_end
    written.certain_end = max(0, min(certain_end, offset - 2))
    written.acked_end = max(0, offset - 2)
    certain_start = written.certain_start
    written.certain_start = min(certain_start, written.acked_end)
    await handle.truncate_to(offset)
    written.certain_start = min(certain_start, handle.log_start_offset)
    written.certain_end = min(certain_end, handle.log_end_offset)
    written.acked_end = handle.log_end_offset


async def check_content(handle: LogHandle, written: Written) -> None:
    offset = handle.log_start_offset
    while offset < handle.log_end_offset:
        records = (await read_log(handle, offset, 1 << 20, NO_LIMIT, True)).records
        assert records, offset
        position = 0
        for header in headers_of(records):
            # A log may start in the middle of a batch.
            assert header.base_offset == offset or offset == handle.log_start_offset
            stored = bytes(records[position : position + header.size_bytes])
            assert stored in written.batches[header.base_offset], offset
            position += header.size_bytes
            offset = header.next_offset
    epochs = [entry.epoch for entry in handle.view.epochs]
    assert epochs == sorted(epochs)


async def check(disks: tuple[Vfs, Vfs], written: Written, *, at_least: int) -> str:
    """Load the disks twice: one current copy, no record lost, and a move that can be finished.

    Return the directory of the replica, and whether the move was still running.
    """
    found = ""
    for turn in range(2):
        manager = manager_on(*disks)
        await manager.load()
        assert all(log_dir.is_online for log_dir in manager.dirs())
        assert not manager.duplicates
        assert not manager.orphans
        handle = manager.get(TP)
        if handle is None:
            assert (at_least, written.certain_start) == (0, 0)
            assert not manager.futures()
            return "nothing yet"
        assert handle.log_end_offset >= at_least
        assert handle.log_start_offset >= written.certain_start
        await check_content(handle, written)
        if turn == 0:
            found = f"{handle.log_dir.path}{' moving' if manager.futures() else ''}"
            handle = await finish_move(manager, handle, written)
        await manager.close(2)
    for disk, number in zip(disks, (1, 2), strict=True):
        names = [entry.name for entry in disk.list_dir(f"/d{number}") if entry.is_dir]
        assert not any(name.endswith("-future") for name in names), names
    return found


async def finish_move(manager: LogManager, handle: LogHandle, written: Written) -> LogHandle:
    """Append, finish the move if there is one, and append again."""
    rng, epoch = random.Random(1), handle.latest_epoch + 1
    await append(handle, written, rng, epoch)
    if (future := manager.future(TP)) is not None:
        pool = MoverPool(threads=1, clock=ManualClock())
        async with pool.executor() as executor:
            while not (await future.catch_up(handle, executor, 500)).is_caught_up:
                pass
            moved = await manager.promote_future(TP, executor)
        pool.close()
        assert moved.log_end_offset == handle.log_end_offset
        assert moved.view.epochs == handle.view.epochs
        await check_content(moved, written)
        handle = moved
    await append(handle, written, rng, epoch)
    return handle


def watched(disks: tuple[MemVfs, MemVfs]) -> tuple[FaultVfs, FaultVfs]:
    return FaultVfs(disks[0]), FaultVfs(disks[1])
