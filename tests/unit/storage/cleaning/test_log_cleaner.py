"""The log cleaner: choice of the log, conditions that exclude one, limits and errors."""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.core.ids import TopicPartition, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.record_batch import HEADER_BYTES, compute_crc
from kraftjbod.protocol.records import build_batch, encode_varint
from kraftjbod.storage.cleaning.cleaner_map import ENTRY_BYTES
from kraftjbod.storage.cleaning.log_cleaner import CleanerLimits
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.moves.mover_pool import MoverPool
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.cleaning.compaction_rig import (
    CONFIG,
    NO_LIMIT,
    NOW_MS,
    History,
    compacting_dir,
    compacting_manager,
    flush_and_roll,
    keyed,
    read_all,
)
from tests.faults.rig import TOPIC_ID, TP, ManualClock, chores, directory_id, format_dir
from tests.faults.vfs_fault import Fault, FaultVfs

OTHER = TopicPartition("t", 1)
#: Fields of a batch header.
BATCH_LENGTH, CRC = struct.Struct(">i"), struct.Struct(">I")
#: One batch a step, so that a test can act in the middle of a pass.
SMALL_STEPS = CleanerLimits(step_bytes=10)


async def start(
    config: TopicConfig = CONFIG,
    *,
    dirs: int = 1,
    limits: CleanerLimits | None = None,
    vfs: MemVfs | FaultVfs | None = None,
    clock: ManualClock | None = None,
) -> LogManager:
    opened = []
    for number in range(1, dirs + 1):
        disk = vfs or MemVfs()
        if not disk.exists(f"/d{number}"):
            format_dir(disk, f"/d{number}", number)
        opened.append(compacting_dir(disk, f"/d{number}", number))
    manager = compacting_manager(opened, config, clock, limits)
    await manager.load()
    return manager


async def fill_log(
    manager: LogManager, tp: TopicPartition = TP, rounds: int = 4
) -> tuple[LogHandle, History]:
    """Write ``rounds`` closed segments with the same two keys in each."""
    handle = await manager.create(tp, TOPIC_ID, directory_id(1))
    history = History()
    for step in range(rounds):
        await history.append(handle, keyed(("a", f"{step}" * 50), ("b", f"{step}" * 50)))
        await flush_and_roll(handle)
    return handle, history


async def clean_one(manager: LogManager) -> bool:
    return await manager.cleaner.clean_dirtiest(manager.dirs()[0])


def with_config(**more: object) -> TopicConfig:
    return CONFIG.model_copy(update=more)


# -- choice of the log -----------------------------------------------------------------------------


async def test_log_cleaner_takes_the_dirtiest_log_first() -> None:
    manager = await start(with_config(min_cleanable_dirty_ratio=0.1))
    handle, _ = await fill_log(manager)
    assert await clean_one(manager)
    # The log is clean now, except for the records that follow.
    await History().append(handle, keyed(("a", "later")))
    await flush_and_roll(handle)
    other, _ = await fill_log(manager, OTHER)
    with capture_logs() as logged:
        assert await clean_one(manager)
        assert manager.cleaner.max_dirty_percent == 100.0
        assert await clean_one(manager)
        assert 10 < manager.cleaner.max_dirty_percent < 100
        assert not await clean_one(manager)
    order = [e["partition"] for e in logged if e["event"] == "log_compacted"]
    assert order == [str(other.topic_partition), str(handle.topic_partition)]


async def test_log_cleaner_cleans_an_overdue_log_below_the_dirty_ratio() -> None:
    config, clock = (
        with_config(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5000),
        ManualClock(NOW_MS),
    )
    manager = await start(config, clock=clock)
    await fill_log(manager)
    assert not await clean_one(manager)
    clock.ms += 5001
    assert await clean_one(manager)
    assert not await clean_one(manager)


async def test_log_cleaner_skips_a_log_without_compaction() -> None:
    manager = await start(TopicConfig(segment_bytes=1024))
    handle, history = await fill_log(manager)
    assert not await clean_one(manager)
    assert await read_all(handle) == history.records
    assert not handle.view.may_have_gaps


async def test_log_cleaner_leaves_records_above_the_high_watermark() -> None:
    manager = await start()
    handle, history = await fill_log(manager)
    handle.high_watermark = 4
    assert await clean_one(manager)
    assert await read_all(handle) == history.records[2:]


async def test_log_cleaner_flushes_recovered_records_before_cleaning() -> None:
    mem = MemVfs()
    manager = await start(vfs=mem)
    _, history = await fill_log(manager)
    vfs = FaultVfs(mem.crash_clone(1))
    manager = await start(vfs=vfs)
    handle = manager.get(TP)
    assert handle is not None
    assert handle.recovery_point == 0
    handle.high_watermark = handle.log_end_offset
    synced = []

    def see(kind: str, path: str) -> None:
        if kind == "sync" or path.endswith(".cleaned"):
            synced.append((kind, path.rpartition("/")[2]))

    vfs.on_operation = see
    assert await clean_one(manager)
    assert synced[0] == ("sync", "00000000000000000000.log")
    assert await read_all(handle) == history.records[-2:]


async def test_log_cleaner_keeps_lookups_by_offset_and_timestamp_correct() -> None:
    manager = await start()
    handle, history = await fill_log(manager)
    assert await clean_one(manager)
    assert await read_all(handle) == history.records[-2:]
    # A read at a removed offset returns the next record that is left.
    for offset in range(8):
        assert (await read_all(handle, offset))[0].offset == max(6, offset)
    found = await handle.offset_for_timestamp(NOW_MS)
    assert found is not None
    assert found.offset == 6


# -- conditions that exclude a log -----------------------------------------------------------------


@pytest.mark.parametrize("state", [LogDirState.SATURATED, LogDirState.STALLED, LogDirState.OFFLINE])
async def test_log_cleaner_skips_a_directory_that_is_not_online(state: LogDirState) -> None:
    manager = await start()
    await fill_log(manager)
    log_dir = manager.dirs()[0]
    log_dir.state = state
    assert not await clean_one(manager)
    log_dir.state = LogDirState.ONLINE
    assert await clean_one(manager)


async def test_log_cleaner_skips_a_moving_replica_until_the_move_ends() -> None:
    """KAFKA-16709, KAFKA-19458: no code path has to resume the cleaner explicitly."""
    manager = await start(dirs=2)
    handle, history = await fill_log(manager)
    target = manager.dirs()[1]
    await manager.create_future(TP, target, Uuid(bytes(range(16))))
    assert not await clean_one(manager)
    await manager.drop_future(TP)
    assert await clean_one(manager)
    # The target directory inherits the clean offset of the moved log.
    await history.append(handle, keyed(("a", "more")))
    future = await manager.create_future(TP, target, Uuid(bytes(range(1, 17))))
    pool = MoverPool(threads=1, clock=ManualClock())
    async with pool.executor() as executor:
        while not (await future.catch_up(handle, executor)).is_caught_up:
            pass
        moved = await manager.promote_future(TP, executor)
    assert moved.view.may_have_gaps
    moved.high_watermark = moved.log_end_offset
    history.require_kept_by(await read_all(moved))
    assert not await manager.cleaner.clean_dirtiest(target)
    await flush_and_roll(moved)
    assert await manager.cleaner.clean_dirtiest(target)
    assert await read_all(moved) == history.records[-2:]
    text = target.vfs.read_if_exists("/d2/cleaner-offset-checkpoint")
    assert text is not None
    assert bytes(text) == b"0\n1\nt 0 9\n"


async def run_pass_with_interruption(  # type: ignore[no-untyped-def]  # a callback
    manager: LogManager, vfs: FaultVfs, kind: str, then, until: threading.Event | None = None
) -> None:
    """Run a pass, and call ``then`` on the event loop at the first ``kind`` on a ``.cleaned`` file.

    :param until: the pass waits for this event in that operation.
    """
    loop = asyncio.get_running_loop()

    def see(seen: str, path: str) -> None:
        if seen == kind and path.endswith(".cleaned"):
            vfs.on_operation = None
            loop.call_soon_threadsafe(then)
            if until is not None:
                until.wait(10)

    vfs.on_operation = see
    await clean_one(manager)


def cleaned_files(vfs: MemVfs) -> list[str]:
    return [e.name for e in vfs.list_dir(f"/d1/{TP}") if e.name.endswith((".cleaned", ".swap"))]


async def test_log_cleaner_pass_ends_when_a_move_starts() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    manager = await start(dirs=2, vfs=vfs, limits=SMALL_STEPS)
    handle, history = await fill_log(manager, rounds=20)
    moves = []

    def move() -> None:
        made = manager.create_future(TP, manager.dirs()[1], Uuid(bytes(range(16))))
        moves.append(asyncio.ensure_future(made))

    with capture_logs() as logged:
        await run_pass_with_interruption(manager, vfs, "write_at", move)
    (moving,) = moves
    await moving
    assert "paused by a move" in str([e for e in logged if e["event"] == "compaction_put_off"])
    assert cleaned_files(mem) == []
    history.require_kept_by(await read_all(handle))


async def test_log_cleaner_pass_ends_when_its_replica_is_deleted() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    manager = await start(vfs=vfs, limits=SMALL_STEPS)
    await fill_log(manager, rounds=20)
    deletions = []
    await run_pass_with_interruption(
        manager,
        vfs,
        "write_at",
        lambda: deletions.append(asyncio.ensure_future(manager.delete(TP))),
    )
    await deletions[0]
    await chores(manager).purge_due()
    assert not [entry.name for entry in mem.list_dir("/d1") if entry.name.startswith("t-0")]
    assert manager.dirs()[0].is_online


async def test_log_cleaner_cancelled_pass_leaves_no_temporary_file() -> None:
    for kind in ("open", "write_at", "sync"):
        mem = MemVfs()
        vfs = FaultVfs(mem)
        manager = await start(vfs=vfs, limits=SMALL_STEPS)
        handle, history = await fill_log(manager, rounds=20)
        tasks = [asyncio.ensure_future(asyncio.sleep(0))]
        tasks[0] = asyncio.ensure_future(
            run_pass_with_interruption(manager, vfs, kind, lambda tasks=tasks: tasks[0].cancel())
        )
        await asyncio.wait(tasks)
        assert tasks[0].cancelled()
        assert cleaned_files(mem) == [], kind
        history.require_kept_by(await read_all(handle))
        await manager.close(1)


async def test_log_cleaner_pass_does_not_undo_a_concurrent_truncation() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    manager = await start(vfs=vfs, limits=SMALL_STEPS)
    handle, history = await fill_log(manager, rounds=20)
    cuts = []
    await run_pass_with_interruption(
        manager,
        vfs,
        "write_at",
        lambda: cuts.append(asyncio.ensure_future(handle.truncate_to(9))),
    )
    await cuts[0]
    history.records = [r for r in history.records if r.offset < handle.log_end_offset]
    handle.high_watermark = handle.log_end_offset
    await history.append(handle, keyed(("c", "behind the cut")))
    await flush_and_roll(handle)
    while await clean_one(manager):
        pass
    history.require_kept_by(await read_all(handle))
    assert cleaned_files(mem) == []


async def test_log_cleaner_that_finds_damage_keeps_the_segment() -> None:
    """The position of the damage refers to the segment that was read, not to the compacted one."""
    mem = MemVfs()
    vfs = FaultVfs(mem)
    manager = await start(vfs=vfs, limits=SMALL_STEPS)
    handle, history = await manager.create(TP, TOPIC_ID, directory_id(1)), History()
    for step in range(20):
        await history.append(handle, keyed(("same", "x" * 50), (f"key {step}", "y" * 50)))
        await flush_and_roll(handle)
    await manager.close(1)
    manager = await start(vfs=vfs, limits=SMALL_STEPS)
    handle = manager.get(TP)
    assert handle is not None
    handle.high_watermark = handle.log_end_offset
    reads, is_read = [], threading.Event()

    def rot_read_segment() -> None:
        mem.open(f"/d1/{TP}/{6:020}.log", OpenMode.READ_WRITE).rot(100)
        reads.append(asyncio.ensure_future(handle.read_checked(6, 1, NO_LIMIT, True)))
        reads[0].add_done_callback(lambda _: is_read.set())

    # The pass waits, because a reader would find sound records in the compacted segment.
    await run_pass_with_interruption(manager, vfs, "sync", rot_read_segment, until=is_read)
    with pytest.raises(CorruptRecordError):
        await reads[0]
    assert handle.damaged_from == 6
    await handle.truncate_to(6)
    assert handle.log_end_offset == 6
    history.records = [record for record in history.records if record.offset < 6]
    history.require_kept_by(await read_all(handle))


# -- limits ----------------------------------------------------------------------------------------


async def test_log_cleaner_with_a_full_map_cleans_in_several_passes() -> None:
    limits = CleanerLimits(map_bytes=20 * ENTRY_BYTES)
    manager = await start(limits=limits)
    handle = await manager.create(TP, TOPIC_ID)
    history = History()
    for step in range(6):
        pairs = [(f"k{(10 * step + i) % 30}", "v" * 20) for i in range(10)]
        await history.append(handle, keyed(*pairs))
        await flush_and_roll(handle)
    passes = 0
    while await clean_one(manager):
        passes += 1
    assert passes > 2
    found = await read_all(handle)
    history.require_kept_by(found)
    assert len(found) == 30


async def test_log_cleaner_does_not_wait_for_a_hung_thread_when_the_directory_returns() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    manager = await start(vfs=vfs)
    handle, history = await fill_log(manager)
    log_dir = manager.dirs()[0]
    hang = vfs.inject(
        Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"write_at"}), path="*.cleaned")
    )
    passing = asyncio.ensure_future(clean_one(manager))
    while not hang.hits:
        await asyncio.sleep(0.01)
    log_dir.go_offline("it hangs")
    assert not await passing
    vfs.faults.clear()
    # The directory returns as another object: the same files, and the old thread is still stuck.
    again = await start(vfs=mem)
    stuck = manager.cleaner._executors[log_dir]
    again.cleaner._executors[again.dirs()[0]] = stuck
    moved = again.get(TP)
    assert moved is not None
    moved.high_watermark = moved.log_end_offset
    assert await clean_one(again)
    history.require_kept_by(await read_all(moved))
    assert cleaned_files(mem) == []
    vfs.release()
    assert handle.log_dir is log_dir


async def test_log_cleaner_limits_its_rate() -> None:
    """A pass that has spent its allowance waits, and checks periodically while it waits."""
    limits = CleanerLimits(max_bytes_per_second=100)
    clock = ManualClock(NOW_MS)
    manager = await start(limits=limits, clock=clock)
    handle, history = await fill_log(manager)
    passing = asyncio.ensure_future(clean_one(manager))
    for _ in itertools.count():
        await asyncio.sleep(0.01)
        if passing.done():
            break
        clock.ms += 1000
    assert await passing
    spent_ms = clock.ms - NOW_MS
    assert spent_ms >= 1000 * (handle.size_bytes * 2) / 100
    history.require_kept_by(await read_all(handle))


async def test_log_cleaner_pass_without_disk_space_is_retried_later() -> None:
    mem = MemVfs()
    clock = ManualClock(NOW_MS)
    manager = await start(limits=CleanerLimits(reserve_bytes=1 << 40), vfs=mem, clock=clock)
    await fill_log(manager)
    with capture_logs() as logged:
        while await clean_one(manager):
            pass
    assert [e["event"] for e in logged].count("no_space_to_compact") == 1
    clock.ms += 300_000
    with capture_logs() as logged:
        while await clean_one(manager):
            pass
    assert [e["event"] for e in logged].count("no_space_to_compact") == 1


async def test_log_cleaner_marks_a_log_with_an_unknown_compression_uncleanable() -> None:
    manager = await start(TopicConfig(segment_bytes=1024))
    handle = await manager.create(TP, TOPIC_ID)
    data = bytearray(build_batch(keyed(("a", "1"))))
    data[22] |= 7
    data[17:21] = compute_crc(data, 0, len(data)).to_bytes(4, "big")
    await handle.append_as_follower(bytes(data))
    await flush_and_roll(handle)
    handle.high_watermark = handle.log_end_offset
    handle.set_config(CONFIG)
    with capture_logs() as logged:
        while await clean_one(manager):
            pass
    assert [e["event"] for e in logged].count("log_uncleanable") == 1
    assert manager.cleaner.uncleanable_in(manager.dirs()[0]) == [handle]
    await manager.delete(TP)
    await clean_one(manager)


async def test_log_cleaner_runs_in_the_background_until_cancelled() -> None:
    manager = await start(limits=CleanerLimits(backoff_ms=1))
    handle, history = await fill_log(manager)
    running = asyncio.ensure_future(manager.run_background())
    while handle.log_end_offset - len(await read_all(handle)) < 6:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
    assert await read_all(handle) == history.records[-2:]
    await manager.close(1)


def _cleaner_threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith("log-cleaner:")}


async def test_log_cleaner_thread_of_a_failed_directory_ends_when_it_is_replaced() -> None:
    mem = MemVfs()
    manager = await start(vfs=mem, limits=CleanerLimits(backoff_ms=1))
    earlier = set(threading.enumerate())
    running = asyncio.ensure_future(manager.run_background())
    await fill_log(manager)
    dead = manager.dirs()[0]
    async with asyncio.timeout(20):
        while not (cleaning := _cleaner_threads() - earlier):
            await asyncio.sleep(0.01)
    (thread,) = cleaning
    dead.go_offline("no more")
    manager.drop(dead)
    back = await manager.arrivals.load(compacting_dir(mem, "/d1", 1), lambda _: None)
    manager.arrivals.install(back, replaces=dead, is_taken=lambda _: False)
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()
    running.cancel()
    await asyncio.wait({running})
    await manager.close(1)


async def test_log_cleaner_does_not_run_when_disabled() -> None:
    manager = await start(limits=CleanerLimits(is_enabled=False, backoff_ms=1))
    await fill_log(manager)
    async with asyncio.timeout(20):
        await manager.cleaner.run_cleaner(manager.dirs()[0])
    assert await clean_one(manager), "The log was not cleaned before."


# -- unexpected content and errors -----------------------------------------------------------------


def batch_with_impossible_offset(base_offset: int) -> bytes:
    """Return a valid batch of one record whose offset delta is 2^66."""
    batch = bytearray(build_batch(keyed(("k", "v")), base_offset=base_offset))
    delta_at = HEADER_BYTES + 3
    batch[delta_at : delta_at + 1] = encode_varint(1 << 66)
    batch[HEADER_BYTES] = (len(batch) - HEADER_BYTES - 1) << 1
    BATCH_LENGTH.pack_into(batch, 8, len(batch) - 12)
    CRC.pack_into(batch, 17, compute_crc(batch, 0, len(batch)))
    return bytes(batch)


async def cleaning_until(manager: LogManager, event: str) -> list[MutableMapping[str, Any]]:
    """Run the background work until ``event`` is logged, and return the events logged so far."""
    with capture_logs() as logged:
        background = asyncio.ensure_future(manager.run_background())
        while event not in [e["event"] for e in logged] and not background.done():
            await asyncio.sleep(0.001)
        assert not background.done(), background.exception()
        background.cancel()
        await asyncio.wait({background})
    return logged


async def test_log_cleaner_marks_only_the_log_with_an_impossible_offset_uncleanable() -> None:
    """A batch of 79 bytes stopped each broker that compacted the log, again after each restart."""
    manager = await start(dirs=1, limits=CleanerLimits(backoff_ms=1))
    handle = await manager.create(OTHER, TOPIC_ID, directory_id(1))
    assert len(batch_with_impossible_offset(0)) <= 79
    # A follower accepts such a batch, and an earlier release may have written one.
    await handle.append_as_follower(batch_with_impossible_offset(0))
    await handle.append_as_follower(build_batch(keyed(("k", "v")), base_offset=1))
    handle.high_watermark = handle.log_end_offset
    await flush_and_roll(handle)
    await fill_log(manager)
    logged = await cleaning_until(manager, "log_compacted")
    assert manager.cleaner.uncleanable_in(manager.dirs()[0]) == [handle]
    (bad,) = [e for e in logged if e["event"] == "log_uncleanable"]
    assert (bad["partition"], bad["offset"]) == (str(OTHER), 0)
    # The log is unchanged, and is not cleaned again until it is recreated.
    assert handle.size_bytes == len(batch_with_impossible_offset(0)) + len(
        build_batch(keyed(("k", "v")))
    )
    assert not await clean_one(manager)
    await manager.delete(OTHER)
    again, _ = await fill_log(manager, OTHER)
    assert await clean_one(manager)
    assert again.log_dir.is_online


async def test_log_cleaner_unexpected_error_makes_only_its_log_uncleanable() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await start(vfs=vfs, limits=CleanerLimits(backoff_ms=1))
    bad, history = await fill_log(manager, OTHER)
    await fill_log(manager)

    def see(kind: str, path: str) -> None:
        if kind == "read_at" and f"/{OTHER}/" in path:
            raise ZeroDivisionError(path)

    vfs.on_operation = see
    reported = await cleaning_until(manager, "log_compacted")
    while not manager.cleaner.uncleanable_in(manager.dirs()[0]):
        await clean_one(manager)
    vfs.on_operation = None
    assert manager.dirs()[0].jobs.failures == 1
    assert manager.cleaner.uncleanable_in(manager.dirs()[0]) == [bad]
    assert await read_all(bad) == history.records
    assert {e["event"] for e in reported} >= {"log_compacted"}
