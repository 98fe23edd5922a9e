"""``LogMaker`` and ``DirChooser``: creation of replicas, and choice of their directory."""

from __future__ import annotations

import asyncio
from errno import ENOSPC

import pytest

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError
from kraftjbod.core.ids import TopicPartition, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_maker import DirChooser
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry
from kraftjbod.storage.vfs import OpenMode, Space
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    ManualClock,
    batch,
    checkpoint,
    directory_id,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
)
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.gates import Gate


async def start(*vfss: MemVfs | FaultVfs) -> LogManager:
    dirs = []
    for i, vfs in enumerate(vfss, 1):
        if not vfs.exists(f"/d{i}/meta.properties"):
            format_dir(vfs, f"/d{i}", i)
        dirs.append(open_dir(vfs, f"/d{i}", i))
    manager = manager_of(dirs)
    await manager.load()
    return manager


async def test_create_during_a_pending_creation_returns_the_replica_of_the_first_request() -> None:
    manager = await start(MemVfs(), MemVfs())
    one, two = manager.dirs()
    first = asyncio.create_task(manager.create(TP, TOPIC_ID, directory_id(2)))
    await asyncio.sleep(0)
    assert manager.get(TP) is None
    assert manager.maker.is_making(TP)
    assert (manager.maker.is_making_in(one), manager.maker.is_making_in(two)) == (False, True)
    second = asyncio.create_task(manager.create(TP, TOPIC_ID, directory_id(1)))
    await asyncio.sleep(0)
    # A cancelled caller does not stop the creation for other callers.
    first.cancel()
    assert (await second).log_dir is two
    assert manager.get(TP) is await second
    assert not manager.maker.is_making(TP)
    assert not manager.maker.is_making_in(two)


async def test_create_uses_a_config_that_changed_meanwhile() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await start(vfs)
    with Gate(vfs, "open", "/d1/t-0*") as gate:
        making = asyncio.create_task(manager.create(TP, TOPIC_ID))
        await gate.reached()
        manager.update_config(TP.topic, TopicConfig(retention_ms=5), [TP.partition])
        gate.open()
        assert (await making).config.retention_ms == 5


async def test_create_spreads_replicas_over_directories_of_equal_size() -> None:
    manager = await start(MemVfs(), MemVfs(), MemVfs())
    for i in range(9):
        await manager.create(TopicPartition("t", i), TOPIC_ID)
    assert [len(manager.handles_in(d)) for d in manager.dirs()] == [3, 3, 3]


async def test_create_uses_the_requested_directory_and_is_idempotent() -> None:
    manager = await start(MemVfs(), MemVfs())
    handle = await manager.create(TP, TOPIC_ID, directory_id(2))
    assert handle.log_dir.path == "/d2"
    assert await manager.create(TP, TOPIC_ID, directory_id(1)) is handle
    with pytest.raises(KafkaStorageError, match="none of this node's"):
        await manager.create(TopicPartition("t", 1), TOPIC_ID, directory_id(9))


@pytest.mark.parametrize("restarts_between", [False, True])
async def test_create_inherits_no_checkpoint_of_an_earlier_replica(
    restarts_between: bool,
) -> None:
    vfs = MemVfs()
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    records = batch(10)
    await handle.append_as_leader(records, headers_of(records), 0)
    await handle.flush()
    await checkpoint(manager)
    await manager.checkpoint_high_watermarks({TP: 10})
    await manager.delete(TP)
    if restarts_between:
        manager = await start(vfs)
        await manager.discard_deleted(*manager.orphans)
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(records, headers_of(records), 1)

    # After a crash, the checkpoints determine how much of the log is trusted.
    handle = (await start(vfs)).get(TP)
    assert handle is not None
    assert handle.log_end_offset == 10
    assert (handle.checkpointed_high_watermark, handle.checkpointed_recovery_point) == (0, 0)


async def test_create_that_failed_does_not_prevent_later_creations() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    manager = await start(vfs)
    # The cleanup after the failure fails as well.
    vfs.inject(Fault(errno=ENOSPC, path="*.log"))
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"remove_tree"})))
    with pytest.raises(LogDirImpairedError):
        await manager.create(TP, TOPIC_ID)
    assert mem.exists(f"/d1/{TP}")
    vfs.clear()
    manager = manager_of([open_dir(vfs)])
    await manager.load()
    await manager.create(TopicPartition("u", 0), TOPIC_ID)
    assert [entry.name for entry in mem.list_dir("/d1") if entry.is_dir] == ["t-0", "u-0"]


async def test_create_removes_an_incomplete_replica_of_an_earlier_process() -> None:
    mem = MemVfs()
    manager = await start(mem)
    mem.make_dirs(f"/d1/{TP}")
    mem.open(f"/d1/{TP}/partition.metadata.tmp", OpenMode.CREATE)
    await manager.create(TP, TOPIC_ID)
    assert [entry.name for entry in mem.list_dir("/d1") if entry.is_dir] == ["t-0"]


# --- choice of the directory ------------------------------------------------------------------

GIB = 1024**3
CONFIG = TopicConfig(segment_bytes=GIB)


class Rig:
    """Empty directories with the given numbers of free GiB."""

    def __init__(self, *free: int) -> None:
        self.clock = ManualClock()
        self.dirs: list[LogDir] = []
        for number, gib in enumerate(free, 1):
            vfs = MemVfs()
            format_dir(vfs, f"/d{number}", number)
            log_dir = open_dir(vfs, f"/d{number}", number, clock=self.clock)
            self.has_free(log_dir, gib)
            self.dirs.append(log_dir)
        self.registry = ReplicaRegistry(
            dirs=self.dirs, default_config=CONFIG, random_bytes=lambda count: bytes(count)
        )
        self.coming: dict[TopicPartition, LogDir] = {}
        self.chooser = DirChooser(registry=self.registry, clock=self.clock, being_made=self.coming)

    @staticmethod
    def has_free(log_dir: LogDir, gib: int) -> None:
        log_dir.space = Space(total_bytes=100 * GIB, usable_bytes=gib * GIB, free_inodes=1000)

    def choose(self, count: int = 1) -> list[int]:
        """Return the numbers of the chosen directories."""
        return [1 + self.dirs.index(self.chooser.choose(CONFIG)) for _ in range(count)]


async def test_dir_chooser_fills_directories_by_space_instead_of_replica_count() -> None:
    chosen = Rig(2, 4, 8).choose(14)
    assert [chosen.count(number) for number in (1, 2, 3)] == [2, 4, 8]


async def test_dir_chooser_with_equal_space_takes_the_fewest_replicas() -> None:
    assert sorted(Rig(5, 5, 5).choose(3)) == [1, 2, 3]


async def test_dir_chooser_counts_pending_replicas() -> None:
    rig = Rig(5, 5)
    rig.coming |= {TopicPartition("t", index): rig.dirs[0] for index in range(2)}
    assert rig.choose(2) == [2, 2]


async def test_dir_chooser_sees_changed_space_after_a_delay() -> None:
    rig = Rig(5, 4)
    assert rig.choose() == [1]
    rig.has_free(rig.dirs[1], 50)
    rig.clock.ms += 1_000
    assert rig.choose() == [2]


async def test_dir_chooser_respects_a_cordon_at_the_next_choice() -> None:
    rig = Rig(9, 1)
    assert rig.choose() == [1]
    rig.dirs[0].is_cordoned = True
    assert rig.choose() == [2]
    rig.dirs[0].is_cordoned = False
    assert rig.choose() == [1]


async def test_dir_chooser_refuses_while_each_directory_is_cordoned_or_impaired() -> None:
    rig = Rig(9, 1)
    rig.dirs[0].is_cordoned = True
    rig.dirs[1].state = LogDirState.SATURATED
    with pytest.raises(LogDirImpairedError, match="/d1 is cordoned, /d2 is saturated"):
        rig.choose()
    rig.dirs[0].is_cordoned = False
    assert rig.choose() == [1]


@pytest.mark.parametrize("state", [LogDirState.SATURATED, LogDirState.STALLED])
async def test_dir_chooser_skips_an_impaired_directory_at_the_next_choice(
    state: LogDirState,
) -> None:
    rig = Rig(9, 1)
    assert rig.choose() == [1]
    rig.dirs[0].state = state
    assert rig.choose() == [2]
    rig.dirs[1].state = state
    with pytest.raises(LogDirImpairedError, match=f"/d1 is {state.value}, /d2 is") as waits:
        rig.choose()
    assert (waits.value.directory_id, waits.value.state) == (None, state.value)


async def test_dir_chooser_without_online_directory_fails() -> None:
    rig = Rig(9)
    rig.dirs[0].state = LogDirState.OFFLINE
    with pytest.raises(KafkaStorageError, match="every log dir is offline"):
        rig.choose()


async def test_dir_chooser_considers_an_added_directory_at_once() -> None:
    rig = Rig(5, 9)
    new = rig.dirs[1]
    rig.registry.remove_dir(new)
    assert rig.choose() == [1]
    rig.registry.put_dir(new)
    assert rig.choose() == [2]


async def test_create_places_replicas_as_dir_chooser_does() -> None:
    rig = Rig(2, 4, 8)
    manager = manager_of(rig.dirs, CONFIG, rig.clock)
    await manager.load()
    for index in range(7):
        await manager.create(TopicPartition("t", index), TOPIC_ID)
    assert [len(manager.handles_in(log_dir)) for log_dir in rig.dirs] == [0, 2, 5]


async def test_dir_chooser_reserves_space_for_a_pending_move_in_its_target() -> None:
    """The bytes still to be copied count, and the space of a segment as for each replica."""
    rig = Rig(9, 9)
    manager = manager_of(rig.dirs, CONFIG, rig.clock)
    await manager.load()
    moving = TopicPartition("t", 0)
    await manager.create(moving, TOPIC_ID, rig.dirs[0].directory_id)
    await manager.create_future(moving, rig.dirs[1], Uuid(bytes(16)))
    await manager.create(TopicPartition("t", 1), TOPIC_ID, rig.dirs[1].directory_id)
    await manager.create(TopicPartition("t", 2), TOPIC_ID)
    assert len(manager.handles_in(rig.dirs[0])) == 2
