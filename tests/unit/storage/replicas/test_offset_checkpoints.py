"""``OffsetCheckpoints``: the checkpoint files of a directory never claim too much."""

from __future__ import annotations

import asyncio
from errno import ENOSPC

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError
from kraftjbod.storage.checkpoints import parse_offsets
from kraftjbod.storage.replicas.offset_checkpoints import OffsetCheckpoints, read_offsets
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, checkpoint, directory_id
from tests.faults.vfs_fault import Fault
from tests.unit.broker.gates import PATIENCE_S, Gate
from tests.unit.storage.replicas.test_replica_swap import append, create, registry_of, start


async def test_offset_checkpoints_are_read_as_written() -> None:
    node = await start()
    handle = await create(node, 2)
    await handle.flush()
    await append(handle)
    await checkpoint(node.manager)
    await node.manager.checkpoint_high_watermarks({TP: 3})
    offsets = await read_offsets(node.source)
    assert offsets == ({TP: 4}, {TP: 0}, {TP: 3})
    assert handle.checkpointed_recovery_point == 4


async def test_offset_checkpoints_without_changes_write_no_file() -> None:
    node = await start()
    handle = await create(node, 2)
    await handle.flush()
    written: list[str] = []
    node.vfss[0].on_operation = lambda kind, path: written.append(path) if kind == "sync" else None
    counts = []
    for offset in (1, 1, 2):
        written.clear()
        await checkpoint(node.manager)
        await node.manager.checkpoint_high_watermarks({TP: offset})
        counts.append(len(written))
    assert counts == [3, 0, 1]
    assert (await read_offsets(node.source)).high_watermarks == {TP: 2}


async def test_offset_checkpoints_are_written_again_after_a_failed_write() -> None:
    node = await start()
    await create(node, 2)
    await node.manager.checkpoint_high_watermarks({TP: 1})
    fault = Fault(errno=ENOSPC, kinds=frozenset({"write_at"}), sticky=False)
    node.vfss[0].inject(fault)
    await node.manager.checkpoint_high_watermarks({TP: 2})
    assert fault.hits == 1
    await node.manager.checkpoint_high_watermarks({TP: 2})
    assert (await read_offsets(node.source)).high_watermarks == {TP: 2}


async def test_offset_checkpoints_with_a_slow_fsync_delay_no_append() -> None:
    """On ext4 the fsync of a checkpoint waits for the data of all logs: seconds on a busy disk."""
    node = await start()
    handle = await create(node, 2)
    with Gate(node.vfss[0], "sync", "*-checkpoint*") as gate:
        writing = asyncio.ensure_future(node.manager.checkpoint_high_watermarks({TP: 2}))
        await gate.reached()
        async with asyncio.timeout(PATIENCE_S / 2):
            await append(handle)
        gate.open()
        await writing
    assert (await read_offsets(node.source)).high_watermarks == {TP: 2}


async def test_offset_checkpoints_announce_writes_offsets_of_a_future_replica() -> None:
    node = await start()
    handle = await create(node, 2)
    handle.high_watermark = 1
    other = TP._replace(partition=1)
    await OffsetCheckpoints(registry_of(node)).announce(node.source, other, handle.view, 4)
    offsets = await read_offsets(node.source)
    assert offsets == ({TP: 0, other: 4}, {TP: 0, other: 0}, {TP: 1, other: 4})


async def test_offset_checkpoints_keep_an_announced_replica_until_it_arrives() -> None:
    """Otherwise a crash before the next checkpoint would restore deleted records."""
    node = await start()
    handle, other = await create(node, 2), TP._replace(partition=1)
    handle.high_watermark = 2
    await handle.start_at(2)
    checkpoints = OffsetCheckpoints(registry_of(node))
    await checkpoints.announce(node.source, other, handle.view, 4)
    await checkpoints.write_recovery_points(node.source)
    assert (await read_offsets(node.source)).log_starts == {TP: 2, other: 2}
    checkpoints.arrived(node.source, other)
    await checkpoints.write_recovery_points(node.source)
    assert (await read_offsets(node.source)).log_starts == {TP: 2}


async def test_offset_checkpoints_share_a_write_between_waiting_delete_records() -> None:
    node = await start()
    handle = await create(node, 4)
    handle.high_watermark = 8
    written = []
    node.vfss[0].on_operation = lambda kind, path: written.append((kind, path))

    async def delete(offset: int) -> None:
        await handle.start_at(offset)
        await handle.keep_log_start()
        assert handle.durable_log_start >= offset

    # A late write uses the offsets at the time of the write, not at the time of the request.
    await asyncio.gather(checkpoint(node.manager), *(delete(offset) for offset in range(1, 9)))
    path = "/d1/log-start-offset-checkpoint"
    assert written.count(("rename", path)) <= 3
    assert (await read_offsets(node.source)).log_starts == {TP: 8}


async def test_offset_checkpoints_lower_the_log_start_before_a_truncation() -> None:
    """A crash must not hide records appended after a truncation to an unclean leader's log."""
    node = await start()
    handle = await create(node, 4)
    handle.high_watermark = 6
    await handle.start_at(6)
    await handle.keep_log_start()
    starts = []

    def look(kind: str, path: str) -> None:
        if path.endswith(".log"):
            data = node.disks[0].read_if_exists("/d1/log-start-offset-checkpoint") or b""
            starts.append(parse_offsets(data.decode(), path).get(TP, 0))

    node.vfss[0].on_operation = look
    await handle.truncate_to(2)
    assert (handle.log_start_offset, handle.durable_log_start) == (2, 2)
    assert set(starts) == {2}


async def test_offset_checkpoints_forget_a_removed_replica_of_an_empty_directory() -> None:
    """A later topic of the same name would otherwise look like one that lost its log."""
    node = await start()
    handle = await create(node, 2)
    await handle.flush()
    await checkpoint(node.manager)
    await node.manager.checkpoint_high_watermarks({TP: 2})
    await node.manager.delete(TP)
    await node.manager.checkpoint_high_watermarks({}, is_gone=lambda _: False)
    assert node.manager.remembers(TP)
    await node.manager.checkpoint_high_watermarks({}, is_gone=lambda tp: tp == TP)
    assert await read_offsets(node.source) == ({}, {}, {})
    assert not node.manager.remembers(TP)


async def test_offset_checkpoints_forget_no_present_replica() -> None:
    node = await start()
    await create(node, 2)
    await checkpoint(node.manager)
    await node.manager.checkpoint_high_watermarks({TP: 2}, is_gone=lambda _: True)
    assert (await read_offsets(node.source)).high_watermarks == {TP: 2}
    assert node.manager.remembers(TP)


async def test_offset_checkpoints_damaged_file_is_logged_and_read_as_empty() -> None:
    node = await start()
    await create(node, 2)
    await checkpoint(node.manager)
    path = "/d1/recovery-point-offset-checkpoint"
    node.disks[0].open(path, OpenMode.READ_WRITE).truncate(3)
    with capture_logs() as events:
        assert (await read_offsets(node.source)).recovery_points == {}
    assert [(e["event"], e["path"]) for e in events] == [("checkpoint_unreadable", path)]


async def test_offset_checkpoints_write_nothing_to_an_empty_disk_at_the_same_path() -> None:
    node = await start()
    await create(node, 2)
    empty = MemVfs()
    empty.make_dirs("/d1")
    node.vfss[0].inner = empty
    await checkpoint(node.manager)
    await node.manager.checkpoint_high_watermarks({TP: 1})
    with pytest.raises(KafkaStorageError):
        await node.manager.create(TP._replace(partition=1), TOPIC_ID, directory_id(1))
    await node.manager.close(1)
    assert empty.list_dir("/d1") == []
