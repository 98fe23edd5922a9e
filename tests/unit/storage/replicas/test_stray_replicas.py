"""Stray replicas: set aside, found after a restart, taken back or removed."""

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
METADATA_LOG_ID = Uuid(b"l" * 16)


async def start(vfs: MemVfs | FaultVfs) -> LogManager:
    if not vfs.exists("/d1/meta.properties"):
        format_dir(vfs, "/d1", 1)
    manager = manager_of([open_dir(vfs)])
    await manager.load()
    return manager


async def with_a_stray(vfs: MemVfs | FaultVfs) -> LogManager:
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID, directory_id(1))
    for _ in range(4):
        await handle.append_as_leader(batch(), headers_of(batch()), 2)
    handle.high_watermark = 3
    await handle.start_at(2)
    await manager.rename_stray(TP, StrayReason.TOPIC_UNKNOWN, METADATA_LOG_ID)
    assert manager.get(TP) is None
    return manager


async def test_stray_replica_is_taken_back_with_records_and_offsets() -> None:
    vfs = MemVfs()
    for manager in (await with_a_stray(vfs), await start(vfs)):
        (stray,) = manager.strays.strays_of(KEY)
        assert stray.mark is not None
        assert (stray.mark.reason, stray.mark.metadata_log_id) == (
            StrayReason.TOPIC_UNKNOWN,
            METADATA_LOG_ID,
        )
        assert manager.strays.strays_of(TopicIdPartition(TopicId(b"x" * 16), 3)) == []
        assert stray.size_bytes > 0
    handle = await manager.strays.take_back(stray)
    assert manager.get(TP) is handle
    assert (handle.log_start_offset, handle.high_watermark, handle.log_end_offset) == (2, 3, 4)
    assert not manager.strays.all()
    assert not vfs.exists(f"{handle.directory}/set-aside.json")
    await handle.append_as_leader(batch(), headers_of(batch()), 3)
    again = await start(vfs.crash_clone(1))
    assert again.get(TP) is not None
    assert not again.strays.all()


async def test_take_back_of_an_emptied_stray_is_refused() -> None:
    vfs = MemVfs()
    manager = await with_a_stray(vfs)
    (stray,) = manager.strays.strays_of(KEY)
    vfs.unlink_if_exists(f"{stray.directory}/partition.metadata")
    with pytest.raises(OperatingError, match="is no replica any more"):
        await manager.strays.take_back(stray)
    assert manager.strays.strays_of(KEY) == []
    assert len(manager.strays.unreadable(TP)) == 1


async def test_stray_directory_removed_right_after_its_rename_is_forgotten_without_an_error() -> (
    None
):
    class Removing(MemVfs):
        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            if target.endswith("-stray"):
                self.remove_tree(target)

    with capture_logs() as events:
        manager = await with_a_stray(Removing())
        (stray,) = manager.strays.all()
        assert (stray.topic_id, stray.size_bytes, stray.holds_nothing) == (None, 0, True)
        await manager.strays.remove(stray)
    assert not manager.strays.all()
    assert "log_dir_operation_made_no_sense" not in {event["event"] for event in events}
    assert manager.dirs()[0].is_online


async def test_rename_stray_on_a_full_disk_writes_its_mark_later() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await start(vfs)
    await manager.create(TP, TOPIC_ID, directory_id(1))
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"write_at"})))
    with capture_logs() as logged:
        await manager.rename_stray(TP, StrayReason.NOT_A_REPLICA, METADATA_LOG_ID)
    assert "stray_not_marked" in [line["event"] for line in logged]
    await manager.strays.write_queued_marks()
    (stray,) = manager.strays.strays_of(KEY)
    assert stray.mark is None
    vfs.clear()
    stray.log_dir.check_disk()
    await until(lambda: stray.log_dir.is_online and not stray.log_dir.is_busy)
    await manager.strays.write_queued_marks()
    (stray,) = manager.strays.strays_of(KEY)
    assert stray.mark is not None and stray.mark.metadata_log_id == METADATA_LOG_ID
    (found,) = (await start(vfs.inner)).strays.strays_of(KEY)
    assert found.mark == stray.mark


async def test_stray_mark_lost_in_a_crash_is_rewritten_with_the_metadata_log_id_in_its_name() -> (
    None
):
    vfs = FaultVfs(MemVfs())
    for _ in range(2):
        vfs.clear()
        manager = await start(vfs)
        await manager.create(TP, TOPIC_ID, directory_id(1))
        vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"write_at"})))
        await manager.rename_stray(TP, StrayReason.TOPIC_UNKNOWN, METADATA_LOG_ID)
    later = await start(vfs.inner.crash_clone(1))
    # The name of the second one was taken; that one stays until an operator removes it.
    assert [stray.mark for stray in later.strays.strays_of(KEY)] == [None, None]
    later.strays.queue_lost_marks(Uuid(b"o" * 16))
    await later.strays.write_queued_marks()
    assert [stray.mark for stray in later.strays.strays_of(KEY)] == [None, None], "of another life"
    later.strays.queue_lost_marks(METADATA_LOG_ID)
    await later.strays.write_queued_marks()
    (mark,) = (stray.mark for stray in later.strays.strays_of(KEY) if stray.mark is not None)
    # The topic may have existed in this metadata log; another log must not take the replica back.
    assert (mark.reason, mark.metadata_log_id) == (StrayReason.NOT_A_REPLICA, METADATA_LOG_ID)


async def test_rename_stray_on_a_disk_that_stalls_after_the_rename_registers_the_stray() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID, directory_id(1))
    with Gate(vfs, "rename", "/d1/t-3") as gate:
        setting = asyncio.ensure_future(
            manager.rename_stray(TP, StrayReason.TOPIC_UNKNOWN, METADATA_LOG_ID)
        )
        await gate.reached()
        stall(handle.log_dir)
        gate.open()
        await until(lambda: not vfs.inner.exists("/d1/t-3"))
        await asyncio.sleep(0)
    await answer(handle.log_dir)
    await setting
    assert manager.get(TP) is None
    assert [stray.topic_partition for stray in manager.strays.strays_of(KEY)] == [TP]


async def test_stray_replicas_are_forgotten_with_their_directory_and_removed_permanently() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await with_a_stray(vfs)
    (stray,) = manager.strays.all()
    vfs.inject(Fault(kinds=frozenset({"remove_tree"})))
    with pytest.raises(KafkaStorageError):
        await manager.strays.remove(stray)
    manager.drop(stray.log_dir)
    assert not manager.strays.all()
    vfs.clear()
    later = await start(vfs.inner)
    (stray,) = later.strays.all()
    await later.strays.remove(stray)
    assert not later.strays.all()
    assert not (await start(vfs.inner)).strays.all()
