"""Compaction compared with a model: the latest record of each key is always present.

Random records, passes, truncations and crashes come first. Then each operation of a pass fails
once, for lack of space or by an error, and each operation is the last one before a power cut.
"""

from __future__ import annotations

import asyncio
from errno import EDQUOT, EIO, ENOSPC

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.cleaning.log_cleaner import CleanerLimits
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.cleaning.compaction_rig import (
    NOW_MS,
    History,
    clean,
    compacting_dir,
    compacting_manager,
    flush_and_roll,
    heal,
    keyed,
    read_all,
)
from tests.faults.rig import TOPIC_ID, TP, ManualClock, chores, format_dir, open_dir
from tests.faults.vfs_fault import WRITING_KINDS, Fault, FaultVfs

KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
VALUES = st.one_of(st.none(), st.sampled_from(["1", "22", "x" * 120]))
BATCH = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)
STEP = st.one_of(
    BATCH, st.sampled_from(["roll", "clean", "restart", "crash", "time", "truncate", "retain"])
)


#: Parts of a sweep over the operations of a pass.
SHARES = 4
#: Operations that may need space: for bytes, or for a longer name in a directory.
TAKES_SPACE = frozenset({"write_at", "rename"})


class Scenario:
    """One log under random steps; the clock is kept over restarts."""

    def __init__(self) -> None:
        self.vfs = MemVfs()
        format_dir(self.vfs, "/d1", 1)
        self.history = History()
        self.now_ms = NOW_MS
        self.certain = 0

    async def start(self) -> None:
        log_dir = compacting_dir(self.vfs)
        self.clock = ManualClock(self.now_ms)
        self.manager = compacting_manager([log_dir], clock=self.clock)
        await self.manager.load()
        self.handle = await self.manager.create(TP, TOPIC_ID)
        self.handle.high_watermark = self.handle.log_end_offset

    async def play(self, step: object) -> None:
        match step:
            case list():
                pairs = [(str(key), value) for key, value in step]
                await self.history.append(self.handle, keyed(*pairs, timestamp_ms=self.now_ms))
            case "roll":
                await flush_and_roll(self.handle)
            case "clean":
                while await self.manager.cleaner.clean_dirtiest(self.manager.dirs()[0]):
                    pass
            case "retain":
                await self.handle.apply_retention()
                await chores(self.manager).purge_due()
            case "time":
                self.now_ms += 700
                self.clock.ms = self.now_ms
            case "truncate":
                # Compaction uses committed records, so truncations stay in the active segment.
                active = self.handle.view.segments[-1].base_offset
                end = self.handle.log_end_offset
                await self.handle.truncate_to(max(min(active, end), end - 3))
                self.history.records = [
                    r for r in self.history.records if r.offset < self.handle.log_end_offset
                ]
            case "restart":
                await self.manager.close(1)
                await self.start()
            case "crash":
                certain = self.handle.recovery_point
                self.vfs = self.vfs.crash_clone(len(self.history.records))
                await self.start()
                end = self.handle.log_end_offset
                assert end >= certain or not [
                    r for r in self.history.records if end <= r.offset < certain
                ]
                self.history.records = [r for r in self.history.records if r.offset < end]

    async def check(self) -> None:
        found = await read_all(self.handle)
        # Tombstones stay 1000 ms, which is 2 time steps; other tests check their removal.
        self.history.require_kept_by(found, gone=self.history.latest().keys())
        for start in {record.offset + 1 for record in found[:3]}:
            again = await read_all(self.handle, start)
            assert again == [record for record in found if record.offset >= start]


@given(st.lists(STEP, min_size=3, max_size=25))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_compaction_keeps_the_latest_record_of_each_key_over_random_steps(
    steps: list[object],
) -> None:
    async def play() -> None:
        scenario = Scenario()
        await scenario.start()
        for step in [*steps, "roll", "clean"]:
            await scenario.play(step)
        await scenario.check()
        leftovers = [e.name for e in scenario.vfs.list_dir(f"/d1/{TP}") if ".log." in e.name]
        assert all(name.endswith(".deleted") for name in leftovers), leftovers

    asyncio.run(play())


async def filled(handle: LogHandle, history: History, rounds: int = 12) -> None:
    """Append records of eight keys over several segments, overwriting each key repeatedly."""
    for step in range(rounds):
        pairs = [(f"k{(step + i) % 8}", f"{step}" * 40) for i in range(5)]
        await history.append(handle, keyed(*pairs), producer=(7, 0, step * 5))
    await flush_and_roll(handle)


async def uncleaned_log() -> tuple[MemVfs, History]:
    vfs, history = MemVfs(), History()
    format_dir(vfs, "/d1", 1)
    manager = compacting_manager([compacting_dir(vfs)])
    await manager.load()
    await filled(await manager.create(TP, TOPIC_ID), history)
    await manager.close(1)
    return vfs, history


async def opened(vfs: MemVfs | FaultVfs) -> tuple[LogManager, LogHandle]:
    manager = compacting_manager([open_dir(vfs)])
    await manager.load()
    handle = manager.get(TP)
    assert handle is not None
    handle.high_watermark = handle.log_end_offset
    return manager, handle


def cleaned_files(vfs: MemVfs) -> list[str]:
    return [e.name for e in vfs.list_dir(f"/d1/{TP}") if e.name.endswith((".cleaned", ".swap"))]


async def test_compaction_pass_leaves_one_record_of_each_key() -> None:
    vfs, history = await uncleaned_log()
    manager, handle = await opened(vfs)
    before = handle.size_bytes
    await clean(manager)
    found = await read_all(handle)
    history.require_kept_by(found)
    assert len(found) == 8
    assert handle.size_bytes < before / 2
    assert manager.cleaner.recopy_percent < 50
    assert not cleaned_files(vfs)
    await chores(manager).purge_due()
    names = [entry.name for entry in vfs.list_dir(f"/d1/{TP}")]
    assert not [name for name in names if name.endswith(".deleted")]


class Operations:
    """Count the writing operations of a pass."""

    def __init__(self, kinds: frozenset[str] = WRITING_KINDS) -> None:
        self.kinds = kinds
        self.count = 0

    def note(self, kind: str, path: str) -> None:
        self.count += kind in self.kinds


async def operations_of_a_pass(kinds: frozenset[str] = WRITING_KINDS) -> int:
    vfs, _ = await uncleaned_log()
    fault = FaultVfs(vfs)
    manager, _ = await opened(fault)
    counted = Operations(kinds)
    fault.on_operation = counted.note
    await clean(manager)
    fault.on_operation = None
    return counted.count


@pytest.mark.sampled(1)
@pytest.mark.parametrize("errno", [ENOSPC, EDQUOT])
@pytest.mark.parametrize("lasts", ["once", "until space"])
async def test_compaction_without_space_at_any_operation_keeps_the_log_complete(
    errno: int, lasts: str
) -> None:
    for nth in range(1, await operations_of_a_pass(TAKES_SPACE) + 1):
        mem, history = await uncleaned_log()
        vfs = FaultVfs(mem)
        manager, handle = await opened(vfs)
        vfs.inject(Fault(errno=errno, kinds=TAKES_SPACE, nth=nth, sticky=lasts != "once"))
        await clean(manager)
        # The log in memory matches the files while the disk is still full.
        history.require_kept_by(await read_all(handle))
        vfs.clear()
        await heal(manager)
        history.require_kept_by(await read_all(handle))
        await clean(manager)
        assert cleaned_files(mem) == [], nth
        found = await read_all(handle)
        history.require_kept_by(found)
        assert len(found) == 8, nth
        await history.append(handle, keyed(("k1", "after")), producer=(7, 0, 60))
        await manager.close(1)
        manager, handle = await opened(mem)
        history.require_kept_by(await read_all(handle))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("effect", [DiskFault.EIO, DiskFault.SHORT_WRITE])
async def test_compaction_disk_error_at_any_operation_loses_no_record(
    effect: DiskFault, share: int
) -> None:
    for nth in range(1 + share, await operations_of_a_pass() + 1, SHARES):
        mem, history = await uncleaned_log()
        vfs = FaultVfs(mem)
        manager, _ = await opened(vfs)
        vfs.inject(Fault(errno=EIO, effect=effect, kinds=WRITING_KINDS, nth=nth))
        await clean(manager)
        assert not manager.dirs()[0].is_online, nth
        for seed in (None, nth):
            left = mem if seed is None else mem.crash_clone(seed)
            manager, handle = await opened(left)
            history.require_kept_by(await read_all(handle))
            assert cleaned_files(left) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", range(SHARES))
async def test_compaction_power_cut_at_any_operation_loses_no_record(share: int) -> None:
    for nth in range(1 + share, await operations_of_a_pass() + 1, SHARES):
        mem, history = await uncleaned_log()
        vfs, clones = FaultVfs(mem), list[MemVfs]()
        manager, _ = await opened(vfs)
        seen = Operations()

        def cut(
            kind: str,
            path: str,
            *,
            nth: int = nth,
            mem: MemVfs = mem,
            seen: Operations = seen,
            clones: list[MemVfs] = clones,
        ) -> None:
            seen.note(kind, path)
            if seen.count == nth and not clones:
                clones.extend(mem.crash_clone(seed) for seed in range(4))

        vfs.on_operation = cut
        await clean(manager)
        for clone in clones:
            manager, handle = await opened(clone)
            history.require_kept_by(await read_all(handle))
            await clean(manager)
            found = await read_all(handle)
            history.require_kept_by(found)
            assert len(found) == 8
            assert cleaned_files(clone) == []
            # The producer is still known, so its last batch is a duplicate.
            before = handle.log_end_offset
            await append_last_batch_again(handle)
            assert handle.log_end_offset == before


async def test_compaction_keeps_the_last_batch_of_each_producer() -> None:
    """Without a snapshot, the last sequence of each producer comes from the log."""
    vfs, history = MemVfs(), History()
    format_dir(vfs, "/d1", 1)
    manager = compacting_manager([compacting_dir(vfs)])
    await manager.load()
    handle = await manager.create(TP, TOPIC_ID)
    await filled(handle, history)
    # All records of this producer are superseded by another one.
    await history.append(handle, keyed(*((f"k{i}", "later") for i in range(8))))
    await flush_and_roll(handle)
    await clean(manager)
    assert len(await read_all(handle)) == 8
    await manager.close(1)
    for entry in vfs.list_dir(f"/d1/{TP}"):
        if entry.name.endswith(".snapshot"):
            vfs.unlink_if_exists(f"/d1/{TP}/{entry.name}")
    manager, handle = await opened(vfs)
    before = handle.log_end_offset
    await append_last_batch_again(handle)
    assert handle.log_end_offset == before
    history.require_kept_by(await read_all(handle))


async def append_last_batch_again(handle: LogHandle) -> None:
    """Append the last batch of ``filled`` again."""
    other = History()
    pairs = [(f"k{(11 + i) % 8}", "11" * 40) for i in range(5)]
    await other.append(handle, keyed(*pairs), producer=(7, 0, 55))


async def test_compaction_marks_a_damaged_log_uncleanable_once_and_cleans_other_logs() -> None:
    vfs, history = MemVfs(), History()
    format_dir(vfs, "/d1", 1)
    manager = compacting_manager([compacting_dir(vfs)])
    await manager.load()
    bad = await manager.create(TP, TOPIC_ID)
    await filled(bad, History())
    good = await manager.create(TP._replace(partition=1), TOPIC_ID)
    await filled(good, history)
    damaged = bad.view.segments[1].base_offset
    file = vfs.open(f"/d1/{TP}/{damaged:020d}.log", OpenMode.READ)
    file.data[100] ^= 1
    with capture_logs() as logged:
        await clean(manager)
    assert len(await read_all(good)) == 8
    history.require_kept_by(await read_all(good))
    bad_ones = [event for event in logged if event["event"] == "log_uncleanable"]
    assert [event["partition"] for event in bad_ones] == [str(TP)]
    assert manager.cleaner.uncleanable_in(manager.dirs()[0]) == [bad]
    assert bad.damaged_from == damaged
    assert cleaned_files(vfs) == []
    # After the damage is truncated, the log may be cleaned again.
    await bad.truncate_to(damaged)
    assert manager.cleaner.uncleanable_in(manager.dirs()[0]) == []


async def test_compaction_skips_a_clean_log() -> None:
    vfs, _ = await uncleaned_log()
    manager, _ = await opened(vfs)
    with capture_logs() as logged:
        await clean(manager)
        assert not await manager.cleaner.clean_dirtiest(manager.dirs()[0])
    assert [event["event"] for event in logged].count("log_compacted") == 1
    await manager.close(1)
    manager, _ = await opened(vfs)
    assert not await manager.cleaner.clean_dirtiest(manager.dirs()[0])


async def test_compaction_stops_before_it_uses_the_space_of_the_reserve() -> None:
    """The limit holds for any amount of free space at the start of a pass."""
    mem, history = await uncleaned_log()
    limits = CleanerLimits(reserve_bytes=4096)
    mem.capacity_bytes = mem.used_bytes() + 4096 + 300
    manager = compacting_manager([open_dir(mem)], limits=limits)
    await manager.load()
    handle = manager.get(TP)
    assert handle is not None
    handle.high_watermark = handle.log_end_offset
    with capture_logs() as logged:
        await clean(manager)
    assert [e["partition"] for e in logged if e["event"] == "no_space_to_compact"] == [str(TP)]
    assert manager.dirs()[0].state is LogDirState.ONLINE
    assert cleaned_files(mem) == []
    history.require_kept_by(await read_all(handle))
