"""A log directory on a frozen file system: STALLED meanwhile, and no record lost afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.daemon.process.environment import SystemClock
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.vfs import OpenMode, RealVfs
from kraftjbod.testing import mounts
from kraftjbod.testing.frozen import frozen
from kraftjbod.testing.mounts import Disk
from tests.faults.rig import directory_id, format_dir, open_dir

pytestmark = pytest.mark.disk

MIB = 1024 * 1024
PATIENCE_S = 60
THAW_AT_LATEST_S = 45.0


@pytest.fixture(params=["ext4", "xfs"])
def disks(request: pytest.FixtureRequest) -> Iterator[tuple[Disk, Disk]]:
    if (reason := mounts.why_not(request.param)) is not None:
        pytest.skip(reason)
    with (
        mounts.mounted(request.param, size_bytes=32 * MIB) as first,
        mounts.mounted("tmpfs") as second,
    ):
        yield first, second


def open_on(
    disk: Disk, number: int, channel: LogDirFailureChannel, *, timeout_ms: int = 30_000
) -> LogDir:
    vfs = RealVfs()
    format_dir(vfs, disk.path, number)
    log_dir = open_dir(
        vfs,
        disk.path,
        number,
        clock=SystemClock(),
        channel=channel,
        io_suspect_ms=200,
        io_timeout_ms=timeout_ms,
        check_interval_ms=20,
    )
    log_dir.identify(directory_id(number), vfs.device(disk.path))
    log_dir.start_watches()
    return log_dir


async def change(channel: LogDirFailureChannel) -> LogDirState:
    log_dir = await asyncio.wait_for(channel.take(), PATIENCE_S)
    return log_dir.state


async def test_frozen_directory_is_stalled_until_it_answers(disks: tuple[Disk, Disk]) -> None:
    channel, other = LogDirFailureChannel(max_dirs=1), LogDirFailureChannel(max_dirs=1)
    hung, well = open_on(disks[0], 1, channel), open_on(disks[1], 2, other)
    file = await hung.run_operation(
        OpKind.APPEND, lambda: hung.vfs.open(f"{hung.path}/f", OpenMode.CREATE)
    )
    await hung.run_operation(OpKind.APPEND, lambda: file.write_at(0, [b"before"]))
    written = []

    def write(position: int, data: bytes) -> None:
        file.write_at(position, [data])
        written.append(data)

    with frozen(disks[0], at_most_s=THAW_AT_LATEST_S):
        waiting = hung.submit(OpKind.APPEND, lambda: write(6, b"during"))
        behind = hung.submit(OpKind.APPEND, lambda: write(12, b"behind"))
        assert await change(channel) is LogDirState.STALLED
        with pytest.raises(LogDirImpairedError):
            hung.submit(OpKind.APPEND, lambda: write(0, b"refused"))
        for _ in range(100):
            await well.run_operation(OpKind.APPEND, lambda: None)
        assert well.state is LogDirState.ONLINE
        assert not waiting.done()
    assert await change(channel) is LogDirState.ONLINE
    # Which of the two writes the kernel blocked depends on the probe at that moment.
    outcomes = await asyncio.gather(waiting, behind, return_exceptions=True)
    refused = [o for o in outcomes if isinstance(o, LogDirImpairedError)]
    assert len(refused) == 2 - len(written)
    assert isinstance(outcomes[1], LogDirImpairedError)
    await hung.run_operation(OpKind.APPEND, lambda: file.write_at(12, [b"after"]))
    data = await hung.run_operation(OpKind.READ, lambda: file.read_at(0, 100))
    middle = b"during" if written else bytes(6)
    assert data == b"before" + middle + b"after"
    await hung.run_operation(OpKind.CLOSE, file.close)
    for log_dir in (hung, well):
        log_dir.close()


async def test_frozen_directory_goes_offline_after_the_timeout(disks: tuple[Disk, Disk]) -> None:
    channel, other = LogDirFailureChannel(max_dirs=1), LogDirFailureChannel(max_dirs=1)
    hung = open_on(disks[0], 1, channel, timeout_ms=1000)
    well = open_on(disks[1], 2, other, timeout_ms=1000)
    with frozen(disks[0], at_most_s=THAW_AT_LATEST_S):
        waiting = hung.submit(
            OpKind.APPEND, lambda: hung.vfs.open(f"{hung.path}/f", OpenMode.CREATE).close()
        )
        while hung.is_online:
            await change(channel)
        with pytest.raises((KafkaStorageError, LogDirImpairedError)):
            await waiting
        assert await well.run_operation(OpKind.APPEND, lambda: 1) == 1
    assert hung.state is LogDirState.OFFLINE
    # The hung operation ends now, and must be over before the disk is unmounted.
    while hung.is_busy:
        await asyncio.sleep(0.01)
    well.close()
