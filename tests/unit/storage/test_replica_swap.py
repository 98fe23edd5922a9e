"""ReplicaSwap: a future copy comes, follows, takes the replica's place, and carries all of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kraftjbod.core.config import TopicConfig
from kraftjbod.core.errors import (
    ErrorCode,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    OperatingError,
    OverloadedError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import TopicPartition, Uuid
from kraftjbod.storage.future_replica import FutureReplica
from kraftjbod.storage.log_dir import LogDir
from kraftjbod.storage.log_handle import LogHandle
from kraftjbod.storage.log_manager import LogManager
from kraftjbod.storage.mover_pool import MoverPool
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    ManualClock,
    batch,
    chores,
    directory_id,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
)
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.faults.vfs_mem import MemVfs

NO_LIMIT = 2**62
CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=1000)
MOVE = Uuid(bytes(range(16, 32)))


@dataclass
class Node:
    """One broker's storage with two dirs, each on a disk of its own."""

    manager: LogManager
    pool: MoverPool
    clock: ManualClock
    disks: tuple[MemVfs, MemVfs]
    vfss: tuple[FaultVfs, FaultVfs]

    @property
    def source(self) -> LogDir:
        return self.manager.dirs()[0]

    @property
    def target(self) -> LogDir:
        return self.manager.dirs()[1]

    def names(self, number: int) -> list[str]:
        return [e.name for e in self.disks[number].list_dir(f"/d{number + 1}") if e.is_dir]


async def start(disks: tuple[MemVfs, MemVfs] | None = None) -> Node:
    if disks is None:
        disks = (MemVfs(), MemVfs())
        for i, disk in enumerate(disks, 1):
            format_dir(disk, f"/d{i}", i)
    clock = ManualClock()
    vfss = (FaultVfs(disks[0]), FaultVfs(disks[1]))
    dirs = [open_dir(vfs, f"/d{i}", i, clock=clock) for i, vfs in enumerate(vfss, 1)]
    manager = manager_of(dirs, CONFIG, clock)
    await manager.load()
    return Node(manager, MoverPool(threads=1, clock=clock), clock, disks, vfss)


async def append(handle: LogHandle, size: int = 200, *, epoch: int = 0, **fields: object) -> None:
    data = batch(2, body=bytes([epoch]) * size, **fields)  # type: ignore[arg-type]
    await handle.append_as_leader(data, headers_of(data), epoch)


async def create(node: Node, batches: int = 12) -> LogHandle:
    handle = await node.manager.create(TP, TOPIC_ID, directory_id(1))
    for _ in range(batches):
        await append(handle)
    return handle


async def move_to_end(node: Node) -> FutureReplica:
    future = await node.manager.create_future(TP, node.target, MOVE)
    handle = node.manager.get(TP)
    assert handle is not None
    async with node.pool.lane() as lane:
        while not (await future.catch_up(handle, lane, 700)).is_caught_up:
            pass
    return future


async def promote(node: Node) -> LogHandle:
    async with node.pool.lane() as lane:
        return await node.manager.promote_future(TP, lane)


async def content(handle: LogHandle) -> bytes:
    offset, found = handle.log_start_offset, b""
    while offset < handle.log_end_offset:
        records = (await handle.read(offset, 1 << 20, NO_LIMIT, True)).records
        found += bytes(records)
        offset = headers_of(records)[-1].next_offset
    return found


async def test_a_copy_takes_the_replicas_place():
    node = await start()
    old = await create(node)
    before = await content(old)
    old.high_watermark = 20
    future = await move_to_end(node)
    assert node.names(1) == [f"t-0.{MOVE.hex()}-future"]
    assert (future.log_end_offset, future.lag_behind(old)) == (old.log_end_offset, 0)
    new = await promote(node)
    assert node.manager.get(TP) is new
    assert new.log_dir is node.target
    assert node.manager.futures() == []
    assert (node.names(0), node.names(1)) == ([f"t-0.{MOVE.hex()}-delete"], ["t-0"])
    assert (new.log_start_offset, new.log_end_offset) == (0, old.log_end_offset)
    assert (new.recovery_point, new.high_watermark) == (new.log_end_offset, 20)
    assert await content(new) == before
    await append(new)
    assert new.log_end_offset == old.log_end_offset + 2
