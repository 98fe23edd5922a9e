"""A workload on a disk that runs out of space in its middle, and the conditions checked then.

The workload is a list of repeatable steps. A step that fails because the directory is saturated is
followed by a comparison of memory and files, and is repeated when there is space.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from errno import ENOSPC

from kraftjbod.core.errors import LogDirImpairedError
from kraftjbod.core.ids import TopicPartition, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.record_batch import read_header
from kraftjbod.storage.dir_names import LOG_SUFFIX, RESERVE_FILE, parse_offset_file
from kraftjbod.storage.log.leader_epochs import (
    EpochEntries,
    truncate_epochs_before,
    truncate_epochs_from,
)
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.moves.mover_pool import MoverPool
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    ManualClock,
    batch,
    chores,
    directory_id,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
)
from tests.faults.vfs_fault import Fault, FaultVfs

NO_LIMIT = 2**62
CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=0)
OTHER = TopicPartition("t", 1)
FOLLOWER = TopicPartition("t", 2)
BRIEF = TopicPartition("brief", 0)
#: Attempts of a step before the test frees space.
PATIENCE = 3
#: Without fsyncs, because a failed fsync is final with any errno.
SPACE_KINDS = frozenset(
    {
        "write_at",
        "copy_from",
        "truncate",
        "make_dirs",
        "rename",
        "unlink_if_exists",
        "remove_tree",
        "open",
    }
)


@dataclass(slots=True, kw_only=True)
class SpaceShortage(Fault):
    """No free space for ``length`` operations from the ``nth`` one on, or until it is cleared.

    Operations on the reserve file are exempt, because the judgement of an error uses one or two. An
    existing file can be opened on a full disk.
    """

    mem: MemVfs
    errno: int = ENOSPC
    kinds: frozenset[str] | None = SPACE_KINDS
    length: int = 1

    def strikes(self, kind: str, path: str) -> bool:
        if path.endswith(RESERVE_FILE) or (self.kinds is not None and kind not in self.kinds):
            return False
        if kind == "open" and self.mem.exists(path):
            return False
        self.seen += 1
        struck = self.nth <= self.seen < self.nth + self.length
        self.hits += struck
        return struck


@dataclass(slots=True, kw_only=True)
class ShrunkDisk(Fault):
    """Limit the capacity of the disk from the ``nth`` operation on; no operation fails directly."""

    mem: MemVfs
    but_for_bytes: int = 0
    inodes_only: bool = False

    def strikes(self, kind: str, path: str) -> bool:
        if kind in SPACE_KINDS:
            self.seen += 1
            if self.seen == self.nth:
                self.hits = 1
                if self.inodes_only:
                    self.mem.capacity_inodes = self.mem.used_inodes()
                else:
                    self.mem.capacity_bytes = self.mem.used_bytes() + self.but_for_bytes
        return False


@dataclass
class Outcome:
    """The final state of a workload, as a client can see it."""

    starts: dict[str, int] = field(default_factory=dict)
    batches: dict[str, list[bytes]] = field(default_factory=dict)
    epochs: dict[str, EpochEntries] = field(default_factory=dict)


class World:
    """Two disks, of which the first one becomes full, and a node that uses both."""

    def __init__(self) -> None:
        self.mems = (MemVfs(), MemVfs())
        for i, mem in enumerate(self.mems, 1):
            format_dir(mem, f"/d{i}", i)
        self.vfs = FaultVfs(self.mems[0])
        self.clock = ManualClock()
        self.pool = MoverPool(threads=1, clock=self.clock)
        self.refusals = 0
        self.manager: LogManager = self._node()

    def _node(self) -> LogManager:
        dirs = [
            open_dir(self.vfs, "/d1", 1, heal_free_bytes=0),
            open_dir(FaultVfs(self.mems[1]), "/d2", 2, heal_free_bytes=0),
        ]
        return manager_of(dirs, CONFIG, self.clock)

    @property
    def log_dir(self) -> LogDir:
        return self.manager.dirs()[0]

    def handle(self, tp: TopicPartition) -> LogHandle:
        found = self.manager.get(tp)
        assert found is not None, tp
        return found

    def reclaim_space(self) -> None:
        self.vfs.clear()
        self.mems[0].capacity_bytes = self.mems[0].capacity_inodes = None

    async def heal(self) -> None:
        """Run checks of the disk until the directory is online."""
        for _ in range(300):
            if self.log_dir.state is LogDirState.ONLINE:
                return
            await self._check_disk()
        raise AssertionError("it never healed")

    async def _check_disk(self) -> None:
        self.log_dir.check_disk()
        check = self.log_dir._check
        assert check is not None
        await asyncio.wait({check})
        while self.log_dir._saturation.is_rebuilding:
            await asyncio.sleep(0.0005)

    async def start(self) -> None:
        await self.manager.load()
        if not self.log_dir.is_online:
            # A partly loaded directory cannot be served; an operator who frees space restarts it.
            self.refusals += 1
            self.reclaim_space()
            self.manager = self._node()
            await self.manager.load()

    async def restart(self) -> None:
        await self.manager.close(1)
        self.manager = self._node()
        await self.start()

    async def run_step(self, step: Callable[[World], Awaitable[None]]) -> None:
        """Carry out ``step``, and check memory and files each time that it finds no space."""
        for attempt in range(100):
            try:
                await step(self)
            except LogDirImpairedError as e:
                assert e.state == LogDirState.SATURATED.value
                assert self.log_dir.state is LogDirState.SATURATED
                self.refusals += 1
                await self.check()
                await self.check_after_power_cut()
                await chores(self.manager, self.log_dir).reclaim_space()
                await self.check()
                if attempt + 1 >= PATIENCE:
                    self.reclaim_space()
                await self._try_to_heal()
            else:
                assert self.log_dir.is_online
                if attempt:
                    await self.check()
                return
        raise AssertionError("there was free space, and it was refused still")

    async def _try_to_heal(self) -> None:
        """Run a few checks, in case the reported free space lets the directory heal."""
        for _ in range(4):
            if self.log_dir.state is LogDirState.ONLINE:
                return
            await self._check_disk()
        if self.mems[0].capacity_bytes is None and self.mems[0].capacity_inodes is None:
            await self.heal()

    # -- invariants -------------------------------------------------------------------------

    async def check(self) -> None:
        """Check that memory and files of the first disk agree, also after a restart."""
        here = self.manager.handles_in(self.log_dir)
        for handle in here:
            await handle.refresh()
            self._check_files(handle)
        if not here:
            return
        killed = self.mems[0].clone()
        killed.capacity_bytes = killed.capacity_inodes = None
        fresh = manager_of([open_dir(killed)], CONFIG, self.clock)
        await fresh.load()
        for handle in here:
            again = fresh.get(handle.topic_partition)
            assert again is not None, handle
            # The log may contain written batches that were not acknowledged, but no other ones.
            assert again.log_end_offset == handle.log_end_offset
            assert await contents(again, handle.log_start_offset) == await contents(handle)
            assert epochs_of(again, handle) == epochs_of(handle, handle)
            assert producers_of(again) == producers_of(handle)
        for log_dir in fresh.dirs():
            log_dir.close()

    async def check_after_power_cut(self) -> None:
        """Check that a power cut keeps durable batches and restores only written ones."""
        left = self.mems[0].crash_clone(self.refusals)
        # Names whose removal was lost are back, in addition to the names that use their inodes.
        left.capacity_inodes = None
        fresh = manager_of([open_dir(left)], CONFIG, self.clock)
        await fresh.load()
        for handle in self.manager.handles_in(self.log_dir):
            again = fresh.get(handle.topic_partition)
            assert again is not None, handle
            assert again.log_end_offset >= handle.recovery_point, handle
            start = max(again.log_start_offset, handle.log_start_offset)
            # The log may be shorter, or contain bytes that a refused operation had removed.
            if start < min(again.log_end_offset, handle.log_end_offset):
                there, written = await contents(again, start), await contents(handle, start)
                common = min(len(there), len(written))
                assert there[:common] == written[:common], handle
        for log_dir in fresh.dirs():
            log_dir.close()

    def _check_files(self, handle: LogHandle) -> None:
        view, mem = handle.view, self.mems[0]
        sizes = [segment.size_bytes for segment in view.segments]
        assert view.size_bytes == sum(sizes)
        assert view.active_size_bytes == sizes[-1]
        assert view.log_start_offset <= view.log_end_offset
        assert view.recovery_point <= view.log_end_offset
        found = {}
        for entry in mem.list_dir(handle.directory, sized=LOG_SUFFIX):
            parsed = parse_offset_file(entry.name)
            if parsed is not None and parsed[1] == LOG_SUFFIX:
                found[parsed[0]] = entry.size_bytes
        for segment in view.segments:
            on_disk = found.pop(segment.base_offset)
            if on_disk != segment.size_bytes:
                # The truncation failed as well: the next append repairs the torn tail first.
                assert segment is view.segments[-1], handle
                assert segment._tail_is_torn, handle
            if segment._indexes is not None:
                index = segment._indexes.offsets
                data = mem.read_if_exists(segment.path) or b""
                for position in index.positions_after(0):
                    header = read_header(memoryview(data), position)
                    assert index.position_before(header.last_offset) == position
        # The next start could load an unknown file as a part of the log.
        assert all(size == 0 for size in found.values()), found

    async def outcome(self) -> Outcome:
        result = Outcome()
        for handle in self.manager.handles():
            name = str(handle.topic_partition)
            result.starts[name] = handle.log_start_offset
            result.batches[name] = await contents(handle)
            result.epochs[name] = epochs_of(handle, handle)
        return result


async def contents(handle: LogHandle, start_offset: int | None = None) -> list[bytes]:
    """Return all batches, after a check that each begins at the end of the previous one."""
    offset = handle.log_start_offset if start_offset is None else start_offset
    found = []
    while offset < handle.log_end_offset:
        records = (await handle.read_checked(offset, 1 << 20, NO_LIMIT, True)).records
        position = 0
        for header in headers_of(records):
            assert header.base_offset == offset or not found
            found.append(bytes(records[position : position + header.size_bytes]))
            position, offset = position + header.size_bytes, header.next_offset
        assert position, handle
    return found


def epochs_of(handle: LogHandle, span: LogHandle) -> EpochEntries:
    """Return the epochs that have records within ``span``."""
    epochs = truncate_epochs_before(handle.view.epochs, span.log_start_offset)
    return truncate_epochs_from(epochs, span.log_end_offset)


def producers_of(handle: LogHandle) -> object:
    """Return the known producers without their last times, which no batch contains."""
    known = handle._published.log._producers._producers
    return [(producer_id, one.epoch, one.batches) for producer_id, one in known.items()]


# -- workload -------------------------------------------------------------------------------


def creating(tp: TopicPartition) -> Callable[[World], Awaitable[None]]:
    async def create(world: World) -> None:
        await world.manager.create(tp, TOPIC_ID, directory_id(1))

    return create


def appending(
    tp: TopicPartition, number: int, *, epoch: int = 0, producer: bool = False
) -> Callable[[World], Awaitable[None]]:
    async def append(world: World) -> None:
        who = (7, 0, number // 2) if producer else (-1, -1, -1)
        data = batch(1 if producer else 2, body=bytes([number]) * 220, producer=who)
        handle = world.handle(tp)
        await handle.append_as_leader(data, headers_of(data), epoch)
        handle.high_watermark = handle.log_end_offset

    return append


def following(number: int, offset: int) -> Callable[[World], Awaitable[None]]:
    async def follow(world: World) -> None:
        data = batch(1, body=bytes([number]) * 300, base_offset=offset, epoch=number)
        await world.handle(FOLLOWER).append_as_follower(data)

    return follow


async def flush(world: World) -> None:
    await world.handle(TP).flush()


async def checkpoint(world: World) -> None:
    await world.manager.checkpoint_offsets(world.log_dir)
    await world.manager.checkpoint_high_watermarks({TP: 4})


async def roll(world: World) -> None:
    await world.handle(TP).roll()


def truncating(offset: int) -> Callable[[World], Awaitable[None]]:
    async def truncate(world: World) -> None:
        handle = world.handle(TP)
        handle.high_watermark = min(handle.high_watermark, offset)
        await handle.truncate_to(offset)

    return truncate


async def restart_log_at_40(world: World) -> None:
    await world.handle(FOLLOWER).truncate_fully_and_start_at(40)


async def retain_some(world: World) -> None:
    handle = world.handle(TP)
    handle.set_config(CONFIG.model_copy(update={"retention_bytes": 1000}))
    await handle.apply_retention()
    handle.set_config(CONFIG)
    await chores(world.manager, world.log_dir).purge_due()


async def hide_and_retain(world: World) -> None:
    """Remove all records, so that a new segment is needed."""
    handle = world.handle(BRIEF)
    await handle.start_at(handle.log_end_offset)
    await handle.apply_retention()
    await chores(world.manager, world.log_dir).purge_due()


async def delete_other(world: World) -> None:
    if world.manager.get(OTHER) is not None:
        await world.manager.delete(OTHER)
    await chores(world.manager, world.log_dir).purge_due()


def moving(number: int, move: int) -> Callable[[World], Awaitable[None]]:
    """Move the replica; a refused move is cancelled and restarted."""

    async def go(world: World) -> None:
        target = world.manager.dirs()[number - 1]
        if world.handle(TP).log_dir is target:
            return
        await world.manager.drop_future(TP)
        future = await world.manager.create_future(TP, target, Uuid(bytes([move] * 16)))
        async with world.pool.executor() as executor:
            while not (await future.catch_up(world.handle(TP), executor, 700)).is_caught_up:
                pass
            moved = await world.manager.promote_future(TP, executor)
        moved.high_watermark = moved.log_end_offset
        await chores(world.manager, world.manager.dirs()[2 - number]).purge_due()

    return go


async def restart(world: World) -> None:
    await world.restart()
    for handle in world.manager.handles():
        handle.high_watermark = handle.log_end_offset


WORKLOAD: list[Callable[[World], Awaitable[None]]] = [
    creating(TP),
    *(appending(TP, n, producer=n % 2 == 0) for n in range(5)),
    flush,
    appending(TP, 5, epoch=1),
    checkpoint,
    roll,
    appending(TP, 6, epoch=2, producer=True),
    truncating(8),
    *(appending(TP, n, epoch=3) for n in (9, 11)),
    creating(OTHER),
    appending(OTHER, 1),
    creating(FOLLOWER),
    *(following(n + 1, n) for n in range(4)),
    restart_log_at_40,
    following(9, 40),
    delete_other,
    creating(BRIEF),
    *(appending(BRIEF, n, epoch=n) for n in range(5)),
    hide_and_retain,
    appending(BRIEF, 6, epoch=6),
    flush,
    restart,
    appending(TP, 12, epoch=4),
    moving(2, 90),
    moving(1, 91),
    retain_some,
    appending(TP, 13, epoch=5),
    checkpoint,
    restart,
    appending(TP, 14, epoch=6),
]


async def play(world: World) -> Outcome:
    """Run the whole workload, and return its outcome."""
    await world.start()
    for step in WORKLOAD:
        await world.run_step(step)
    world.reclaim_space()
    await world.heal()
    await world.restart()
    reported = await world.outcome()
    await world.manager.close(1)
    world.pool.close()
    return reported
