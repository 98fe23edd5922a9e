"""Replicas that are set aside, found again, and taken back."""

from __future__ import annotations

import asyncio
from errno import ENOSPC

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError, OperatingError
from kraftjbod.core.ids import TopicId, TopicIdPartition, TopicPartition, Uuid
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas.stray_mark import StrayReason
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch, directory_id, format_dir, headers_of, manager_of, open_dir
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.gates import Gate, until
from tests.unit.broker.impaired_dirs import answer, stall

TP = TopicPartition("t", 3)
TOPIC_ID = TopicId(b"t" * 16)
KEY = TopicIdPartition(TOPIC_ID, 3)
LIFE = Uuid(b"l" * 16)


async def node_on(vfs: MemVfs | FaultVfs) -> LogManager:
    if not vfs.exists("/d1/meta.properties"):
        format_dir(vfs, "/d1", 1)
    manager = manager_of([open_dir(vfs)])
    await manager.load()
    return manager


async def with_a_stray(vfs: MemVfs | FaultVfs) -> LogManager:
    manager = await node_on(vfs)
    handle = await manager.create(TP, TOPIC_ID, directory_id(1))
    for _ in range(4):
        await handle.append_as_leader(batch(), headers_of(batch()), 2)
    handle.high_watermark = 3
    await handle.start_at(2)
    await manager.rename_stray(TP, StrayReason.TOPIC_UNKNOWN, LIFE)
    assert manager.get(TP) is None
    return manager


async def test_a_stray_comes_back_with_its_records_and_its_beginning() -> None:
    vfs = MemVfs()
    for manager in (await with_a_stray(vfs), await node_on(vfs)):
        (stray,) = manager.strays.of(KEY)
        assert stray.mark is not None
        assert (stray.mark.reason, stray.mark.metadata_log_id) == (StrayReason.TOPIC_UNKNOWN, LIFE)
        assert manager.strays.of(TopicIdPartition(TopicId(b"x" * 16), 3)) == []
        assert stray.size_bytes > 0
    handle = await manager.strays.take_back(stray)
    assert manager.get(TP) is handle
    assert (handle.log_start_offset, handle.high_watermark, handle.log_end_offset) == (2, 3, 4)
    assert not manager.strays.all()
    assert not vfs.exists(f"{handle.directory}/set-aside.json")
    await handle.append_as_leader(batch(), headers_of(batch()), 3)
    again = await node_on(vfs.crash_clone(1))
    assert again.get(TP) is not None
    assert not again.strays.all()


async def test_a_stray_that_was_emptied_meanwhile_is_not_taken_for_the_replica() -> None:
    vfs = MemVfs()
    manager = await with_a_stray(vfs)
    (stray,) = manager.strays.of(KEY)
    vfs.unlink_if_exists(f"{stray.directory}/partition.metadata")
    with pytest.raises(OperatingError, match="is no replica any more"):
        await manager.strays.take_back(stray)
    assert manager.strays.of(KEY) == []
    assert len(manager.strays.unreadable(TP)) == 1


async def test_on_a_full_disk_a_stray_has_no_mark_until_there_is_room() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await node_on(vfs)
    await manager.create(TP, TOPIC_ID, directory_id(1))
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"write_at"})))
    with capture_logs() as logged:
        await manager.rename_stray(TP, StrayReason.NOT_A_REPLICA, LIFE)
    assert "stray_not_marked" in [line["event"] for line in logged]
    await manager.strays.write_owed_marks()
    (stray,) = manager.strays.of(KEY)
    assert stray.mark is None
    vfs.clear()
    stray.log_dir.check_disk()
    await until(lambda: stray.log_dir.is_online and not stray.log_dir.is_busy)
    await manager.strays.write_owed_marks()
    (stray,) = manager.strays.of(KEY)
    assert stray.mark is not None and stray.mark.metadata_log_id == LIFE
    (found,) = (await node_on(vfs.inner)).strays.of(KEY)
    assert found.mark == stray.mark


async def test_a_mark_that_died_with_its_node_is_owed_by_the_metadata_in_the_stray_s_name() -> None:
    vfs = FaultVfs(MemVfs())
    for _ in range(2):
        vfs.clear()
        manager = await node_on(vfs)
        await manager.create(TP, TOPIC_ID, directory_id(1))
        vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"write_at"})))
        await manager.rename_stray(TP, StrayReason.TOPIC_UNKNOWN, LIFE)
    later = await node_on(vfs.inner.crash_clone(1))
    # The second one's name was taken: it stays until a person removes it.
    assert [stray.mark for stray in later.strays.of(KEY)] == [None, None]
    later.strays.owe_lost_marks(Uuid(b"o" * 16))
    await later.strays.write_owed_marks()
    assert [stray.mark for stray in later.strays.of(KEY)] == [None, None], "of another life"
    later.strays.owe_lost_marks(LIFE)
    await later.strays.write_owed_marks()
    (mark,) = (stray.mark for stray in later.strays.of(KEY) if stray.mark is not None)
    # Maybe this metadata had the topic then: it must not come back as in sync by another's.
    assert (mark.reason, mark.metadata_log_id) == (StrayReason.NOT_A_REPLICA, LIFE)


async def test_a_disk_that_stands_still_once_a_stray_has_its_name_does_not_hide_it() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await node_on(vfs)
    handle = await manager.create(TP, TOPIC_ID, directory_id(1))
    with Gate(vfs, "rename", "/d1/t-3") as gate:
        setting = asyncio.ensure_future(manager.rename_stray(TP, StrayReason.TOPIC_UNKNOWN, LIFE))
        await gate.reached()
        stall(handle.log_dir)
        gate.open()
        await until(lambda: not vfs.inner.exists("/d1/t-3"))
        await asyncio.sleep(0)
    await answer(handle.log_dir)
    await setting
    assert manager.get(TP) is None
    assert [stray.topic_partition for stray in manager.strays.of(KEY)] == [TP]


async def test_a_dead_directory_takes_its_strays_along_and_a_removal_is_for_good() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await with_a_stray(vfs)
    (stray,) = manager.strays.all()
    vfs.inject(Fault(kinds=frozenset({"remove_tree"})))
    with pytest.raises(KafkaStorageError):
        await manager.strays.remove(stray)
    manager.drop(stray.log_dir)
    assert not manager.strays.all()
    vfs.clear()
    later = await node_on(vfs.inner)
    (stray,) = later.strays.all()
    await later.strays.remove(stray)
    assert not later.strays.all()
    assert not (await node_on(vfs.inner)).strays.all()
