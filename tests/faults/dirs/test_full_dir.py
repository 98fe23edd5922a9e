"""A log directory on a full disk: the SATURATED state, the reserve, and recovery."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from errno import EDQUOT, EIO, ENOSPC

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError, OperatingError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.dir_names import RESERVE_FILE
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import ManualClock, format_dir, open_dir
from tests.faults.vfs_fault import Fault, FaultVfs

MIB = 1024 * 1024
RESERVE = 2 * MIB
RESERVE_PATH = f"/d1/{RESERVE_FILE}"


class Disk:
    """A directory with a reserve on a disk whose size the test sets."""

    def __init__(
        self,
        mem: MemVfs | None = None,
        *,
        min_free_bytes: int = 0,
        heal_free_bytes: int | None = 0,
    ) -> None:
        """Open the directory on ``mem``, by default a formatted disk."""
        self.mem = mem or MemVfs()
        if mem is None:
            format_dir(self.mem, "/d1", 1)
        self.vfs = FaultVfs(self.mem)
        self.clock = ManualClock()
        self.channel = LogDirFailureChannel(max_dirs=1)
        self.log_dir = open_dir(
            self.vfs,
            clock=self.clock,
            channel=self.channel,
            check_interval_ms=2,
            reserve_bytes=RESERVE,
            min_free_bytes=min_free_bytes,
            heal_free_bytes=heal_free_bytes,
        )
        self._written = 0

    def fill(self, *, but_for: int = 0) -> None:
        """Leave ``but_for`` free bytes."""
        self.mem.capacity_bytes = self.mem.used_bytes() + but_for

    def grow(self, size_bytes: int = 16 * MIB) -> None:
        assert self.mem.capacity_bytes is not None
        self.mem.capacity_bytes += size_bytes

    async def write(self, size_bytes: int, kind: OpKind = OpKind.APPEND) -> None:
        self._written += 1
        path = f"/d1/file-{self._written}"

        def op() -> None:
            self.vfs.open(path, OpenMode.CREATE).write_at(0, [bytes(size_bytes)])

        await self.log_dir.run_operation(kind, op)

    async def saturate(self) -> None:
        self.fill()
        with pytest.raises(LogDirImpairedError):
            await self.write(1)
        assert await self.channel.take() is self.log_dir
        assert self.log_dir.state is LogDirState.SATURATED


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def checks(disk: Disk, count: int) -> None:
    """Wait for ``count`` checks of the disk."""
    seen = 0

    def count_one(kind: str, path: str) -> None:
        nonlocal seen
        seen += kind == "device"

    disk.vfs.on_operation = count_one
    await until(lambda: seen > count)
    disk.vfs.on_operation = None


async def test_saturation_releases_the_reserve_at_the_first_write_without_space() -> None:
    disk = Disk()
    await disk.log_dir.secure_reserve()
    assert disk.log_dir.reserve_bytes == RESERVE
    with capture_logs() as logged:
        await disk.saturate()
    assert not disk.mem.exists(RESERVE_PATH)
    assert disk.log_dir.reserve_bytes == 0
    assert [line["event"] for line in logged] == ["log_dir_reserve_released", "log_dir_saturated"]
    for line in logged:
        assert (line["free_bytes"], line["free_inodes"]) == (0, 1000)
        assert "No space left" in line["reason"]
        assert line["log_dir"] == "/d1"
    await disk.write(RESERVE - MIB, OpKind.CHECKPOINT)
    with pytest.raises(LogDirImpairedError):
        await disk.write(2 * MIB, OpKind.CHECKPOINT)
    assert disk.log_dir.state is LogDirState.SATURATED


async def test_saturation_refuses_queued_appends_that_would_use_the_reserve() -> None:
    disk = Disk()
    await disk.log_dir.secure_reserve()
    disk.fill()
    hold, ran = threading.Event(), []
    disk.log_dir.submit(OpKind.READ, hold.wait)
    first = asyncio.ensure_future(disk.write(1))
    await asyncio.sleep(0)
    behind = [
        disk.log_dir.submit(kind, lambda kind=kind: ran.append(kind))
        for kind in (OpKind.APPEND, OpKind.CREATE, OpKind.RETENTION)
    ]
    hold.set()
    for refused in (first, *behind[:2]):
        with pytest.raises(LogDirImpairedError) as caught:
            await refused
        assert caught.value.state == "saturated"
    await behind[2]
    assert ran == [OpKind.RETENTION]


async def test_saturation_ends_when_the_reserve_is_rebuilt() -> None:
    disk = Disk()
    await disk.log_dir.secure_reserve()
    await disk.saturate()
    disk.log_dir.start_watches()
    await checks(disk, 5)
    assert disk.log_dir.state is LogDirState.SATURATED
    with capture_logs() as logged:
        disk.grow()
        assert await disk.channel.take() is disk.log_dir
    assert [line["event"] for line in logged] == [
        "log_dir_reserve_rebuilt",
        "log_dir_has_space_again",
    ]
    assert disk.log_dir.state is LogDirState.ONLINE
    assert disk.log_dir.reserve_bytes == RESERVE
    await disk.write(1)
    await checks(disk, 3)
    assert disk.log_dir.state is LogDirState.ONLINE


@pytest.mark.parametrize("missing", [1, RESERVE, RESERVE + MIB])
async def test_saturation_continues_with_too_little_free_space(missing: int) -> None:
    disk = Disk(heal_free_bytes=MIB)
    await disk.log_dir.secure_reserve()
    await disk.saturate()
    disk.mem.capacity_bytes = disk.mem.used_bytes() + RESERVE + MIB - missing
    disk.log_dir.start_watches()
    await checks(disk, 10)
    assert disk.log_dir.state is LogDirState.SATURATED
    assert not disk.mem.exists(RESERVE_PATH)
    disk.grow(missing)
    await disk.channel.take()
    assert disk.log_dir.state is LogDirState.ONLINE


async def test_saturation_below_min_free_bytes_keeps_the_reserve() -> None:
    disk = Disk(min_free_bytes=MIB, heal_free_bytes=MIB)
    await disk.log_dir.secure_reserve()
    disk.log_dir.start_watches()
    await checks(disk, 3)
    assert disk.log_dir.state is LogDirState.ONLINE
    disk.fill(but_for=MIB - 1)
    with capture_logs() as logged:
        await disk.channel.take()
    assert [line["event"] for line in logged] == ["log_dir_saturated"]
    assert disk.log_dir.reserve_bytes == RESERVE
    with pytest.raises(LogDirImpairedError, match="1048575 bytes are free"):
        await disk.write(1)
    disk.grow(MIB)
    await checks(disk, 5)
    assert disk.log_dir.state is LogDirState.SATURATED
    disk.grow(1)
    await disk.channel.take()
    assert disk.log_dir.state is LogDirState.ONLINE


async def test_saturation_starts_without_free_inodes() -> None:
    disk = Disk()
    await disk.log_dir.secure_reserve()
    disk.log_dir.start_watches()
    disk.mem.capacity_inodes = 0
    await disk.channel.take()
    assert (disk.log_dir.state, disk.log_dir.space.free_inodes) == (LogDirState.SATURATED, 0)
    await checks(disk, 5)
    assert disk.log_dir.state is LogDirState.SATURATED
    disk.mem.capacity_inodes = 100
    await disk.channel.take()
    assert disk.log_dir.state is LogDirState.ONLINE


async def test_saturation_by_a_quota_lasts_until_writes_succeed() -> None:
    disk = Disk()
    await disk.log_dir.secure_reserve()
    quota = disk.vfs.inject(Fault(errno=EDQUOT, kinds=frozenset({"write_at"})))
    with pytest.raises(LogDirImpairedError):
        await disk.write(1)
    await disk.channel.take()
    disk.log_dir.start_watches()
    await until(lambda: quota.hits > 3)
    assert disk.log_dir.state is LogDirState.SATURATED
    # Rebuilding the reserve is retried and fails.
    await until(lambda: not disk.mem.exists(RESERVE_PATH))
    disk.vfs.clear()
    await disk.channel.take()
    assert disk.log_dir.state is LogDirState.ONLINE


async def test_saturated_directory_is_still_checked_for_its_identity() -> None:
    disk = Disk()
    await disk.log_dir.secure_reserve()
    await disk.saturate()
    disk.log_dir.start_watches()
    await checks(disk, 3)
    disk.mem.device_number = 2
    await disk.channel.take()
    assert disk.log_dir.state is LogDirState.OFFLINE


async def test_probe_without_space_saturates_the_directory() -> None:
    disk = Disk()
    await disk.log_dir.secure_reserve()
    disk.vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"open"}), path="*.probe"))
    disk.log_dir.start_watches()
    await disk.channel.take()
    assert disk.log_dir.state is LogDirState.SATURATED


async def test_io_error_takes_a_saturated_directory_offline() -> None:
    disk = Disk()
    await disk.log_dir.secure_reserve()
    await disk.saturate()
    disk.vfs.inject(Fault(errno=EIO))
    with pytest.raises(KafkaStorageError):
        await disk.write(1, OpKind.CHECKPOINT)
    assert disk.log_dir.state is LogDirState.OFFLINE


async def test_stalled_directory_that_filled_up_is_saturated_after_it_answers() -> None:
    disk = Disk()
    await disk.log_dir.secure_reserve()
    disk.fill()
    hang = disk.vfs.inject(Fault(effect=DiskFault.HANG, kinds=frozenset({"write_at"})))
    waiting = asyncio.ensure_future(disk.write(1))
    await until(lambda: hang.hits)
    disk.log_dir.start_watches()
    disk.clock.ms += 2001
    await disk.channel.take()
    assert disk.log_dir.state is LogDirState.STALLED
    with capture_logs() as logged:
        disk.vfs.clear()
        with pytest.raises(LogDirImpairedError):
            await waiting
        await disk.channel.take()
    assert disk.log_dir.state is LogDirState.SATURATED
    (answered,) = [line for line in logged if line["event"] == "log_dir_answers_again"]
    assert answered["state"] == "saturated"


async def reserve_lifecycle(disk: Disk) -> None:
    """Build, release and rebuild the reserve, and find it complete."""
    log_dir: LogDir = disk.log_dir
    await log_dir.secure_reserve()
    disk.fill()
    with pytest.raises(OperatingError):
        await disk.write(1)
    disk.grow()
    log_dir.start_watches()
    await until(lambda: log_dir.state is not LogDirState.SATURATED)
    await log_dir.secure_reserve()


async def play_with(fault: Fault) -> Disk:
    disk = Disk()
    disk.vfs.inject(fault)
    try:
        await asyncio.wait_for(reserve_lifecycle(disk), 20)
    except OperatingError as e:
        assert isinstance(e, LogDirImpairedError | KafkaStorageError)
    disk.log_dir.close()
    return disk


KINDS = frozenset(
    {
        "open",
        "write_at",
        "sync",
        "close",
        "sync_dir",
        "unlink_if_exists",
        "extent_if_exists",
        "space",
    }
)


@pytest.mark.parametrize("errno", [EIO, ENOSPC])
async def test_reserve_with_an_error_at_any_operation_is_complete_or_absent(errno: int) -> None:
    for n in range(1, 200):
        fault = Fault(errno=errno, nth=n, kinds=KINDS, sticky=False)
        disk = await play_with(fault)
        if fault.hits == 0:
            assert n > 15
            return
        state = disk.log_dir.state
        assert state is not LogDirState.STALLED
        if errno == EIO:
            assert state is LogDirState.OFFLINE, n
        elif disk.log_dir.reserve_bytes == 0:
            # A directory without a reserve has released it completely.
            assert not disk.mem.exists(RESERVE_PATH), n
            assert state is LogDirState.SATURATED, n
        disk.vfs.clear()
        again = Disk(disk.mem.crash_clone(n))
        await again.log_dir.secure_reserve()
        assert again.log_dir.reserve_bytes == RESERVE
    pytest.fail("the reserve_lifecycle never ended")
