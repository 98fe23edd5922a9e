"""Moves of a replica between real file systems, of which either may fail.

The kernel copies file to file, which not all pairs of file systems permit. An error in the middle
must be attributed to the right disk, because the other one is healthy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError
from kraftjbod.core.ids import Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.moves.mover_pool import MoverPool
from kraftjbod.storage.vfs import RealVfs
from kraftjbod.testing import mounts
from kraftjbod.testing.mounts import Disk, Kind
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    ManualClock,
    batch,
    directory_id,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    read_log,
)

pytestmark = pytest.mark.disk

MIB = 1 << 20
NO_LIMIT = 2**62
CONFIG = TopicConfig(segment_bytes=MIB)
MOVE = Uuid(bytes(range(16, 32)))
BATCHES = 60
BATCH_BYTES = 100_000
STEP_BYTES = 600_000
#: Space for a part of the moving replica.
SMALL_DISK_BYTES = 3 * MIB


@dataclass
class Node:
    """The storage of a broker on two mounted disks, with a replica on the first one."""

    disks: tuple[Disk, Disk]
    manager: LogManager
    pool: MoverPool

    @property
    def source(self) -> LogDir:
        return self.manager.dirs()[0]

    @property
    def target(self) -> LogDir:
        return self.manager.dirs()[1]

    @property
    def handle(self) -> LogHandle:
        handle = self.manager.get(TP)
        assert handle is not None
        return handle

    async def copy(self, after_step: Callable[[int], None] = lambda steps: None) -> None:
        """Copy until caught up, and call ``after_step`` with the number of steps so far."""
        future = await self.manager.create_future(TP, self.target, MOVE)
        steps = 0
        async with self.pool.executor() as executor:
            while not (await future.catch_up(self.handle, executor, STEP_BYTES)).is_caught_up:
                steps += 1
                after_step(steps)

    async def append(self, fill: int) -> None:
        data = batch(2, body=bytes([fill % 256]) * BATCH_BYTES)
        await self.handle.append_as_leader(data, headers_of(data), 0)


@asynccontextmanager
async def node(source: Kind, target: Kind, *, target_bytes: int = 64 * MIB) -> AsyncIterator[Node]:
    for kind in (source, target):
        if (reason := mounts.why_not(kind)) is not None:
            pytest.skip(reason)
    with ExitStack() as stack:
        disks = (
            stack.enter_context(mounts.mounted(source)),
            stack.enter_context(mounts.mounted(target, size_bytes=target_bytes)),
        )
        clock, vfs = ManualClock(), RealVfs()
        for number, disk in enumerate(disks, 1):
            format_dir(vfs, f"{disk.path}/logs", number)
        dirs = [open_dir(vfs, f"{d.path}/logs", n, clock=clock) for n, d in enumerate(disks, 1)]
        manager = manager_of(dirs, CONFIG, clock)
        await manager.load()
        await manager.create(TP, TOPIC_ID, directory_id(1))
        made = Node(disks, manager, MoverPool(threads=1, clock=clock))
        try:
            for fill in range(BATCHES):
                await made.append(fill)
            yield made
        finally:
            made.pool.close()
            await manager.close(0)


async def content(handle: LogHandle) -> bytes:
    offset, found = handle.log_start_offset, b""
    while offset < handle.log_end_offset:
        records = (await read_log(handle, offset, MIB, NO_LIMIT, True)).records
        found += bytes(records)
        offset = headers_of(records)[-1].next_offset
    return found


@pytest.mark.parametrize(
    ("source", "target"),
    [("ext4", "xfs"), ("xfs", "ext4"), ("ext4", "tmpfs"), ("tmpfs", "xfs"), ("ext4", "ext4")],
)
async def test_move_between_file_systems_keeps_the_content(source: Kind, target: Kind) -> None:
    async with node(source, target) as moving:
        before = await content(moving.handle)
        await moving.copy()
        async with moving.pool.executor() as executor:
            await moving.manager.promote_future(TP, executor)
        assert moving.handle.log_dir is moving.target
        assert await content(moving.handle) == before
        await moving.append(0)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
async def test_move_to_a_target_that_fails_keeps_the_source_in_service(kind: Kind) -> None:
    async with node("ext4", kind) as moving:
        before = await content(moving.handle)
        with pytest.raises(KafkaStorageError) as failed:
            await moving.copy(_at_step_3(moving.disks[1].shut_down))
        assert failed.value.directory_id == moving.target.directory_id
        assert (moving.source.is_online, moving.target.is_online) == (True, False)
        await moving.append(0)
        assert (await content(moving.handle)).startswith(before)


async def test_move_to_a_full_target_keeps_the_source_in_service() -> None:
    """A full target disk must not take the source disk offline."""
    async with node("ext4", "tmpfs", target_bytes=SMALL_DISK_BYTES) as moving:
        with pytest.raises(LogDirImpairedError) as failed:
            await moving.copy()
        assert failed.value.directory_id == moving.target.directory_id
        assert moving.source.state is LogDirState.ONLINE
        assert moving.target.state is LogDirState.SATURATED
        await moving.append(0)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
async def test_move_from_a_source_that_fails_keeps_the_target_in_service(kind: Kind) -> None:
    """The copied part stays in place, and is not treated as the replica."""
    async with node(kind, "ext4") as moving:
        with pytest.raises(KafkaStorageError) as failed:
            await moving.copy(_at_step_3(moving.disks[0].shut_down))
        assert failed.value.directory_id == moving.source.directory_id
        assert (moving.source.is_online, moving.target.is_online) == (False, True)
        names = [e.name for e in RealVfs().list_dir(moving.target.path) if e.is_dir]
        assert names == [f"{TP}.{MOVE.hex()}-future"]


def _at_step_3(what: Callable[[], None]) -> Callable[[int], None]:
    def after_step(steps: int) -> None:
        if steps == 3:
            what()

    return after_step
