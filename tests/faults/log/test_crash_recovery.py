"""Power cuts at each operation: durable records are present, and all records were written."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.dir_names import (
    EXPIRED_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    offset_file_name,
)
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.segments.index_rebuild import ensure_indexes
from kraftjbod.storage.segments.segment_batches import batches_from
from kraftjbod.storage.segments.steps import run_all
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    batch,
    checkpoint,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    read_log,
    stamped,
)
from tests.faults.vfs_fault import WRITING_KINDS, FaultVfs

NO_LIMIT = 2**62
CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=0)


@dataclass
class Written:
    """The batches that a workload wrote, and the offsets up to which they are durable."""

    #: All batches by offset; a truncation can lead to several at one offset.
    batches: dict[int, list[bytes]] = field(default_factory=dict)
    certain_end: int = 0
    #: Records before this offset must not come back.
    certain_start: int = 0


async def run_workload(manager: LogManager, written: Written, rng: random.Random) -> None:
    """Append, roll, flush, delete, truncate and stop, and note the records that must survive."""
    handle = await manager.create(TP, TOPIC_ID)
    epoch = 0
    for step in range(24):
        body = rng.randbytes(rng.randint(10, 300))
        data = batch(rng.randint(1, 3), body=body, timestamp=1_000_000 + step)
        # Noted before the append, because a crash may follow its execution in the thread at once.
        base_offset = handle.log_end_offset
        stored = stamped(data, base_offset=base_offset, leader_epoch=epoch)
        written.batches.setdefault(base_offset, []).append(stored)
        await handle.append_as_leader(data, headers_of(data), epoch)
        if step % 5 == 4:
            await handle.flush()
            written.certain_end = handle.recovery_point
            await checkpoint(manager)
        if step in (7, 14, 21):
            # At most 9 offsets from the end, which no truncation reaches.
            handle.high_watermark = handle.log_end_offset
            await handle.start_at(max(handle.log_start_offset, handle.log_end_offset - 9))
            if rng.random() < 0.5:
                await handle.apply_retention()
            await handle.keep_log_start()
            written.certain_start = handle.log_start_offset
        if step in (9, 17):
            offset = handle.log_end_offset - 2
            # The batch with this offset is removed as a whole, and a batch has up to 3 records.
            certain_end = written.certain_end
            written.certain_end = max(0, min(certain_end, offset - 2))
            await handle.truncate_to(offset)
            written.certain_end = min(certain_end, handle.log_end_offset)
            epoch += 1
    await manager.close(1)
    written.certain_end = handle.log_end_offset


async def check(vfs: MemVfs, written: Written) -> None:
    """Load the state after a crash twice, and compare it with the written batches."""
    for _ in range(2):
        manager = manager_of([open_dir(vfs)], CONFIG)
        await manager.load()
        handle = manager.get(TP)
        if handle is None:
            assert (written.certain_start, written.certain_end) == (0, 0)
            return
        assert handle.view.damages == ()
        assert handle.log_start_offset >= written.certain_start
        assert handle.log_end_offset >= written.certain_end
        offset = handle.log_start_offset
        while offset < handle.log_end_offset:
            records = (await read_log(handle, offset, 1 << 20, NO_LIMIT, True)).records
            assert records, offset
            position = 0
            for header in headers_of(records):
                # A log may start in the middle of a batch.
                assert header.base_offset == offset or offset == handle.log_start_offset
                stored = bytes(records[position : position + header.size_bytes])
                assert stored in written.batches[header.base_offset]
                position += header.size_bytes
                offset = header.next_offset
        for segment in handle.view.segments:
            # Retention uses this timestamp; a smaller one would delete recent records.
            run_all(ensure_indexes(segment))
            newest = max(
                (one.header.max_timestamp for one in batches_from(segment, 0) if one), default=None
            )
            largest = segment.largest_timestamp()
            assert newest == (None if largest is None else largest.timestamp), segment
        epochs = [entry.epoch for entry in handle.view.epochs]
        assert epochs == sorted(epochs)
        data = batch()
        await handle.append_as_leader(data, headers_of(data), handle.latest_epoch + 1)
        await handle.truncate_to(handle.log_end_offset - 1)
        manager.dirs()[0].close()


async def check_loss_of_oldest_segment(vfs: MemVfs) -> bool:
    """Remove the oldest segment after a crash, which must not look like its removal by retention.

    Return False if the segment has no record of the log, or if its loss cannot be detected: leader
    epochs are on the disk only after the first flush.
    """
    whole = manager_of([open_dir(vfs.crash_clone(0))], CONFIG)
    await whole.load()
    before = whole.get(TP)
    path = f"/d1/{TP}/{LEADER_EPOCH_CHECKPOINT}"
    if before is None or len(before.view.segments) == 1 or not vfs.read_if_exists(path):
        return False
    oldest, second = before.view.segments[:2]
    # DeleteRecords changes the epochs before the checkpoint of log starts.
    start = max(before.log_start_offset, *(one.start_offset for one in before.view.epochs[:1]), 0)
    if start >= second.base_offset:
        return False
    path = f"/d1/{TP}/{offset_file_name(oldest.base_offset, LOG_SUFFIX)}"
    for name in (path, path + EXPIRED_SUFFIX):
        vfs.unlink_if_exists(name)
    manager = manager_of([open_dir(vfs)], CONFIG)
    await manager.load()
    after = manager.get(TP)
    assert after is not None
    assert after.log_start_offset == start
    if after.log_end_offset > start:
        (damage,) = after.view.damages
        assert damage[:2] == (start, second.base_offset)
    return True


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(5))
async def test_power_cut_at_each_operation_keeps_durable_records(seed: int) -> None:
    mem = MemVfs()
    format_dir(mem, "/d1", 1)
    mem.sync_dir("/d1")
    vfs = FaultVfs(mem)
    written = Written()
    clones: list[tuple[MemVfs, Written]] = []

    def snapshot(kind: str, path: str) -> None:
        if kind in WRITING_KINDS:
            batches = {k: list(v) for k, v in written.batches.items()}
            known = Written(batches, written.certain_end, written.certain_start)
            clones.append((mem.crash_clone(len(clones) * 7 + seed), known))

    manager = manager_of([open_dir(vfs)], CONFIG)
    await manager.load()
    vfs.on_operation = snapshot
    await run_workload(manager, written, random.Random(seed))
    vfs.on_operation = None
    assert len(clones) > 100
    noticed = 0
    for clone, known in clones:
        noticed += await check_loss_of_oldest_segment(clone.crash_clone(0))
        await check(clone, known)
    assert noticed > 50


async def test_clean_stop_needs_no_scan_at_the_next_start() -> None:
    mem = MemVfs()
    format_dir(mem, "/d1", 1)
    manager = manager_of([open_dir(mem)], CONFIG)
    await manager.load()
    written = Written()
    await run_workload(manager, written, random.Random(1))
    scanned: list[int] = []
    manager = manager_of([open_dir(mem.crash_clone(5))], CONFIG)
    await manager.load(lambda progress: scanned.append(progress.scanned_bytes))
    assert set(scanned) == {0}
    handle = manager.get(TP)
    assert handle is not None
    assert handle.log_end_offset == written.certain_end
