"""``LogHandle``: the view of a log from the event loop, cached reads, and limits of open files."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from errno import EAGAIN
from pathlib import Path

import pytest

from kraftjbod.core.errors import (
    CorruptRecordError,
    KafkaStorageError,
    OffsetOutOfRangeError,
)
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.raw_records import empty_batch
from kraftjbod.protocol.record_batch import Compression
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log.log_values import AppendResult
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.segments.segment_cache import CacheLimits
from kraftjbod.storage.vfs import OpenMode, RealVfs
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    ManualClock,
    batch,
    chores,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    random_bytes_of,
    read_log,
)
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.gates import PATIENCE_S, Gate, settle, until
from tests.unit.storage.tiny_records import tiny

NO_LIMIT = 2**62
CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=10)


async def make() -> tuple[LogHandle, LogManager, FaultVfs, ManualClock]:
    mem, clock = MemVfs(), ManualClock()
    format_dir(mem, "/d1", 1)
    vfs = FaultVfs(mem)
    manager = manager_of([open_dir(vfs, clock=clock)], CONFIG, clock)
    await manager.load()
    return await manager.create(TP, TOPIC_ID), manager, vfs, clock


def append(handle: LogHandle, records: int = 1, size: int = 200) -> Completion[AppendResult]:
    data = batch(records, body=bytes(size))
    return handle.append_as_leader(data, headers_of(data), 0)


async def test_read_cached_runs_on_the_event_loop_and_respects_max_offset() -> None:
    handle, *_ = await make()
    for _ in range(3):
        await append(handle)
    found = handle.read_cached(0, 1 << 20, 2, True)
    assert found is not None
    assert [h.base_offset for h in headers_of(found.records)] == [0, 1]
    assert handle.read_cached(2, 1 << 20, 2, True).records == b""  # type: ignore[union-attr]
    with pytest.raises(OffsetOutOfRangeError):
        handle.read_cached(4, 1, NO_LIMIT, True)


async def test_read_cached_returns_none_for_cold_pages_and_the_thread_reads_them() -> None:
    handle, _, vfs, _ = await make()
    await append(handle)
    vfs.inject(Fault(errno=EAGAIN, kinds=frozenset({"read_cached_at"})))
    assert handle.read_cached(0, 1000, NO_LIMIT, True) is None
    assert len(headers_of((await read_log(handle, 0, 1000, NO_LIMIT, True)).records)) == 1


LOG = "/d1/t-0/00000000000000000000.log"
SIZE = len(batch(body=bytes(200)))


def flip_bit(vfs: FaultVfs, position: int) -> None:
    file = vfs.open(LOG, OpenMode.READ_WRITE)
    file.write_at(position, [bytes([file.read_at(position, 1)[0] ^ 1])])


async def restarted(
    handle: LogHandle,
    manager: LogManager,
    vfs: FaultVfs,
    clock: ManualClock,
    damage: Callable[[], None] = lambda: None,
) -> LogHandle:
    """Return the handle of the replica after a clean restart of the broker.

    :param damage: called while the broker is stopped.
    """
    await manager.close(1)
    damage()
    again = manager_of([open_dir(vfs, clock=clock)], CONFIG, clock)
    await again.load()
    found = again.get(TP)
    assert found is not None
    assert found.log_end_offset == handle.log_end_offset
    return found


async def test_read_after_a_restart_checks_bytes_on_disk_before_serving_them() -> None:
    handle, manager, vfs, clock = await make()
    for _ in range(3):
        await append(handle)
    handle = await restarted(handle, manager, vfs, clock)
    flip_bit(vfs, SIZE + 100)
    await handle.read_checked(2, SIZE, NO_LIMIT, True)
    assert handle.read_cached(0, 1 << 20, NO_LIMIT, True) is None
    sound = await handle.read_checked(0, 1 << 20, NO_LIMIT, True)
    assert [h.base_offset for h in headers_of(sound.records)] == [0]
    with pytest.raises(CorruptRecordError):
        await handle.read_checked(1, 1 << 20, NO_LIMIT, True)


async def test_read_cached_serves_checked_and_newly_appended_bytes() -> None:
    """Each byte is checked once, as long as it stays in the page cache."""
    handle, manager, vfs, clock = await make()
    for _ in range(3):
        await append(handle)
    handle = await restarted(handle, manager, vfs, clock)
    await append(handle)
    await handle.read_checked(1, SIZE, NO_LIMIT, True)
    await handle.read_checked(2, SIZE, NO_LIMIT, True)
    for offset, expected in ((1, [1, 2]), (2, [2]), (3, [3])):
        found = handle.read_cached(offset, 1 << 20, NO_LIMIT, True)
        assert found is not None
        assert [h.base_offset for h in headers_of(found.records)] == expected
    assert handle.read_cached(0, 1 << 20, NO_LIMIT, True) is None


async def test_read_rechecks_bytes_that_left_the_page_cache() -> None:
    """Readahead brings in more bytes than were requested, and these are not checked yet."""
    handle, _, vfs, _ = await make()
    for _ in range(3):
        await append(handle)
    # The kernel has evicted the pages of the first batch, and reads all three from the disk.
    vfs.inject(Fault(errno=EAGAIN, kinds=frozenset({"read_cached_at"}), sticky=False))
    assert handle.read_cached(0, SIZE, NO_LIMIT, True) is None
    flip_bit(vfs, SIZE + 100)
    assert handle.read_cached(1, SIZE, NO_LIMIT, True) is None
    await handle.read_checked(0, SIZE, NO_LIMIT, True)
    assert handle.read_cached(0, SIZE, NO_LIMIT, True) is not None
    assert handle.read_cached(1, SIZE, NO_LIMIT, True) is None


async def test_read_checked_leaves_bytes_of_readahead_unchecked() -> None:
    handle, _, vfs, _ = await make()
    for _ in range(3):
        await append(handle)
    await handle.read_checked(0, SIZE, NO_LIMIT, True)
    flip_bit(vfs, SIZE + 100)
    assert handle.read_cached(1, SIZE, NO_LIMIT, True) is None
    assert handle.read_cached(0, SIZE, NO_LIMIT, True) is not None
    await append(handle)
    assert handle.read_cached(3, SIZE, NO_LIMIT, True) is not None


async def test_read_detects_a_wrong_base_offset_of_a_single_batch() -> None:
    """No CRC covers the offset; the index and the preceding batches determine it."""
    handle, manager, vfs, clock = await make()
    for _ in range(3):
        await append(handle, records=4)
    handle = await restarted(handle, manager, vfs, clock)
    flip_bit(vfs, SIZE + 7)
    with pytest.raises(CorruptRecordError):
        await handle.read_checked(5, SIZE, NO_LIMIT, True)


async def test_read_cached_returns_no_unpublished_batches() -> None:
    handle, *_ = await make()
    await append(handle)
    appending, written = append(handle), threading.Event()
    # The thread has written the batch, but the event loop has not run since.
    handle.log_dir.submit(OpKind.READ, written.set)
    assert written.wait(PATIENCE_S)
    found = handle.read_cached(0, 1 << 20, NO_LIMIT, True)
    assert found is not None
    assert len(headers_of(found.records)) == 1
    await appending
    found = handle.read_cached(0, 1 << 20, NO_LIMIT, True)
    assert found is not None
    assert len(headers_of(found.records)) == 2


async def test_append_as_follower_and_truncations_keep_offsets_and_epochs() -> None:
    handle, *_ = await make()
    for i in range(10):
        data = batch(base_offset=i, epoch=i // 5, body=bytes(200))
        await handle.append_as_follower(data)
    assert (handle.latest_epoch, len(handle.view.segments)) == (1, 4)
    assert handle.end_offset_for_epoch(0) == (0, 5)
    await handle.truncate_to(4)
    assert (handle.log_end_offset, handle.latest_epoch) == (4, 0)
    assert len(headers_of((await read_log(handle, 3, 1 << 20, NO_LIMIT, True)).records)) == 1
    await handle.truncate_fully_and_start_at(100)
    assert (handle.log_start_offset, handle.log_end_offset) == (100, 100)
    assert handle.size_bytes == 0


async def test_read_cached_returns_none_while_a_truncation_runs() -> None:
    handle, _, vfs, _ = await make()
    for _ in range(3):
        await append(handle)
    hang = Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"truncate"}), errno=5)
    vfs.inject(hang)
    truncation = asyncio.ensure_future(handle.truncate_to(1))
    await until(lambda: hang.hits)
    truncation.cancel()
    await asyncio.sleep(0)
    assert handle.read_cached(0, 1000, NO_LIMIT, True) is None
    vfs.clear()
    with pytest.raises(KafkaStorageError):
        await read_log(handle, 0, 1000, NO_LIMIT, True)


async def test_flush_advances_the_recovery_point() -> None:
    handle, *_ = await make()
    await append(handle, 3)
    assert handle.recovery_point == 0
    await handle.flush()
    assert handle.recovery_point == 3


async def test_flush_failure_takes_the_directory_offline() -> None:
    handle, _, vfs, _ = await make()
    await append(handle)
    vfs.inject(Fault(kinds=frozenset({"sync"}), path="*.log", sticky=False))
    with pytest.raises(KafkaStorageError):
        await handle.flush()
    assert not handle.log_dir.is_online
    with pytest.raises(KafkaStorageError):
        await handle.flush()


async def test_append_is_not_blocked_by_a_slow_fsync() -> None:
    handle, _, vfs, _ = await make()
    await append(handle)
    hang = Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"sync"}), path="*.log")
    vfs.inject(hang)
    flush = asyncio.ensure_future(handle.flush())
    await until(lambda: hang.hits)
    await append(handle)
    assert handle.log_end_offset == 2
    assert not flush.done()
    vfs.clear()
    with pytest.raises(KafkaStorageError):
        await flush


async def test_retention_stays_below_the_high_watermark_and_purges_after_the_delay() -> None:
    handle, manager, vfs, clock = await make()
    for _ in range(10):
        await append(handle)
    handle.set_config(CONFIG.model_copy(update={"retention_bytes": 0}))
    assert await handle.apply_retention() == 0
    handle.high_watermark = 10
    assert await handle.apply_retention() == 4
    assert (handle.log_start_offset, handle.size_bytes) == (10, 0)
    names = [entry.name for entry in vfs.list_dir("/d1/t-0")]
    assert "00000000000000000000.log.expired" in names
    clock.ms += 10
    await chores(manager).purge_due()
    assert not [e.name for e in vfs.list_dir("/d1/t-0") if e.name.endswith(".expired")]


async def test_offset_for_timestamp_and_max_timestamp_find_single_records() -> None:
    handle, *_ = await make()
    for i in range(4):
        data = batch(timestamp=100 + i)
        await handle.append_as_leader(data, headers_of(data), 3)
    found = await handle.offset_for_timestamp(102)
    assert found is not None
    assert tuple(found) == (102, 2, 3)
    assert await handle.offset_for_timestamp(104) is None
    assert await handle.offset_of_max_timestamp() == (103, 3, 3)
    within = [Record(key=b"k", timestamp_ms=timestamp) for timestamp in (5, 900, 900, 7)]
    data = build_batch(within, compression=Compression.GZIP)
    await handle.append_as_leader(data, headers_of(data), 3)
    assert await handle.offset_of_max_timestamp() == (900, 5, 3), "a record, not its batch"


async def with_timestamps(*timestamps: int) -> LogHandle:
    """Return a log with a record per batch, and several segments if there are many records."""
    handle, *_ = await make()
    for timestamp in timestamps:
        data = batch(timestamp=timestamp, body=bytes(200))
        await handle.append_as_leader(data, headers_of(data), 3)
    handle.high_watermark = handle.log_end_offset
    return handle


async def with_lost_batches(*timestamps: int, is_whole_segment: bool) -> LogHandle:
    """Return a log after a restart that lost the end of its second segment, or all of it.

    A segment has three records.
    """
    handle, manager, vfs, clock = await make()
    for timestamp in timestamps:
        data = batch(timestamp=timestamp, body=bytes(200))
        await handle.append_as_leader(data, headers_of(data), 3)
    second = handle.view.segments[1]

    def damage() -> None:
        if is_whole_segment:
            for path in (second.path, *second.index_paths):
                vfs.unlink_if_exists(path)
        else:
            vfs.open(second.path, OpenMode.READ_WRITE).truncate(SIZE)

    return await restarted(handle, manager, vfs, clock, damage)


@pytest.mark.parametrize("is_whole_segment", [True, False])
async def test_offset_for_timestamp_past_lost_batches_reports_the_damage(
    is_whole_segment: bool,
) -> None:
    """A search is a reader too: its answer may be after the records that are lost."""
    handle = await with_lost_batches(*range(100, 112), is_whole_segment=is_whole_segment)
    for _ in range(2):
        assert await handle.offset_for_timestamp(104) == (106, 6, 3)
        assert handle.damaged_from == (3 if is_whole_segment else 4)
        assert [damage.next_offset for damage in handle.view.damages] == [6]


@pytest.mark.parametrize("is_whole_segment", [True, False])
async def test_offset_for_timestamp_past_lost_batches_that_are_older_reports_the_damage(
    is_whole_segment: bool,
) -> None:
    """Timestamps of clients need not ascend, so any lost batch may have the answer."""
    timestamps = [5, 6, 7, 8, 9, 9, 1, 2, 3, 10, 11, 12, 13]
    handle = await with_lost_batches(*timestamps, is_whole_segment=is_whole_segment)
    assert await handle.offset_for_timestamp(9) == (10, 9, 3)
    assert handle.damaged_from == (3 if is_whole_segment else 4)


async def test_offset_of_max_timestamp_after_the_loss_of_its_record_reports_the_damage() -> None:
    handle = await with_lost_batches(1, 2, 3, 9, 8, 7, 4, 5, 6, 5, 5, is_whole_segment=True)
    assert await handle.offset_of_max_timestamp() == (6, 8, 3)
    assert handle.damaged_from == 3


async def test_offset_for_timestamp_checks_the_end_of_a_segment_once() -> None:
    handle, manager, vfs, clock = await make()
    for timestamp in range(100, 130):
        data = batch(timestamp=timestamp, body=bytes(200))
        await handle.append_as_leader(data, headers_of(data), 3)
    handle = await restarted(handle, manager, vfs, clock)
    assert await handle.offset_for_timestamp(129) == (129, 29, 3)
    reads = Fault(kinds=frozenset({"open", "read_at"}), nth=1_000_000)
    vfs.inject(reads)
    assert await handle.offset_for_timestamp(129) == (129, 29, 3)
    assert reads.seen < len(handle.view.segments) // 2
    assert handle.view.damages == ()


async def test_offset_of_max_timestamp_ignores_deleted_records() -> None:
    """The entries of the time index still have the timestamp of the deleted record."""
    handle = await with_timestamps(900, 5, 7, 6)
    await handle.start_at(1)
    assert await handle.offset_of_max_timestamp() == (7, 2, 3)
    await handle.start_at(3)
    assert await handle.offset_of_max_timestamp() == (6, 3, 3)
    await handle.start_at(4)
    assert await handle.offset_of_max_timestamp() is None


async def test_offset_of_max_timestamp_prefers_the_first_of_equal_records() -> None:
    handle = await with_timestamps(900, *[7] * 20)
    assert len(handle.view.segments) > 2
    await handle.start_at(1)
    assert await handle.offset_of_max_timestamp() == (7, 1, 3)


async def test_offset_of_max_timestamp_deleted_within_a_batch_falls_back_to_first_record() -> None:
    """The header of the batch in which the log starts has the timestamp of a deleted record."""
    handle, *_ = await make()
    records = [Record(key=b"k", timestamp_ms=timestamp) for timestamp in (900, 5, 8)]
    data = build_batch(records)
    await handle.append_as_leader(data, headers_of(data), 3)
    handle.high_watermark = 3
    await handle.start_at(1)
    assert await handle.offset_of_max_timestamp() == (5, 1, 3), "the first record, as a fallback"
    data = batch(timestamp=9)
    await handle.append_as_leader(data, headers_of(data), 3)
    assert await handle.offset_of_max_timestamp() == (9, 3, 3)


async def test_offset_of_max_timestamp_ignores_batches_without_records() -> None:
    """Compaction keeps the last batch of each producer, even without its records."""
    handle, *_ = await make()
    emptied = empty_batch(headers_of(batch(2, timestamp=900, epoch=3))[0])
    await handle.append_as_follower(emptied + batch(2, base_offset=2, timestamp=7, epoch=3))
    assert await handle.offset_of_max_timestamp() == (7, 2, 3)


async def test_offset_of_max_timestamp_finds_a_record_despite_wrong_headers() -> None:
    """Any client may send a batch whose header has a larger timestamp than all its records."""
    handle, *_ = await make()
    for _ in range(40):
        data = tiny(1, compression=Compression.NONE)
        await handle.append_as_leader(data, headers_of(data), 3)
    found = await handle.offset_of_max_timestamp()
    assert found is not None and found.offset in range(40)


async def test_offset_of_max_timestamp_while_records_are_deleted_finds_the_next_largest() -> None:
    """DeleteRecords, retention or a roll come between the steps of the search."""
    handle = await with_timestamps(*range(900, 800, -5))
    assert len(handle.view.segments) > 3
    second = handle.view.segments[1].base_offset
    search = asyncio.create_task(handle.offset_of_max_timestamp())
    await asyncio.sleep(0)
    await handle.start_at(second + 1)
    assert await search == (900 - 5 * (second + 1), second + 1, 3)
    search = asyncio.create_task(handle.offset_of_max_timestamp())
    await asyncio.sleep(0)
    deleting = asyncio.create_task(handle.start_at(second + 2))
    await asyncio.sleep(0)
    await handle.roll()
    await deleting
    assert await search == (900 - 5 * (second + 2), second + 2, 3)
    search = asyncio.create_task(handle.offset_of_max_timestamp())
    await asyncio.sleep(0)
    await handle.start_at(handle.log_end_offset)
    assert await handle.apply_retention() > 0
    assert await search is None


async def test_offset_of_max_timestamp_during_a_truncation_finds_a_remaining_record() -> None:
    handle = await with_timestamps(*range(800, 900, 5))
    search = asyncio.create_task(handle.offset_of_max_timestamp())
    await asyncio.sleep(0)
    await handle.truncate_to(2)
    found = await search
    assert found in ((805, 1, 3), (895, 19, 3))


async def test_operations_on_an_offline_directory_fail_at_once() -> None:
    handle, *_ = await make()
    await append(handle)
    handle.log_dir.go_offline("gone")
    for op in (
        lambda: append(handle),
        lambda: handle.append_as_follower(batch(base_offset=1)),
        lambda: handle.read_cached(0, 1, NO_LIMIT, True),
    ):
        with pytest.raises(KafkaStorageError, match="gone"):
            op()
    with pytest.raises(KafkaStorageError, match="gone"):
        await read_log(handle, 0, 1, NO_LIMIT, True)


async def test_take_truncation_returns_the_lowest_truncation_once() -> None:
    handle, *_ = await make()
    for _ in range(8):
        await append(handle)
    assert not handle.has_truncation
    await handle.truncate_to(6)
    await append(handle)
    await handle.truncate_to(5)
    await append(handle)
    bases = [segment.base_offset for segment in handle.view.segments]
    truncation = handle.take_truncation()
    assert truncation is not None
    assert truncation.base_offset == max(base for base in bases if base <= 5)
    assert handle.take_truncation() is None
    await handle.truncate_fully_and_start_at(40)
    assert handle.take_truncation() == (0, 0)


async def test_rename_of_a_replica_waits_for_its_running_flush() -> None:
    """KAFKA-19571: a flush used the old directory name, and its error took the disk offline."""
    handle, manager, vfs, _ = await make()
    await append(handle)
    with Gate(vfs, "sync") as gate:
        flushing = asyncio.ensure_future(handle.flush())
        await gate.reached()
        deleting = asyncio.ensure_future(manager.delete(TP))
        await settle()
        assert not deleting.done()
        gate.open()
        await deleting
    await asyncio.gather(flushing, return_exceptions=True)
    assert handle.log_dir.is_online


# -- limits of open files and indexes --------------------------------------------------------------


async def served(
    path: str, limits: CacheLimits, clock: ManualClock | None = None
) -> tuple[LogHandle, LogManager, FaultVfs]:
    """Create a replica of some dozens of flushed segments on a real file system."""
    vfs = FaultVfs(RealVfs())
    format_dir(vfs, path, 1)
    log_dir = open_dir(vfs, path)
    manager = LogManager(
        dirs=[log_dir],
        clock=clock or ManualClock(),
        default_config=CONFIG,
        random_bytes=random_bytes_of(),
        cache_limits=limits,
    )
    await manager.load()
    handle = await manager.create(TP, TOPIC_ID)
    for _ in range(100):
        await append(handle)
    await handle.flush()
    return handle, manager, vfs


async def test_read_of_a_whole_log_respects_the_limits_of_open_files_and_indexes(
    tmp_path: Path,
) -> None:
    limits = CacheLimits(index_bytes=200, open_segments=4)
    handle, manager, _ = await served(str(tmp_path / "d1"), limits)
    assert len(handle.view.segments) > 20
    for _ in range(2):
        offset = 0
        while offset < handle.log_end_offset:
            headers = headers_of((await read_log(handle, offset, 500, NO_LIMIT, True)).records)
            assert headers[0].base_offset == offset
            offset = headers[-1].next_offset
            await chores(manager).close_idle_files()
            assert manager.open_segments <= limits.open_segments
            largest = max(one.indexes().size_bytes for one in handle.view.segments[-1:])
            assert manager.index_cache_bytes <= limits.index_bytes + largest
    assert len(open_below(str(tmp_path))) <= limits.open_segments
    await manager.close(1)
    assert manager.open_segments == 0


def open_below(path: str) -> list[str]:
    """Return the paths below ``path`` of files that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # The descriptor of the listing itself is closed.
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [name for name in found if name.startswith(path)]


async def test_close_idle_files_waits_for_a_running_flush(tmp_path: Path) -> None:
    limits = CacheLimits(open_segments=0)
    handle, manager, vfs = await served(str(tmp_path / "d1"), limits)
    await append(handle)
    hung = vfs.inject(Fault(effect=DiskFault.HANG, kinds=frozenset({"sync"})))
    flush = asyncio.ensure_future(handle.flush())
    closed: list[str] = []
    while not hung.hits:
        await asyncio.sleep(0)
    vfs.on_operation = lambda kind, path: closed.append(path) if kind == "close" else None
    idle = asyncio.ensure_future(chores(manager).close_idle_files())
    for _ in range(100):
        await handle.refresh()
    assert not closed
    vfs.clear()
    await flush
    await idle
    assert closed
    await append(handle)
    await manager.close(1)


async def test_close_idle_files_keeps_files_with_unflushed_bytes_open(tmp_path: Path) -> None:
    """The kernel drops an unreported write-back error when the last descriptor is closed."""
    handle, manager, _ = await served(str(tmp_path / "d1"), CacheLimits(open_segments=0))
    await append(handle)
    await chores(manager).close_idle_files()
    assert manager.open_segments == 1
    assert handle.view.segments[-1].file is not None
    await handle.flush()
    await chores(manager).close_idle_files()
    assert manager.open_segments == 0
    await append(handle)
    assert handle.log_end_offset == 102
    await manager.close(1)


async def test_delete_closes_the_files_of_the_removed_segments(tmp_path: Path) -> None:
    clock = ManualClock()
    handle, manager, _ = await served(str(tmp_path / "d1"), CacheLimits(), clock)
    assert manager.open_segments > 20
    await manager.delete(TP)
    clock.ms += CONFIG.file_delete_delay_ms
    await chores(manager).purge_due()
    assert (manager.open_segments, handle.log_dir.vfs.exists(handle.directory)) == (0, False)
    await manager.close(1)
