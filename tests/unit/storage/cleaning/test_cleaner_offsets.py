"""First dirty offsets: in memory per replica, in ``cleaner-offset-checkpoint`` per directory."""

from __future__ import annotations

from kraftjbod.storage.cleaning.cleaner_offsets import CleanerOffsets
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.cleaning.compaction_rig import (
    History,
    compacting_dir,
    compacting_manager,
    flush_and_roll,
    keyed,
)
from tests.faults.rig import TOPIC_ID, TP, format_dir

FILE = "/d1/cleaner-offset-checkpoint"


async def start(vfs: MemVfs) -> LogManager:
    if not vfs.exists("/d1"):
        format_dir(vfs, "/d1", 1)
    manager = compacting_manager([compacting_dir(vfs)])
    await manager.load()
    return manager


def offsets_of(manager: LogManager) -> CleanerOffsets:
    return manager._cleaner_offsets


def reported(vfs: MemVfs) -> str:
    return (vfs.read_if_exists(FILE) or b"").decode()


async def cleaned(vfs: MemVfs) -> LogManager:
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    for step in range(4):
        await History().append(handle, keyed(("a", str(step)), ("b", str(step))))
        await flush_and_roll(handle)
    while await manager.cleaner.clean_dirtiest(manager.dirs()[0]):
        pass
    return manager


async def test_cleaner_offsets_survive_a_restart() -> None:
    vfs = MemVfs()
    manager = await cleaned(vfs)
    assert reported(vfs) == "0\n1\nt 0 8\n"
    await manager.close(1)
    manager = await start(vfs)
    await offsets_of(manager).load(manager.dirs()[0])
    handle = manager.get(TP)
    assert handle is not None
    assert offsets_of(manager).first_dirty(handle) == 8


async def test_cleaner_offsets_truncation_below_the_checkpoint_lowers_it() -> None:
    vfs = MemVfs()
    manager = await cleaned(vfs)
    handle = manager.get(TP)
    assert handle is not None
    await handle.truncate_to(5)
    assert offsets_of(manager).first_dirty(handle) <= 5
    assert "t 0 8" not in reported(vfs)


async def test_cleaner_offsets_beyond_the_log_end_are_ignored() -> None:
    vfs = MemVfs()
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    await offsets_of(manager).advance(handle, 500)
    assert offsets_of(manager).first_dirty(handle) == 0


async def test_cleaner_offsets_of_a_deleted_replica_are_not_inherited_by_its_successor() -> None:
    vfs = MemVfs()
    manager = await cleaned(vfs)
    await manager.delete(TP)
    assert "t 0 8" in reported(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    assert "t 0" not in reported(vfs)
    await History().append(handle, keyed(*[("a", "1")] * 20))
    assert offsets_of(manager).first_dirty(handle) == 0


async def test_cleaner_offsets_of_a_checkpoint_not_yet_loaded_are_not_inherited() -> None:
    vfs = MemVfs()
    manager = await cleaned(vfs)
    await manager.delete(TP)
    await manager.close(1)
    manager = await start(vfs)
    await manager.create(TP, TOPIC_ID)
    assert "t 0" not in reported(vfs)


async def test_cleaner_offsets_damaged_checkpoint_costs_one_more_pass() -> None:
    vfs = MemVfs()
    manager = await cleaned(vfs)
    await manager.close(1)
    file = vfs.open(FILE, OpenMode.READ)
    file.data[:] = b"nonsense"
    manager = await start(vfs)
    handle = manager.get(TP)
    assert handle is not None
    handle.high_watermark = handle.log_end_offset
    assert offsets_of(manager).first_dirty(handle) == 0
    assert await manager.cleaner.clean_dirtiest(manager.dirs()[0])
    assert reported(vfs) == "0\n1\nt 0 8\n"
