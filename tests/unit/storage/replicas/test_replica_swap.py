"""``ReplicaSwap``: promotion of a future replica with the complete state of its replica."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from errno import EINVAL

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import (
    ErrorCode,
    KafkaStorageError,
    LogDirImpairedError,
    NotLeaderOrFollowerError,
    OperatingError,
    OverloadedError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import TopicPartition, Uuid
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.moves.future_replica import FutureReplica
from kraftjbod.storage.moves.mover_pool import MoverPool
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    ManualClock,
    batch,
    checkpoint,
    chores,
    directory_id,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    random_bytes_of,
    read_log,
)
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.gates import Gate

NO_LIMIT = 2**62
CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=1000)
MOVE = Uuid(bytes(range(16, 32)))


@dataclass
class Node:
    """The storage of one broker with two directories on separate disks."""

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


def registry_of(node: Node) -> ReplicaRegistry:
    """Return a registry with the present replicas of the node, which only the caller changes."""
    registry = ReplicaRegistry(
        dirs=node.manager.dirs(), default_config=CONFIG, random_bytes=random_bytes_of()
    )
    for handle in node.manager.handles():
        registry.put(handle)
    for future in node.manager.futures():
        registry.futures[future.topic_partition] = future
    return registry


async def append(handle: LogHandle, size: int = 200, *, epoch: int = 0, **fields: object) -> None:
    data = batch(2, body=bytes([epoch]) * size, **fields)  # type: ignore[arg-type]
    await handle.append_as_leader(data, headers_of(data), epoch)


async def create(node: Node, batches: int = 12) -> LogHandle:
    handle = await node.manager.create(TP, TOPIC_ID, directory_id(1))
    for _ in range(batches):
        await append(handle)
    return handle


async def move_to_end(node: Node) -> FutureReplica:
    await node.manager.create_future(TP, node.target, MOVE)
    return await move_on(node)


async def move_on(node: Node) -> FutureReplica:
    """Let a started move catch up."""
    future, handle = node.manager.future(TP), node.manager.get(TP)
    assert future is not None
    assert handle is not None
    async with node.pool.executor() as executor:
        while not (await future.catch_up(handle, executor, 700)).is_caught_up:
            pass
    return future


async def promote(node: Node) -> LogHandle:
    async with node.pool.executor() as executor:
        return await node.manager.promote_future(TP, executor)


async def content(handle: LogHandle) -> bytes:
    offset, found = handle.log_start_offset, b""
    while offset < handle.log_end_offset:
        records = (await read_log(handle, offset, 1 << 20, NO_LIMIT, True)).records
        found += bytes(records)
        offset = headers_of(records)[-1].next_offset
    return found


async def test_promote_future_replaces_the_replica() -> None:
    node = await start()
    old = await create(node)
    before = await content(old)
    old.high_watermark = 20
    future = await move_to_end(node)
    assert node.names(1) == [f"t-0.{MOVE.hex()}-future"]
    assert (future.log_end_offset, future.lag_of(old)) == (old.log_end_offset, 0)
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


async def test_promote_future_carries_epochs_producers_and_high_watermark() -> None:
    """KAFKA-15608: leader epochs that were not carried over caused wrong truncations."""
    node = await start()
    old = await create(node, 0)
    await append(old, epoch=0, producer=(7, 0, 0))
    await append(old, epoch=3, producer=(7, 0, 2))
    await append(old, 900, epoch=5)
    old.high_watermark = 4
    await move_to_end(node)
    new = await promote(node)
    assert new.view.epochs == old.view.epochs
    assert new.end_offset_for_epoch(3) == (3, 4)
    assert new.high_watermark == 4
    data = batch(2, body=bytes([3]) * 200, producer=(7, 0, 2))
    again = await new.append_as_leader(data, headers_of(data), 5)
    assert (again.duplicate, again.base_offset) == (True, 2)
    data = batch(2, producer=(7, 0, 99))
    with pytest.raises(OperatingError) as refused:
        await new.append_as_leader(data, headers_of(data), 5)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_promote_future_needs_no_scan_and_no_index_rebuild() -> None:
    node = await start()
    old = await create(node, 30)
    await move_to_end(node)
    new = await promote(node)
    node.vfss[1].inject(fault := Fault(kinds=frozenset({"read_at"}), path="*.log", nth=10**9))
    segment = new.view.segments[0]
    segment.load_indexes()
    for was, now in zip(old.view.segments, new.view.segments, strict=True):
        assert now.indexes().to_files() == was.indexes().to_files()
    # Each index file is compared with one batch.
    assert fault.seen <= 2 * len(new.view.segments)


async def test_promote_future_uses_a_config_that_changed_meanwhile() -> None:
    node = await start()
    await create(node)
    await move_to_end(node)
    with Gate(node.vfss[1], "rename", f"/d2/t-0.{MOVE.hex()}-future") as gate:
        promoting = asyncio.ensure_future(promote(node))
        await gate.reached()
        changed = CONFIG.model_copy(update={"retention_ms": 5})
        node.manager.update_config(TP.topic, changed, [TP.partition])
        gate.open()
        assert (await promoting).config.retention_ms == 5


async def test_replaced_replica_is_readable_until_its_purge_and_not_writable() -> None:
    node = await start()
    old = await create(node)
    before = await content(old)
    await move_to_end(node)
    await promote(node)
    assert await content(old) == before
    with pytest.raises(NotLeaderOrFollowerError, match="moved to another log directory"):
        await append(old)
    node.clock.ms += 1001
    await chores(node.manager).purge_due()
    assert node.names(0) == []
    with pytest.raises(NotLeaderOrFollowerError):
        await read_log(old, 0, 100, NO_LIMIT, True)


async def test_retention_pause_ends_when_its_block_fails() -> None:
    """KAFKA-16709: retention stayed paused after a move had failed, and the disk filled up."""
    node = await start()
    old = await create(node)
    old.high_watermark = old.log_end_offset
    old.set_config(CONFIG.model_copy(update={"retention_bytes": 0}))
    with pytest.raises(ValueError, match="move failed"), old.retention_paused():
        assert await old.apply_retention() == 0
        raise ValueError("move failed")
    assert await old.apply_retention() > 0


async def test_future_replica_applies_retention_and_truncation_of_its_source() -> None:
    """KAFKA-9087: a future replica behind a truncated log stalls, or keeps removed records."""
    node = await start()
    old = await create(node)
    future = await move_to_end(node)
    old.high_watermark = 10
    old.set_config(CONFIG.model_copy(update={"retention_bytes": 0}))
    assert await old.apply_retention() > 0
    await old.truncate_to(old.log_end_offset - 3)
    await append(old, 300, epoch=1)
    async with node.pool.executor() as executor:
        step = await future.catch_up(old, executor)
    assert (step.is_caught_up, step.lag_offsets) == (True, 0)
    assert future.size_bytes == old.size_bytes
    new = await promote(node)
    assert (new.log_start_offset, new.view.epochs) == (old.log_start_offset, old.view.epochs)
    assert await content(new) == await content(old)


async def test_promote_future_fails_without_changes_if_the_log_grew_meanwhile() -> None:
    node = await start()
    old = await create(node)
    future = await move_to_end(node)
    async with node.pool.executor() as executor:

        async def finish_late(*_: object) -> None:
            await FutureReplica.finish(future, *_)  # type: ignore[arg-type]
            await append(old)

        future.finish = finish_late  # type: ignore[method-assign]  # A concurrent produce request.
        with pytest.raises(OverloadedError, match="written to while its copy took its place"):
            await node.manager.promote_future(TP, executor)
        del future.finish
        await append(old)
        assert node.manager.get(TP) is old
        new = await node.manager.promote_future(TP, executor)
    assert new.log_end_offset == old.log_end_offset


async def test_promote_future_with_a_failing_target_keeps_the_source() -> None:
    node = await start()
    old = await create(node)
    await move_to_end(node)
    node.vfss[1].inject(Fault(kinds=frozenset({"rename"}), path="*-future"))
    with pytest.raises(KafkaStorageError) as failed:
        await promote(node)
    assert failed.value.directory_id == directory_id(2)
    assert [d.is_online for d in node.manager.dirs()] == [True, False]
    assert node.manager.get(TP) is old
    assert node.names(0) == ["t-0"]
    await append(old)
    assert len(await content(old)) == old.size_bytes


async def test_promote_future_that_cannot_be_undone_takes_the_source_offline() -> None:
    """Only a bug, here or in a file system, refuses that rename; the next start repairs it."""
    node = await start()
    old = await create(node)
    await move_to_end(node)
    node.vfss[1].inject(Fault(kinds=frozenset({"rename"}), path="*-future", errno=EINVAL))
    node.vfss[0].inject(Fault(kinds=frozenset({"rename"}), path="*-delete", errno=EINVAL))
    with capture_logs() as logged, pytest.raises(KafkaStorageError):
        await promote(node)
    assert "swap_not_undone" in [line["event"] for line in logged]
    assert (node.source.is_online, node.target.is_online) == (False, True)
    again = await start(node.disks)
    found = again.manager.get(TP)
    assert found is not None and found.log_end_offset == old.log_end_offset


async def test_create_future_is_refused_with_a_reason() -> None:
    node = await start()
    with pytest.raises(UnknownTopicOrPartitionError):
        await node.manager.create_future(TP, node.target, MOVE)
    handle = await create(node, 1)
    with pytest.raises(OperatingError, match="is already in /d1"):
        await node.manager.create_future(TP, node.source, MOVE)
    await node.manager.create_future(TP, node.target, MOVE)
    with pytest.raises(OperatingError) as refused:
        await node.manager.create_future(TP, node.target, MOVE)
    assert refused.value.code is ErrorCode.REASSIGNMENT_IN_PROGRESS
    with pytest.raises(OperatingError, match="promoted, not adopted"):
        await node.manager.adopt_future(TP)
    assert node.manager.get(TP) is handle
    long = TopicPartition("t" * 230, 0)
    await node.manager.create(long, TOPIC_ID, directory_id(1))
    with pytest.raises(OperatingError, match="The topic name is too long") as refused:
        await node.manager.create_future(long, node.target, MOVE)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(UnknownTopicOrPartitionError, match="no future copy"):
        await node.manager.promote_future(long, None)  # type: ignore[arg-type]


async def test_drop_future_waits_for_a_running_adoption() -> None:
    """The topic is deleted meanwhile; the replica is deleted afterwards under its own name."""
    node = await start()
    await create(node)
    await move_to_end(node)
    node.source.go_offline("the test says so")
    node.manager.drop(node.source)
    with Gate(node.vfss[1], "rename", f"/d2/t-0.{MOVE.hex()}-future") as gate:
        adopting = asyncio.ensure_future(node.manager.adopt_future(TP))
        await gate.reached()
        dropping = asyncio.ensure_future(node.manager.drop_future(TP))
        await asyncio.sleep(0)
        gate.open()
        handle = await adopting
        await dropping
    assert node.manager.get(TP) is handle
    assert node.names(1) == ["t-0"]
    await node.manager.delete(TP)
    assert [name.endswith("-delete") for name in node.names(1)] == [True]


async def test_drop_future_removes_the_copy_at_once_and_is_idempotent() -> None:
    node = await start()
    await create(node)
    await move_to_end(node)
    await node.manager.drop_future(TP)
    await node.manager.drop_future(TP)
    assert node.manager.future(TP) is None
    await chores(node.manager, node.target).purge_due()
    assert node.names(1) == []
    await move_to_end(node)
    assert (await promote(node)).log_dir is node.target


async def test_promote_future_does_not_block_appends_while_the_target_hangs() -> None:
    node = await start()
    old = await create(node)
    await move_to_end(node)
    fault = node.vfss[1].inject(Fault(effect=DiskFault.HANG, path="*future*"))
    swap = asyncio.ensure_future(promote(node))
    try:
        while not fault.hits:
            await asyncio.sleep(0.001)
        node.target.suspect("its own probes do not return")
        with pytest.raises(LogDirImpairedError):
            async with asyncio.timeout(30):
                await swap
        await append(old)
        assert (node.names(0), len(node.names(1))) == (["t-0"], 1)
    finally:
        node.vfss[1].clear()
    node.target.absolve()
    await node.manager.drop_future(TP)
    await move_to_end(node)
    moved = await promote(node)
    assert (moved.log_dir, moved.log_end_offset) == (node.target, old.log_end_offset)


async def test_drop_future_on_an_offline_target_keeps_its_files() -> None:
    node = await start()
    await create(node)
    await move_to_end(node)
    node.target.go_offline("pulled out")
    await node.manager.drop_future(TP)
    assert node.manager.futures() == []
    assert node.names(1) == [f"t-0.{MOVE.hex()}-future"]


async def test_promote_future_moves_a_replica_back_to_its_first_directory() -> None:
    """The checkpoints of the old copy in that directory must not apply to the new copy."""
    node = await start()
    old = await create(node)
    await old.flush()
    await checkpoint(node.manager)
    await move_to_end(node)
    moved = await promote(node)
    await moved.truncate_to(4)
    await append(moved, epoch=2)
    future = await node.manager.create_future(TP, node.source, Uuid(bytes(range(1, 17))))
    async with node.pool.executor() as executor:
        while not (await future.catch_up(moved, executor)).is_caught_up:
            pass
        back = await node.manager.promote_future(TP, executor)
    assert back.log_dir is node.source
    text = node.disks[0].read_if_exists("/d1/recovery-point-offset-checkpoint")
    assert text is not None
    assert f"t 0 {back.log_end_offset}" in text.decode()
    again = await start((node.disks[0].crash_clone(1), node.disks[1].crash_clone(2)))
    handle = again.manager.get(TP)
    assert handle is not None
    assert (handle.log_dir, handle.log_end_offset) == (again.source, back.log_end_offset)
