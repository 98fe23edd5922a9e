"""One workload run repeatedly with its N-th operation failing, for each N.

Afterwards the directory was reported OFFLINE once, each error had its type, and the acknowledged
records are present when the directory is loaded again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from errno import EACCES, EIO, EROFS

import pytest

from kraftjbod.core.errors import KafkaStorageError, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_dirs.log_dir_policy import LogDirState
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    batch,
    checkpoint,
    chores,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    read_log,
    require_no_report,
)
from tests.faults.vfs_fault import Fault, FaultVfs

NO_LIMIT = 2**62
CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=0)
OTHER = TopicPartition("t", 1)


@dataclass
class Acknowledged:
    """State that was acknowledged to the workload."""

    end: int = 0
    certain_end: int = 0
    deleted: bool = False
    created: bool = False
    errors: list[OperatingError] = field(default_factory=list)


async def play(log_dir: LogDir, reported: Acknowledged) -> None:
    """Load, create, append over several segments, flush, checkpoint, delete and stop."""
    manager = manager_of([log_dir], CONFIG)
    await manager.load()
    handle = await manager.create(TP, TOPIC_ID)
    reported.created = True
    for step in range(8):
        data = batch(2, body=bytes(250))
        await handle.append_as_leader(data, headers_of(data), step // 3)
        reported.end = handle.log_end_offset
        if step % 3 == 2:
            await handle.flush()
            reported.certain_end = handle.recovery_point
        await read_log(handle, max(0, reported.end - 3), 1 << 20, NO_LIMIT, True)
    await manager.checkpoint_high_watermarks({TP: 4})
    await checkpoint(manager)
    await manager.create(OTHER, TOPIC_ID)
    await manager.delete(OTHER)
    reported.deleted = True
    await chores(manager).purge_due()
    await manager.close(1)


async def play_with(fault: Fault) -> tuple[MemVfs, LogDir, Acknowledged, LogDirFailureChannel]:
    mem = MemVfs()
    format_dir(mem, "/d1", 1)
    vfs = FaultVfs(mem)
    channel = LogDirFailureChannel(max_dirs=1)
    log_dir = open_dir(vfs, channel=channel)
    reported = Acknowledged()
    vfs.inject(fault)
    try:
        await play(log_dir, reported)
    except OperatingError as e:
        reported.errors.append(e)
    vfs.clear()
    return mem, log_dir, reported, channel


async def check(mem: MemVfs, reported: Acknowledged) -> None:
    """Load the repaired disk, and find the acknowledged records and no invalid ones."""
    log_dir = open_dir(mem)
    manager = manager_of([log_dir], CONFIG)
    await manager.load()
    assert log_dir.is_online
    handle = manager.get(TP)
    if reported.created:
        assert handle is not None
        # The machine did not stop, so unsynced bytes are present as well.
        assert handle.log_end_offset >= reported.end
        offset = 0
        while offset < handle.log_end_offset:
            headers = headers_of((await read_log(handle, offset, 1 << 20, NO_LIMIT, True)).records)
            assert headers[0].base_offset == offset
            offset = headers[-1].next_offset
    if reported.deleted:
        assert manager.get(OTHER) is None
    # The log accepts appends again.
    handle = await manager.create(TP, TOPIC_ID)
    data = batch()
    result = await handle.append_as_leader(data, headers_of(data), 9)
    assert result.base_offset == max(reported.end, result.base_offset)
    await manager.close(2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("errno", [EIO, EROFS, EACCES])
@pytest.mark.parametrize("sticky", [True, False])
async def test_storage_error_at_each_operation_takes_the_directory_offline_without_loss(
    errno: int, sticky: bool
) -> None:
    for n in range(1, 1000):
        fault = Fault(errno=errno, nth=n, sticky=sticky)
        mem, log_dir, reported, channel = await play_with(fault)
        if fault.hits == 0:
            assert log_dir.state is LogDirState.ONLINE
            assert n > 60
            return
        assert log_dir.state is LogDirState.OFFLINE, n
        assert await channel.take() is log_dir
        await require_no_report(channel)
        for error in reported.errors:
            assert isinstance(error, KafkaStorageError), n
            assert error.directory_id in (log_dir.directory_id, None)
        await check(mem, reported)
    pytest.fail("the story never ended")


async def test_storage_short_write_at_each_operation_loses_no_acknowledged_record() -> None:
    for n in range(1, 200):
        fault = Fault(effect=DiskFault.SHORT_WRITE, errno=EIO, kinds=frozenset({"write_at"}), nth=n)
        mem, log_dir, reported, _ = await play_with(fault)
        if fault.hits == 0:
            return
        assert not log_dir.is_online
        await check(mem, reported)
    pytest.fail("the story never ended")


async def test_recovery_with_a_flipped_bit_in_any_read_accepts_no_wrong_record() -> None:
    """A flipped bit in a read of a recovery may cost records, but adds no wrong ones."""
    mem = MemVfs()
    format_dir(mem, "/d1", 1)
    manager = manager_of([open_dir(mem)], CONFIG)
    await manager.load()
    handle = await manager.create(TP, TOPIC_ID)
    for _ in range(8):
        data = batch(2, body=bytes(250))
        await handle.append_as_leader(data, headers_of(data), 0)
    for n in range(1, 100):
        vfs = FaultVfs(mem.crash_clone(n))
        fault = vfs.inject(
            Fault(effect=DiskFault.ROT, kinds=frozenset({"read_at"}), nth=n, sticky=False)
        )
        loaded = manager_of([open_dir(vfs)], CONFIG)
        await loaded.load()
        handle = loaded.get(TP)
        assert handle is not None
        offset = 0
        while offset < handle.log_end_offset:
            (first, *_) = headers_of((await read_log(handle, offset, 1, NO_LIMIT, True)).records)
            assert first.base_offset == offset
            offset = first.next_offset
        if fault.hits == 0:
            return
    pytest.fail("there was always one more read")
