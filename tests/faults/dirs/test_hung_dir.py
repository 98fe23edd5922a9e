"""A log directory on a hung disk: STALLED, revoked appends, recovery, or OFFLINE."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.protocol.record_batch import Compression
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.vfs import OpenMode, VfsFile
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.cleaning.compaction_rig import NOW_MS, compacting_manager, flush_and_roll
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    ManualClock,
    batch,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
)
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.storage.tiny_records import tiny

SUSPECT_MS = 2000
TIMEOUT_MS = 30_000


class Disk:
    """A directory whose clock and disk the test can stop."""

    def __init__(self) -> None:
        self.mem = MemVfs()
        format_dir(self.mem, "/d1", 1)
        self.vfs = FaultVfs(self.mem)
        self.clock = ManualClock()
        self.channel = LogDirFailureChannel(max_dirs=1)
        self.log_dir: LogDir = open_dir(
            self.vfs,
            clock=self.clock,
            channel=self.channel,
            io_suspect_ms=SUSPECT_MS,
            io_timeout_ms=TIMEOUT_MS,
        )
        self.file: VfsFile = self.vfs.open("/d1/f", OpenMode.CREATE)
        self.log_dir.start_watches()

    async def hang(self, kind: OpKind = OpKind.APPEND) -> asyncio.Future[None]:
        """Start an operation that does not end."""
        method = "sync" if kind is OpKind.FLUSH else "write_at"
        fault = self.vfs.inject(
            Fault(effect=DiskFault.HANG, kinds=frozenset({method}), path="/d1/f", sticky=False)
        )
        op = self.file.sync if kind is OpKind.FLUSH else lambda: self.file.write_at(0, [b"1"])
        waiting: asyncio.Future[None] = self.log_dir.submit(kind, op)
        await until(lambda: fault.hits)
        return waiting

    async def suspect(self) -> None:
        self.clock.ms += SUSPECT_MS + 1
        assert await self.channel.take() is self.log_dir


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def test_stalled_directory_refuses_operations_until_the_hung_one_ends() -> None:
    disk = Disk()
    waiting = await disk.hang()
    with capture_logs() as logged:
        await disk.suspect()
        assert disk.log_dir.state is LogDirState.STALLED
        assert disk.log_dir.is_online
        assert not waiting.done(), "it is not failed: nobody knows what became of it"
        for kind in (OpKind.APPEND, OpKind.READ, OpKind.CHECKPOINT, OpKind.DELETE, OpKind.FLUSH):
            with pytest.raises(LogDirImpairedError, match="is stalled: an operation") as refused:
                disk.log_dir.submit(kind, lambda: None)
            assert refused.value.state == "stalled"
        disk.vfs.release()
        await waiting
        await disk.log_dir.run_operation(OpKind.APPEND, lambda: None)
    assert disk.log_dir.state is LogDirState.ONLINE
    assert disk.log_dir.impaired_reason == ""
    assert [line["event"] for line in logged] == ["log_dir_stalled", "log_dir_answers_again"]
    assert logged[0]["reason"] == f"an operation (append) has been running for {SUSPECT_MS + 1} ms"
    disk.log_dir.close()


async def test_hung_flush_stalls_the_directory_after_a_longer_limit() -> None:
    """A flush may write a whole segment, so its limit is longer."""
    disk = Disk()
    waiting = await disk.hang(OpKind.FLUSH)
    disk.clock.ms += TIMEOUT_MS // 2
    for _ in range(20):
        assert await disk.log_dir.run_operation(OpKind.READ, lambda: 1) == 1
    await disk.suspect()
    with pytest.raises(LogDirImpairedError):
        await disk.log_dir.run_operation(OpKind.READ, lambda: 1)
    disk.vfs.release()
    await waiting
    assert disk.log_dir.state is LogDirState.ONLINE
    disk.log_dir.close()


async def test_stall_takes_back_appends_that_have_not_started() -> None:
    disk, ran = Disk(), []
    waiting = await disk.hang()
    behind = {
        kind: disk.log_dir.submit(kind, lambda kind=kind: ran.append(kind))
        for kind in (OpKind.APPEND, OpKind.CREATE, OpKind.READ, OpKind.CHECKPOINT)
    }
    await disk.suspect()
    for kind in (OpKind.APPEND, OpKind.CREATE):
        with pytest.raises(LogDirImpairedError) as refused:
            await behind[kind]
        assert refused.value.state == "stalled"
    disk.vfs.release()
    await asyncio.gather(waiting, behind[OpKind.READ], behind[OpKind.CHECKPOINT])
    assert ran == [OpKind.READ, OpKind.CHECKPOINT]
    disk.log_dir.close()


async def test_read_cached_is_refused_while_the_directory_is_stalled() -> None:
    disk = Disk()
    waiting = await disk.hang()
    assert disk.log_dir.read_cached(disk.file, 0, 1) is not None
    await disk.suspect()
    with pytest.raises(LogDirImpairedError):
        disk.log_dir.read_cached(disk.file, 0, 1)
    disk.vfs.release()
    await waiting
    disk.log_dir.close()


async def test_stalled_directory_goes_offline_after_the_timeout() -> None:
    disk = Disk()
    waiting = await disk.hang()
    await disk.suspect()
    disk.clock.ms += TIMEOUT_MS
    await disk.channel.take()
    assert disk.log_dir.state is LogDirState.OFFLINE
    with pytest.raises(KafkaStorageError, match=f"running for {SUSPECT_MS + 1 + TIMEOUT_MS} ms"):
        await waiting
    disk.vfs.release()


async def test_hung_disk_check_stalls_an_idle_directory() -> None:
    disk = Disk()
    await disk.log_dir.run_operation(OpKind.READ, lambda: "its first check is over")
    disk.log_dir.close()
    disk.log_dir = open_dir(disk.vfs, clock=disk.clock, channel=disk.channel, check_interval_ms=2)
    hang = disk.vfs.inject(
        Fault(effect=DiskFault.HANG, kinds=frozenset({"open"}), path="*.probe", sticky=False)
    )
    disk.log_dir.start_watches()
    await until(lambda: hang.hits)
    await disk.suspect()
    assert disk.log_dir.state is LogDirState.STALLED
    disk.vfs.release()
    await disk.channel.take()
    assert disk.log_dir.state is LogDirState.ONLINE
    disk.log_dir.close()


async def test_slow_operations_do_not_stall_the_directory() -> None:
    disk = Disk()
    disk.vfs.inject(Fault(effect=DiskFault.SLOW, delay_s=0.01, kinds=frozenset({"write_at"})))
    for _ in range(5):
        disk.clock.ms += SUSPECT_MS
        await disk.log_dir.run_operation(OpKind.APPEND, lambda: disk.file.write_at(0, [b"1"]))
    assert disk.log_dir.state is LogDirState.ONLINE
    assert disk.log_dir.statistics.latency_ms == 0
    disk.log_dir.close()


async def test_suspected_directory_stays_stalled_until_it_is_absolved() -> None:
    disk = Disk()
    with capture_logs() as logged:
        disk.log_dir.suspect("it is slow")
        await disk.channel.take()
        waiting = asyncio.ensure_future(disk.log_dir.run_operation(OpKind.PROBE, lambda: 1))
        assert await waiting == 1
        assert (disk.log_dir.state, disk.log_dir.impaired_reason) == (
            LogDirState.STALLED,
            "it is slow",
        )
        disk.log_dir.absolve()
    assert disk.log_dir.state is LogDirState.ONLINE
    assert [line["event"] for line in logged] == ["log_dir_stalled", "log_dir_answers_again"]
    disk.log_dir.absolve()
    disk.log_dir.close()


async def test_stall_ends_when_both_the_hang_and_the_suspicion_end() -> None:
    disk = Disk()
    waiting = await disk.hang()
    await disk.suspect()
    disk.log_dir.suspect("it is slow")
    disk.log_dir.absolve()
    assert disk.log_dir.state is LogDirState.STALLED, "it hangs still"
    disk.log_dir.suspect("it is slow")
    disk.vfs.release()
    await waiting
    await asyncio.sleep(0)
    assert disk.log_dir.state is LogDirState.STALLED, "it is slow still"
    disk.log_dir.absolve()
    assert disk.log_dir.state is LogDirState.ONLINE
    disk.log_dir.close()


async def test_latency_of_a_hung_operation_is_its_age() -> None:
    disk = Disk()
    waiting = await disk.hang()
    disk.log_dir.statistics.sample(0)
    disk.clock.ms += 1000
    disk.log_dir.check_disk()
    assert disk.log_dir.statistics.latency_ms == pytest.approx(200)
    disk.vfs.release()
    await waiting
    disk.log_dir.close()


class Node:
    """Two directories with a replica each, of which the second one hangs while it is loaded."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.vfss = [FaultVfs(MemVfs()) for _ in range(2)]
        self.channel = LogDirFailureChannel(max_dirs=8)

    def dirs(self) -> list[LogDir]:
        return [
            open_dir(
                vfs,
                f"/d{number}",
                number,
                clock=self.clock,
                channel=self.channel,
                io_suspect_ms=SUSPECT_MS,
                io_timeout_ms=TIMEOUT_MS,
            )
            for number, vfs in enumerate(self.vfss, 1)
        ]


async def node_with_replicas() -> Node:
    node = Node()
    for number, vfs in enumerate(node.vfss, 1):
        format_dir(vfs, f"/d{number}", number)
    manager = manager_of(node.dirs(), clock=node.clock)
    await manager.load()
    for number, log_dir in enumerate(manager.dirs()):
        tp = type(TP)("t", number)
        handle = await manager.create(tp, TOPIC_ID, log_dir.directory_id)
        data = batch()
        await handle.append_as_leader(data, headers_of(data), 0)
        assert handle.log_dir is log_dir
    await manager.close(broker_epoch=1)
    return node


@pytest.mark.parametrize("does_answer", [True, False])
async def test_hang_while_loading_costs_at_most_the_replicas_of_that_directory(
    does_answer: bool,
) -> None:
    node = await node_with_replicas()
    hang = node.vfss[1].inject(
        Fault(effect=DiskFault.HANG, kinds=frozenset({"list_dir"}), path="/d2/t-1", sticky=False)
    )
    manager = manager_of(node.dirs(), clock=node.clock)
    for log_dir in manager.dirs():
        log_dir.start_watches()
    loading = asyncio.ensure_future(manager.load())
    await until(lambda: hang.hits)
    node.clock.ms += SUSPECT_MS + 1
    stalled = await node.channel.take()
    assert (stalled, stalled.state) == (manager.dirs()[1], LogDirState.STALLED)
    assert not loading.done()
    if does_answer:
        node.vfss[1].release()
    else:
        node.clock.ms += TIMEOUT_MS
    await loading
    assert [log_dir.is_online for log_dir in manager.dirs()] == [True, does_answer]
    assert [handle.topic_partition.partition for handle in manager.handles()] == (
        [0, 1] if does_answer else [0]
    )
    node.vfss[1].release()
    for log_dir in manager.dirs():
        log_dir.close()


class FastClock:
    """A clock twenty times as fast as the real one: two seconds count as forty."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 50_000

    wall_ms = now_ms


async def test_offset_for_timestamp_with_much_to_decompress_stalls_no_directory_and_no_append() -> (
    None
):
    """Some KiB from a producer and one ListOffsets took the directory offline."""
    vfs = MemVfs()
    format_dir(vfs, "/d1", 1)
    log_dir = open_dir(vfs, clock=FastClock(), io_suspect_ms=SUSPECT_MS, io_timeout_ms=TIMEOUT_MS)
    handle = await manager_of([log_dir]).create(TP, TOPIC_ID)
    log_dir.start_watches()
    data = tiny(990_000, compression=Compression.ZSTD, newest=1_000_000)
    await handle.append_as_follower(data)
    searching = asyncio.ensure_future(handle.offset_for_timestamp(300))
    appends = 0
    while not searching.done():
        more = batch(base_offset=handle.log_end_offset, timestamp=2_000_000)
        await handle.append_as_follower(more)
        appends += 1
        await asyncio.sleep(0.01)
    assert await searching == (2_000_000, 990_000, 0)
    # A blocked append would return after the search, and be the only one.
    assert appends > 1
    assert log_dir.is_online
    log_dir.close()


async def test_cleaner_with_much_to_decompress_does_not_take_the_directory_offline() -> None:
    vfs = MemVfs()
    format_dir(vfs, "/d1", 1)
    log_dir = open_dir(vfs, clock=ManualClock(NOW_MS), io_timeout_ms=250)
    manager = compacting_manager([log_dir])
    handle = await manager.create(TP, TOPIC_ID)
    data = tiny(400_000, compression=Compression.ZSTD, newest=NOW_MS, is_keyed=True)
    await handle.append_as_follower(data)
    handle.high_watermark = handle.log_end_offset
    await flush_and_roll(handle)
    with capture_logs() as logged:
        while not await manager.cleaner.clean_dirtiest(log_dir):
            # A slow machine may stall the directory meanwhile.
            assert log_dir.is_online
            await asyncio.sleep(0.01)
    assert "log_compacted" in [e["event"] for e in logged]
    assert log_dir.is_online
