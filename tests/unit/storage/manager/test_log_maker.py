"""LogMaker, by way of its log manager: where, how often, and what is left of earlier replicas."""

from __future__ import annotations

import asyncio
from errno import ENOSPC

import pytest

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    batch,
    checkpoint,
    directory_id,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
)
from tests.faults.vfs_fault import Fault, FaultVfs


async def start(*vfss: MemVfs | FaultVfs) -> LogManager:
    dirs = []
    for i, vfs in enumerate(vfss, 1):
        if not vfs.exists(f"/d{i}/meta.properties"):
            format_dir(vfs, f"/d{i}", i)
        dirs.append(open_dir(vfs, f"/d{i}", i))
    manager = manager_of(dirs)
    await manager.load()
    return manager


async def test_a_replica_counts_in_its_dir_while_it_is_made():
    manager = await start(MemVfs(), MemVfs())
    one, two = manager.dirs()
    first = asyncio.create_task(manager.create(TP, TOPIC_ID, directory_id(2)))
    await asyncio.sleep(0)
    assert manager.get(TP) is None
    assert manager.maker.is_making(TP)
    assert (manager.maker.is_making_in(one), manager.maker.is_making_in(two)) == (False, True)
    second = asyncio.create_task(manager.create(TP, TOPIC_ID, directory_id(1)))
    await asyncio.sleep(0)
    # Whoever gives up does not stop it for the others.
    first.cancel()
    assert (await second).log_dir is two
    assert manager.get(TP) is await second
    assert not manager.maker.is_making(TP)
    assert not manager.maker.is_making_in(two)


async def test_replicas_spread_over_dirs_of_equal_size():
    manager = await start(MemVfs(), MemVfs(), MemVfs())
    for i in range(9):
        await manager.create(TopicPartition("t", i), TOPIC_ID)
    assert [len(manager.handles_in(d)) for d in manager.dirs()] == [3, 3, 3]


async def test_create_where_reported_and_once():
    manager = await start(MemVfs(), MemVfs())
    handle = await manager.create(TP, TOPIC_ID, directory_id(2))
    assert handle.log_dir.path == "/d2"
    assert await manager.create(TP, TOPIC_ID, directory_id(1)) is handle
    with pytest.raises(KafkaStorageError, match="none of this node's"):
        await manager.create(TopicPartition("t", 1), TOPIC_ID, directory_id(9))


@pytest.mark.parametrize("restarts_between", [False, True])
async def test_a_new_replica_has_nothing_from_an_earlier_one_of_its_name(restarts_between: bool):
    vfs = MemVfs()
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    records = batch(10)
    await handle.append_as_leader(records, headers_of(records), 0)
    await handle.flush()
    await checkpoint(manager)
    await manager.checkpoint_high_watermarks({TP: 10})
    await manager.delete(TP)
    if restarts_between:
        manager = await start(vfs)
        manager.discard_deleted(*manager.orphans)
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(records, headers_of(records), 1)

    # A crash: what the checkpoints claim decides how much of the log is trusted.
    handle = (await start(vfs)).get(TP)
    assert handle is not None
    assert handle.log_end_offset == 10
    assert (handle.checkpointed_high_watermark, handle.checkpointed_recovery_point) == (0, 0)


async def test_a_creation_that_broke_off_is_in_nobodys_way():
    mem = MemVfs()
    vfs = FaultVfs(mem)
    manager = await start(vfs)
    # Not even what was made can be taken away again.
    vfs.inject(Fault(errno=ENOSPC, path="*.log"))
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"remove_tree"})))
    with pytest.raises(LogDirImpairedError):
        await manager.create(TP, TOPIC_ID)
    assert mem.exists(f"/d1/{TP}")
    vfs.clear()
    manager = manager_of([open_dir(vfs)])
    await manager.load()
    await manager.create(TopicPartition("u", 0), TOPIC_ID)
    assert [entry.name for entry in mem.list_dir("/d1") if entry.is_dir] == ["t-0", "u-0"]


async def test_what_a_process_before_left_half_made_is_no_stray():
    mem = MemVfs()
    manager = await start(mem)
    mem.make_dirs(f"/d1/{TP}")
    mem.open(f"/d1/{TP}/partition.metadata.tmp", OpenMode.CREATE)
    await manager.create(TP, TOPIC_ID)
    assert [entry.name for entry in mem.list_dir("/d1") if entry.is_dir] == ["t-0"]
