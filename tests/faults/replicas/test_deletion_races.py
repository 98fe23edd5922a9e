"""Creation and deletion of replicas while other operations use their files, on a real disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.vfs import RealVfs
from tests.faults.rig import (
    TOPIC_ID,
    batch,
    checkpoint,
    chores,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    read_log,
)

REPLICAS = 4
#: Each second batch rolls, retention removes closed segments, and deleted files are purged at once.
CONFIG = TopicConfig(segment_bytes=1024, retention_bytes=2048, file_delete_delay_ms=0, flush_ms=1)


@pytest.mark.parametrize("rounds", [15, pytest.param(60, marks=pytest.mark.long)])
async def test_deletion_during_other_operations_keeps_the_directory_online(
    tmp_path: Path, rounds: int
) -> None:
    """KAFKA-19571, KAFKA-15391, KAFKA-15572, KAFKA-17727, KAFKA-15097: a healthy directory was
    taken offline, because a file to be flushed, checkpointed or read had been renamed or deleted
    on purpose.
    """
    path, vfs = str(tmp_path / "d1"), RealVfs()
    format_dir(vfs, path, 1)
    manager = manager_of([open_dir(vfs, path)], CONFIG)
    await manager.load()
    is_over = asyncio.Event()
    tending = asyncio.ensure_future(_run_background_jobs(manager, is_over))
    try:
        await asyncio.gather(*(_create_and_delete(manager, n, rounds) for n in range(REPLICAS)))
        is_over.set()
        await tending
        await chores(manager).purge_due()
        (log_dir,) = manager.dirs()
        assert log_dir.is_online, log_dir.offline_reason
    finally:
        tending.cancel()
        await manager.close(0)
    assert [entry.name for entry in vfs.list_dir(path) if entry.is_dir] == []


async def _create_and_delete(manager: LogManager, number: int, rounds: int) -> None:
    tp = TopicPartition("t", number)
    for _ in range(rounds):
        handle = await manager.create(tp, TOPIC_ID)
        users = [
            asyncio.ensure_future(use(handle)) for use in (_append, _flush, _read, _flush, _read)
        ]
        await asyncio.sleep(0)
        await manager.delete(tp)
        for outcome in await asyncio.gather(*users, return_exceptions=True):
            # A late operation fails with an OperatingError, and no other error occurs.
            assert outcome is None or isinstance(outcome, OperatingError), repr(outcome)


async def _append(handle: LogHandle) -> None:
    for _ in range(6):
        data = batch(4, body=bytes(900))
        await handle.append_as_leader(data, headers_of(data), 0)


async def _flush(handle: LogHandle) -> None:
    for _ in range(3):
        await handle.flush()


async def _read(handle: LogHandle) -> None:
    for _ in range(3):
        await read_log(handle, handle.log_start_offset, 1_000, handle.log_end_offset, True)


async def _run_background_jobs(manager: LogManager, is_over: asyncio.Event) -> None:
    """Run the background jobs without a pause."""
    while not is_over.is_set():
        await checkpoint(manager)
        await manager.checkpoint_high_watermarks(
            {handle.topic_partition: 0 for handle in manager.handles()}
        )
        await chores(manager).retain()
        await chores(manager).flush_overdue()
        await chores(manager).purge_due()
        await asyncio.sleep(0)
