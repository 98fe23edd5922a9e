"""A log directory on a full real file system: release and rebuild of the reserve."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import LogDirImpairedError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.dir_names import RESERVE_FILE
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.vfs import OpenMode, RealVfs
from kraftjbod.testing import mounts
from kraftjbod.testing.mounts import Disk, Kind
from tests.faults.rig import directory_id, format_dir, open_dir

pytestmark = pytest.mark.disk

MIB = 1024 * 1024
RESERVE = 4 * MIB
PATIENCE_S = 60


@pytest.fixture(params=["tmpfs", "ext4", "xfs"])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    kind: Kind = request.param
    if (reason := mounts.why_not(kind)) is not None:
        pytest.skip(reason)
    with mounts.mounted(kind, size_bytes=32 * MIB) as made:
        yield made


@asynccontextmanager
async def opened(disk: Disk) -> AsyncIterator[tuple[LogDir, LogDirFailureChannel]]:
    """Open a watched directory with its reserve."""
    vfs, channel = RealVfs(), LogDirFailureChannel(max_dirs=1)
    format_dir(vfs, disk.path, 1)
    log_dir = open_dir(
        vfs,
        disk.path,
        channel=channel,
        check_interval_ms=10,
        reserve_bytes=RESERVE,
        heal_free_bytes=MIB,
    )
    log_dir.identify(directory_id(1), vfs.device(disk.path))
    await log_dir.secure_reserve()
    log_dir.start_watches()
    try:
        yield log_dir, channel
    finally:
        log_dir.close()


async def change(channel: LogDirFailureChannel) -> LogDirState:
    log_dir = await asyncio.wait_for(channel.take(), PATIENCE_S)
    return log_dir.state


def write(log_dir: LogDir, name: str, size_bytes: int) -> None:
    file = log_dir.vfs.open(f"{log_dir.path}/{name}", OpenMode.CREATE)
    try:
        file.write_at(0, [os.urandom(size_bytes)])
        file.sync()
    finally:
        file.close()


async def test_saturation_on_a_real_disk_releases_and_rebuilds_the_reserve_repeatedly(
    disk: Disk,
) -> None:
    """Ten rounds, so that leftovers of one round affect a later one."""
    async with opened(disk) as (log_dir, channel):
        reserve = f"{disk.path}/{RESERVE_FILE}"
        for number in range(10):
            extent = log_dir.vfs.extent_if_exists(reserve)
            assert extent is not None
            assert (extent.size_bytes, log_dir.reserve_bytes) == (RESERVE, RESERVE)
            assert extent.allocated_bytes >= RESERVE
            with capture_logs() as logged:
                disk.fill()
                # The check may detect the full disk first, because it creates a file.
                with pytest.raises(LogDirImpairedError):
                    await log_dir.run_operation(
                        OpKind.APPEND, lambda n=number: write(log_dir, f"late-{n}", 2 * MIB)
                    )
                assert await change(channel) is LogDirState.SATURATED
            assert "log_dir_reserve_released" in [line["event"] for line in logged]
            assert not os.path.exists(reserve)
            with pytest.raises(LogDirImpairedError):
                log_dir.submit(OpKind.APPEND, lambda: None)
            # Operations that free space may use the space of the reserve.
            await log_dir.run_operation(
                OpKind.RETENTION, lambda n=number: write(log_dir, f"roll-{n}", MIB)
            )
            for name in (f"late-{number}", f"roll-{number}", "balloon"):
                await log_dir.run_operation(
                    OpKind.DELETE,
                    lambda name=name: log_dir.vfs.unlink_if_exists(f"{disk.path}/{name}"),
                )
            assert await change(channel) is LogDirState.ONLINE
            await log_dir.run_operation(OpKind.APPEND, lambda: write(log_dir, "room", MIB))


async def test_saturation_on_a_real_disk_continues_while_there_is_no_space(disk: Disk) -> None:
    async with opened(disk) as (log_dir, channel):
        disk.fill()
        with pytest.raises(LogDirImpairedError):
            await log_dir.run_operation(OpKind.APPEND, lambda: write(log_dir, "late", 2 * MIB))
        assert await change(channel) is LogDirState.SATURATED
        disk.fill()
        for _ in range(20):
            await log_dir.run_operation(OpKind.PROBE, lambda: None)
            await asyncio.sleep(0.01)
        assert log_dir.state is LogDirState.SATURATED
        assert not os.path.exists(f"{disk.path}/{RESERVE_FILE}")


async def test_saturation_on_a_real_disk_without_inodes_ends_when_inodes_are_free() -> None:
    if (reason := mounts.why_not("tmpfs")) is not None:
        pytest.skip(reason)
    with mounts.mounted("tmpfs", size_bytes=32 * MIB) as disk:
        subprocess.run(["mount", "-o", "remount,nr_inodes=64", disk.path], check=True, timeout=30)
        async with opened(disk) as (log_dir, channel):
            count = 0
            with pytest.raises(OSError, match="No space left"):
                while True:
                    open(f"{disk.path}/x{count}", "x").close()
                    count += 1
            assert await change(channel) is LogDirState.SATURATED
            assert "No space left" in log_dir.impaired_reason
            for number in range(count):
                os.unlink(f"{disk.path}/x{number}")
            assert await change(channel) is LogDirState.ONLINE
            assert log_dir.reserve_bytes == RESERVE
