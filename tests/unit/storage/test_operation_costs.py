"""Costs of operations on a log, in file operations and bytes, at 1, 10 and 100 times the size.

For segments and logs of any size, no operation may read more than the indexes of one segment and
one index interval. docs/operate.md states the costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.checkpoints import format_offsets
from kraftjbod.storage.dir_names import offset_file_name
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log.producer_state import DEFAULT_PRODUCER_LIMITS
from kraftjbod.storage.log.time_search import LogTimeSearch, MaxTimestampSearch
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas.dir_loading import DirLoading
from kraftjbod.storage.replicas.offset_checkpoints import DirOffsets
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry
from kraftjbod.storage.segments.segment import SegmentUnreadError
from kraftjbod.storage.segments.segment_limits import EXPENDABLE_PER_STEP
from kraftjbod.storage.segments.steps import STAT_BYTES, STEP_BYTES
from kraftjbod.storage.vfs import OpenMode, RealVfs, write_atomically
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.large_log import (
    KIB,
    MIB,
    CountingVfs,
    GeneratedFile,
    LargeLog,
    count_steps,
    load_large_log,
    put_large_log,
    recover_large_log,
    write_sparse_log,
)
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
)
from tests.faults.vfs_fault import Fault, FaultVfs

#: Headers are read in blocks of this size.
BLOCK_BYTES = 4 * KIB


class Cost(NamedTuple):
    operations: int
    bytes_read: int
    bytes_written: int


def open_log(shape: LargeLog, **config: object) -> tuple[UnifiedLog, CountingVfs]:
    mem = MemVfs()
    vfs = CountingVfs(mem)
    directory = put_large_log(mem, "/d1", shape)
    return load_large_log(vfs, directory, shape, shape.config(**config)), vfs


def cost_of(operate: Callable[[UnifiedLog], object], shape: LargeLog, **config: object) -> Cost:
    log, vfs = open_log(shape, **config)
    vfs.reset()
    operate(log)
    return Cost(vfs.operation_count, vfs.bytes_read, vfs.bytes_written)


#: 8 MiB segments of 16 KiB batches, of one producer.
SMALL = LargeLog.of_size(8 * MIB, 16 * KIB, producer_id=7)


def larger_segments(times: int) -> LargeLog:
    return replace(SMALL, batches_per_segment=SMALL.batches_per_segment * times)


def more_segments(times: int) -> LargeLog:
    return replace(SMALL, segments=times)


def allowed_bytes(shape: LargeLog) -> int:
    """Return the bytes of one index pair, an interval, its batch, and some small files."""
    return shape.index_bytes + shape.interval_bytes + shape.batch_bytes + 8 * BLOCK_BYTES


SIZES = pytest.mark.parametrize("times", [1, 10, 100])


@SIZES
def test_truncate_of_one_record_reads_one_index_interval_and_headers_since_the_snapshot(
    times: int,
) -> None:
    shape = larger_segments(times)
    cost = cost_of(lambda log: log.truncate_to(shape.end_offset - 1), shape)
    replayed = shape.snapshot_interval_bytes // shape.batch_bytes
    assert cost.bytes_read <= allowed_bytes(shape) + replayed * BLOCK_BYTES
    assert cost.operations <= 30 + replayed


@SIZES
def test_truncate_of_a_log_without_producers_reads_one_index_and_one_interval(times: int) -> None:
    shape = replace(larger_segments(times), producer_id=None)
    cost = cost_of(lambda log: log.truncate_to(shape.end_offset - 1), shape)
    assert cost.bytes_read <= allowed_bytes(shape)
    assert cost.operations <= 30


@SIZES
def test_roll_reads_and_writes_one_index(times: int) -> None:
    shape = larger_segments(times)
    cost = cost_of(lambda log: log.roll(), shape)
    assert cost.bytes_read <= allowed_bytes(shape)
    assert cost.bytes_written <= allowed_bytes(shape)
    assert cost.operations <= 30
    more = cost_of(lambda log: log.roll(), more_segments(times))
    assert more == cost_of(lambda log: log.roll(), SMALL)


@SIZES
@pytest.mark.parametrize("grown", [larger_segments, more_segments])
def test_load_after_a_clean_stop_reads_one_index_interval_and_the_file_names(
    times: int, grown: Callable[[int], LargeLog]
) -> None:
    shape = grown(times)
    _, vfs = open_log(shape)
    names = 4 * shape.segments + 10
    assert vfs.bytes_read <= 3 * shape.batch_bytes + 8 * BLOCK_BYTES + 2 * names
    assert vfs.operation_count <= 20 + shape.segments


def steps_of(search: LogTimeSearch | MaxTimestampSearch, shape: LargeLog) -> list[Cost]:
    """Return the cost of each step of a search."""
    log, vfs = open_log(shape)
    costs = []
    while not search.is_over:
        vfs.reset()
        log.search(search)
        costs.append(Cost(vfs.operation_count, vfs.bytes_read, vfs.bytes_written))
        if isinstance(search, LogTimeSearch) and search.unopened_bytes:
            search.open()
    return costs


@SIZES
@pytest.mark.parametrize("grown", [larger_segments, more_segments])
def test_list_offsets_by_time_reads_one_index_per_step_and_little_in_total(
    times: int, grown: Callable[[int], LargeLog]
) -> None:
    shape = grown(times)
    search = LogTimeSearch(shape.first_timestamp + shape.end_offset - 1)
    costs = steps_of(search, shape)
    assert search.answer is not None
    assert search.answer.offset == shape.end_offset - 1
    assert max(cost.bytes_read for cost in costs) <= allowed_bytes(shape) + 8 * BLOCK_BYTES
    assert sum(cost.bytes_read for cost in costs) <= (
        allowed_bytes(shape) + shape.segments * 4 * BLOCK_BYTES
    )
    assert max(cost.operations for cost in costs) <= 100


@SIZES
@pytest.mark.parametrize("grown", [larger_segments, more_segments])
def test_list_offsets_of_the_max_timestamp_reads_the_last_entries(
    times: int, grown: Callable[[int], LargeLog]
) -> None:
    shape = grown(times)
    search = MaxTimestampSearch()
    costs = steps_of(search, shape)
    assert search.largest == shape.first_timestamp + shape.end_offset - 1
    assert max(cost.bytes_read for cost in costs) <= 16 * BLOCK_BYTES
    assert max(cost.operations for cost in costs) <= 100
    assert sum(cost.bytes_read for cost in costs) <= shape.segments * 4 * BLOCK_BYTES


def test_list_offsets_remembers_the_largest_timestamps() -> None:
    shape = more_segments(10)
    log, vfs = open_log(shape)
    for _ in range(2):
        vfs.reset()
        search = MaxTimestampSearch()
        while not search.is_over:
            log.search(search)
    assert vfs.operation_count == 0


@SIZES
@pytest.mark.parametrize("grown", [larger_segments, more_segments])
def test_read_at_an_offset_reads_one_index_and_one_more_interval(
    times: int, grown: Callable[[int], LargeLog]
) -> None:
    shape = grown(times)
    asked = shape.batch_bytes * 4
    cost = cost_of(
        lambda log: log.read(shape.end_offset // 2, asked, shape.end_offset, True), shape
    )
    assert cost.bytes_read <= allowed_bytes(shape) + asked
    assert cost.operations <= 40


@SIZES
def test_read_of_a_batch_with_a_false_length_reads_one_index_interval(times: int) -> None:
    """The header claims 16 MiB, up to the end of a smaller segment."""
    shape = larger_segments(times)
    mem = MemVfs()
    vfs = CountingVfs(mem)
    directory = put_large_log(mem, "/d1", shape)
    log = load_large_log(vfs, directory, shape, shape.config())
    file = mem.open(log.view().segments[0].path, OpenMode.READ)
    assert isinstance(file, GeneratedFile)
    file.rot(5 * shape.batch_bytes + 9)
    vfs.reset()
    with pytest.raises(SegmentUnreadError):  # The damage is surveyed in steps, then read around.
        log.read(5, 1, shape.end_offset, True)
    assert vfs.bytes_read <= allowed_bytes(shape)


@SIZES
@pytest.mark.parametrize("grown", [larger_segments, more_segments])
def test_retention_reads_index_entries_and_renames_a_few_segments_per_step(
    times: int, grown: Callable[[int], LargeLog]
) -> None:
    shape = grown(times)
    log, vfs = open_log(shape, retention_ms=1)
    end, gone, steps = shape.end_offset, 0, 0
    now_ms = shape.first_timestamp + end - shape.batches_per_segment + 1
    while True:
        vfs.reset()
        step = log.delete_old_segments(now_ms, end)
        gone, steps = gone + step, steps + 1
        assert vfs.bytes_read <= (step + 1) * 4 * BLOCK_BYTES
        assert vfs.operation_count <= 30 + 30 * step
        if step < EXPENDABLE_PER_STEP:
            break
    assert gone == shape.segments - 1
    assert steps <= shape.segments // EXPENDABLE_PER_STEP + 1


@SIZES
@pytest.mark.parametrize("grown", [larger_segments, more_segments])
def test_delete_records_touches_no_file(times: int, grown: Callable[[int], LargeLog]) -> None:
    shape = grown(times)
    assert cost_of(lambda log: log.start_at(shape.end_offset - 1), shape) == Cost(0, 0, 0)


@SIZES
@pytest.mark.parametrize("grown", [larger_segments, more_segments])
def test_append_after_a_clean_start_reads_one_index(
    times: int, grown: Callable[[int], LargeLog]
) -> None:
    """A new leader has no other cost; a new follower also has the cost of a truncation."""
    shape = grown(times)
    data = batch(producer=(7, 0, shape.end_offset))
    cost = cost_of(
        lambda log: log.append_as_leader(data, headers_of(data), 1, shape.first_timestamp), shape
    )
    assert cost.bytes_read <= allowed_bytes(shape)
    assert cost.operations <= 40


@pytest.mark.parametrize("producer_id", [None, 7])
def test_recovery_reads_each_byte_of_a_segment_once(producer_id: int | None) -> None:
    """One pass finds the end offset, both indexes, leader epochs and producers."""
    shape = replace(SMALL, producer_id=producer_id)
    mem = MemVfs()
    vfs = CountingVfs(mem)
    directory = put_large_log(mem, "/d1", shape)
    for name in mem.list_dir(directory):
        if name.name.endswith((".snapshot", ".index", ".timeindex")):
            mem.unlink_if_exists(f"{directory}/{name.name}")
    log = recover_large_log(vfs, directory, shape)
    assert log.view().log_end_offset == shape.end_offset
    assert len(log.known_producers()) == (producer_id is not None)
    assert vfs.bytes_read <= shape.segment_bytes + BLOCK_BYTES


def put_cleanly_stopped(mem: MemVfs, shape: LargeLog) -> str:
    """Format a directory with a replica of the given shape; return the replica's directory."""
    format_dir(mem, "/d1", 1)
    directory = put_large_log(mem, "/d1", shape)
    mem.open("/d1/.kafka_cleanshutdown", OpenMode.CREATE)
    for name, offset in (("recovery-point", shape.end_offset), ("log-start", 0)):
        data = format_offsets({TP: offset})
        write_atomically(mem, f"/d1/{name}-offset-checkpoint", data)
    return directory


async def served(mem: MemVfs, shape: LargeLog, **config: object) -> tuple[CountingVfs, LogManager]:
    """Start a manager of one directory with a replica of the given shape."""
    put_cleanly_stopped(mem, shape)
    vfs = CountingVfs(mem)
    manager = manager_of([open_dir(vfs)], shape.config(**config))
    await manager.load()
    return vfs, manager


@SIZES
async def test_load_after_a_clean_stop_measures_64_segments_per_step(times: int) -> None:
    mem = MemVfs()
    shape = more_segments(10 * times)
    put_cleanly_stopped(mem, shape)
    vfs = CountingVfs(mem)
    log_dir = open_dir(vfs)
    steps = count_steps(log_dir, vfs)
    manager = manager_of([log_dir], shape.config())
    await manager.load()
    (handle,) = manager.handles()
    assert len(handle.view.segments) == shape.segments
    assert handle.log_end_offset == shape.end_offset
    assert max(count for _, count in steps) <= STEP_BYTES // STAT_BYTES + 20
    assert sum(count for _, count in steps) <= shape.segments + 60
    await manager.close(1)


@SIZES
@pytest.mark.parametrize("cause", ["power cut", "lost epochs", "lost index"])
async def test_load_reads_a_log_in_steps(times: int, cause: str) -> None:
    mem = MemVfs()
    shape = larger_segments(times)
    directory = put_cleanly_stopped(mem, shape)
    match cause:
        case "power cut":
            mem.unlink_if_exists("/d1/.kafka_cleanshutdown")
            mem.unlink_if_exists("/d1/recovery-point-offset-checkpoint")
        case "lost epochs":
            mem.unlink_if_exists(f"{directory}/leader-epoch-checkpoint")
        case "lost index":
            mem.unlink_if_exists(f"{directory}/{0:020d}.index")
    vfs = CountingVfs(mem)
    log_dir = open_dir(vfs)
    bytes_read: list[int] = []
    steps = count_steps(log_dir, vfs, bytes_read)
    manager = manager_of([log_dir], shape.config())
    await manager.load()
    (handle,) = manager.handles()
    assert handle.log_end_offset == shape.end_offset
    assert max(bytes_read) <= STEP_BYTES + 2 * MIB
    assert sum(bytes_read) <= shape.segment_bytes * 5 // 4
    assert len(steps) >= shape.segment_bytes // (STEP_BYTES + 2 * MIB)
    await manager.close(1)


async def test_load_of_a_replica_runs_in_steps_between_appends_to_another() -> None:
    """A replica whose copies are found while the directory is served is recovered."""
    mem = MemVfs()
    shape = larger_segments(10)
    vfs, manager = await served(mem, SMALL)
    (handle,) = manager.handles()
    other = TopicPartition("other", 0)
    directory = put_large_log(mem, "/d1", shape, topic_partition=other)
    steps = count_steps(handle.log_dir, vfs)
    offsets = DirOffsets({}, {}, {})
    loading = DirLoading(
        registry=ReplicaRegistry(
            dirs=manager.dirs(), default_config=shape.config(), random_bytes=random_bytes_of()
        ),
        host=manager,
        clock=ManualClock(),
        producer_limits=DEFAULT_PRODUCER_LIMITS,
    )
    opening = asyncio.ensure_future(
        loading.open_replica(handle.log_dir, directory, other, offsets, was_clean=False)
    )
    data, appended = batch(), 0
    while not opening.done():
        await handle.append_as_leader(data, headers_of(data), 1).future()
        appended += 1
    assert (await opening).handle.log_end_offset == shape.end_offset
    kinds = [kind for kind, _ in steps]
    assert kinds.count(OpKind.LOAD) >= shape.segment_bytes // (STEP_BYTES + 2 * MIB)
    assert appended >= kinds.count(OpKind.LOAD) // 2
    await manager.close(1)


async def test_load_step_that_hangs_takes_the_directory_offline() -> None:
    mem = MemVfs()
    shape = larger_segments(10)
    put_cleanly_stopped(mem, shape)
    mem.unlink_if_exists("/d1/.kafka_cleanshutdown")
    mem.unlink_if_exists("/d1/recovery-point-offset-checkpoint")
    vfs, clock = FaultVfs(mem), ManualClock()
    hang = vfs.inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"read_at"}), nth=50))
    log_dir = open_dir(vfs, clock=clock)
    log_dir.start_watches()
    loading = asyncio.ensure_future(manager_of([log_dir], shape.config()).load())
    while not hang.hits:
        await asyncio.sleep(0.001)
    assert log_dir.state is LogDirState.ONLINE
    clock.ms += 31_000
    await log_dir.gone()
    await asyncio.wait([loading])
    vfs.release()


async def test_retention_and_purges_run_as_many_short_operations() -> None:
    mem = MemVfs()
    shape = replace(SMALL, segments=40, first_timestamp=1)
    vfs, manager = await served(mem, shape, retention_ms=1, file_delete_delay_ms=0)
    handle = manager.get(TP)
    assert handle is not None
    handle.high_watermark = shape.end_offset
    steps = count_steps(handle.log_dir, vfs)
    assert await handle.apply_retention() == shape.segments
    await chores(manager).purge_due()
    assert len(mem.list_dir(handle.directory)) < 10
    kinds = [kind for kind, _ in steps]
    assert kinds.count(OpKind.RETENTION) == shape.segments // EXPENDABLE_PER_STEP + 1
    assert kinds.count(OpKind.DELETE) == shape.segments
    assert max(count for _, count in steps) <= 30 * EXPENDABLE_PER_STEP
    await manager.close(1)


async def use_index(handle: LogHandle, by: str, shape: LargeLog) -> None:
    """Make a request that needs the index of the first segment."""
    match by:
        case "read":
            assert (await handle.read_checked(5, 1, shape.end_offset, True)).records
        case "time":
            found = await handle.offset_for_timestamp(shape.first_timestamp + 5)
            assert found is not None
            assert found.offset == 5
        case "truncation":
            await handle.truncate_to(5)
            assert handle.log_end_offset == 5
        case "retention":
            handle.high_watermark = shape.end_offset
            assert await handle.apply_retention() == shape.segments


@SIZES
@pytest.mark.parametrize("by", ["read", "time", "truncation", "retention"])
async def test_lost_index_is_rebuilt_in_steps(times: int, by: str) -> None:
    """The request waits for the rebuild; operations of other requests run in between."""
    mem = MemVfs()
    shape = replace(larger_segments(times), segments=2, first_timestamp=1)
    vfs, manager = await served(mem, shape, retention_ms=1)
    handle = manager.get(TP)
    assert handle is not None
    index = f"{handle.directory}/{0:020d}.index"
    mem.unlink_if_exists(index)
    bytes_read: list[int] = []
    steps = count_steps(handle.log_dir, vfs, bytes_read)
    await use_index(handle, by, shape)
    assert max(bytes_read) <= 2 * MIB
    assert len(steps) >= shape.segment_bytes // (2 * MIB)
    if by in ("read", "time"):
        assert mem.read_if_exists(index)
    await manager.close(1)


@SIZES
@pytest.mark.parametrize("by", ["read", "truncation"])
@pytest.mark.parametrize("number", [0, 1])
async def test_damaged_segment_is_surveyed_in_steps(times: int, by: str, number: int) -> None:
    """Records after the damage of a closed or active segment are readable afterwards."""
    mem = MemVfs()
    shape = replace(larger_segments(times), segments=2)
    vfs, manager = await served(mem, shape)
    handle = manager.get(TP)
    assert handle is not None
    damaged = number * shape.batches_per_segment + 5
    rot_header(mem, handle, shape, damaged)
    bytes_read: list[int] = []
    steps = count_steps(handle.log_dir, vfs, bytes_read)
    if by == "read":
        with pytest.raises(CorruptRecordError):
            await handle.read_checked(damaged, 1, shape.end_offset, True)
        assert handle.damaged_from == damaged
        assert (await handle.read_checked(damaged + 1, 1, shape.end_offset, True)).records
    else:
        await handle.truncate_to(damaged)
        assert handle.log_end_offset == damaged
    assert max(bytes_read) <= 3 * MIB
    assert len(steps) >= shape.segment_bytes // (2 * MIB)
    await manager.close(1)


def rot_header(mem: MemVfs, handle: LogHandle, shape: LargeLog, offset: int) -> None:
    """Change the magic byte of the batch at ``offset`` on the disk."""
    segment, at = divmod(offset, shape.batches_per_segment)
    file = mem.open(handle.view.segments[segment].path, OpenMode.READ)
    assert isinstance(file, GeneratedFile)
    file.rot(at * shape.batch_bytes + 16)


@SIZES
async def test_append_to_a_segment_without_its_index_rolls_without_a_rebuild(times: int) -> None:
    """Appends keep their order without waiting: the index is rebuilt when a read needs it."""
    mem = MemVfs()
    shape = larger_segments(times)
    vfs, manager = await served(mem, shape)
    handle = manager.get(TP)
    assert handle is not None
    mem.unlink_if_exists(f"{handle.directory}/{0:020d}.index")
    bytes_read: list[int] = []
    count_steps(handle.log_dir, vfs, bytes_read)
    for sequence in range(2):
        data = batch(producer=(7, 0, shape.end_offset + sequence))
        appended = await handle.append_as_leader(data, headers_of(data), 1).future()
        assert appended.base_offset == shape.end_offset + sequence
    assert sum(bytes_read) <= allowed_bytes(shape)
    assert [one.base_offset for one in handle.view.segments] == [0, shape.end_offset]
    found = await handle.read_checked(5, 1, shape.end_offset, True)
    assert headers_of(found.records)[0].base_offset == 5
    await manager.close(1)


async def served_without_index(
    shape: LargeLog,
) -> tuple[LogHandle, list[tuple[OpKind, int]], list[int], LogManager]:
    """Return a replica whose first segment lost its index, and the record of its operations."""
    mem = MemVfs()
    vfs, manager = await served(mem, shape)
    handle = manager.get(TP)
    assert handle is not None
    mem.unlink_if_exists(f"{handle.directory}/{0:020d}.index")
    bytes_read: list[int] = []
    return handle, count_steps(handle.log_dir, vfs, bytes_read), bytes_read, manager


async def test_reads_that_need_the_same_index_wait_for_one_rebuild() -> None:
    shape = replace(larger_segments(2), segments=2)
    handle, _, bytes_read, manager = await served_without_index(shape)
    end = shape.end_offset
    found = await asyncio.gather(*(handle.read_checked(at, 1, end, True) for at in (5, 6, 7)))
    assert [headers_of(one.records)[0].base_offset for one in found] == [5, 6, 7]
    assert sum(bytes_read) <= shape.segment_bytes * 5 // 4
    await manager.close(1)


async def test_read_that_waits_for_a_rebuild_succeeds_although_its_segment_is_truncated() -> None:
    shape = replace(larger_segments(2), segments=2)
    handle, steps, _, manager = await served_without_index(shape)
    read = asyncio.ensure_future(handle.read_checked(5, 1, shape.end_offset, True))
    while len(steps) < 5:
        await asyncio.sleep(0)
    await handle.truncate_to(100)
    assert headers_of((await read).records)[0].base_offset == 5
    assert handle.log_end_offset == 100
    await manager.close(1)


async def test_rebuild_continues_after_a_cancelled_caller() -> None:
    shape = replace(larger_segments(2), segments=2)
    handle, steps, bytes_read, manager = await served_without_index(shape)
    read = asyncio.ensure_future(handle.read_checked(5, 1, shape.end_offset, True))
    while len(steps) < 10:
        await asyncio.sleep(0)
    read.cancel()
    found = await handle.read_checked(5, 1, shape.end_offset, True)
    assert headers_of(found.records)[0].base_offset == 5
    assert sum(bytes_read) <= shape.segment_bytes * 5 // 4
    await manager.close(1)


def test_sparse_log_on_a_real_disk_equals_the_generated_one(tmp_path: Path) -> None:
    shape = LargeLog.of_size(4 * MIB, MIB, segments=2, producer_id=7)
    directory = write_sparse_log(str(tmp_path), shape, topic_partition=TP, topic_id=TOPIC_ID)
    for base in shape.bases():
        for suffix, generated in shape.files_of(base).items():
            written = (Path(directory) / offset_file_name(base, suffix)).read_bytes()
            assert written == generated.read_at(0, generated.size())
    log = load_large_log(RealVfs(), directory, shape)
    assert log.view().log_end_offset == shape.end_offset
