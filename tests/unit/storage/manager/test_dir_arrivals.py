"""Directories that a running log manager loads: copies, moves, background jobs and errors."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError
from kraftjbod.core.ids import TopicId, TopicPartition, Uuid
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas.dir_loading import LoadedDir
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, directory_id, format_dir, manager_of, open_dir
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.gates import Gate, settle
from tests.unit.storage.replicas.test_replica_swap import (
    MOVE,
    Node,
    append,
    content,
    create,
    move_on,
    promote,
    start,
)
from tests.unit.storage.replicas.test_swap_recovery import FUTURE, interrupted_swap


def fail_dir(node: Node, log_dir: LogDir) -> None:
    """Take the directory offline as the broker does; the process continues."""
    with capture_logs():
        log_dir.go_offline("a test said so")
    node.manager.drop(log_dir)


async def attach_dir(
    manager: LogManager, vfs: MemVfs | FaultVfs, number: int, *taken: TopicPartition
) -> LogDir:
    """Load and install the directory with this number."""
    log_dir = open_dir(vfs, f"/d{number}", number)
    loaded: LoadedDir = await manager.arrivals.load(log_dir, lambda _: None)
    old = manager.dir_by_id(directory_id(number))
    arrival = manager.arrivals.install(loaded, replaces=old, is_taken=lambda tp: tp in taken)
    await manager.arrivals.settle(arrival)
    return log_dir


async def test_dir_arrival_restores_its_replica() -> None:
    node = await start()
    handle = await create(node)
    before, end = await content(handle), handle.log_end_offset
    fail_dir(node, node.source)
    assert node.manager.get(TP) is None
    back = await attach_dir(node.manager, node.vfss[0], 1)
    again = node.manager.get(TP)
    assert again is not None
    assert (again.log_dir, again.log_end_offset, await content(again)) == (back, end, before)
    assert list(node.manager.dirs()) == [back, node.target]
    await append(again)
    assert again.log_end_offset > end


async def test_dir_arrival_deletes_an_older_copy_of_a_served_replica() -> None:
    node = await start()
    await create(node, 3)
    fail_dir(node, node.source)
    served = await node.manager.create(TP, TOPIC_ID, directory_id(2))
    for _ in range(4):
        await append(served)
    with capture_logs() as logs:
        await attach_dir(node.manager, node.vfss[0], 1, TP)
    (logged,) = [e for e in logs if e["event"] == "replica_copy_superseded"]
    assert logged["kept"] is False
    assert node.manager.get(TP) is served
    assert all(name.endswith("-delete") for name in node.names(0))


async def test_dir_arrival_keeps_a_longer_copy_of_a_served_replica_as_stray() -> None:
    node = await start()
    await create(node, 3)
    fail_dir(node, node.source)
    served = await node.manager.create(TP, TOPIC_ID, directory_id(2))
    with capture_logs() as logs:
        await attach_dir(node.manager, node.vfss[0], 1, TP)
    assert [e["kept"] for e in logs if e["event"] == "replica_copy_superseded"] == [True]
    assert node.manager.get(TP) is served
    assert all(name.endswith("-stray") for name in node.names(0))


async def test_dir_arrival_superseded_copy_that_cannot_be_renamed_takes_its_directory_offline() -> (
    None
):
    node = await start()
    await create(node, 1)
    fail_dir(node, node.source)
    await node.manager.create(TP, TOPIC_ID, directory_id(2))
    node.vfss[0].inject(Fault(kinds=frozenset({"rename"}), path="/d1/t-0"))
    with capture_logs() as logs:
        back = await attach_dir(node.manager, node.vfss[0], 1, TP)
    assert "superseded_copy_not_removed" in {e["event"] for e in logs}
    assert not back.is_online


@pytest.mark.parametrize("comes_as", ["replica", "copy"])
async def test_dir_arrival_delays_a_new_replica_until_the_old_copy_is_renamed(
    comes_as: str,
) -> None:
    """A recreated topic lost its directory to a rename that was meant for the old copy."""
    node = await start()
    await create(node, 3)
    fail_dir(node, node.source)
    await node.manager.create(TP, TOPIC_ID, directory_id(2))
    log_dir, old = open_dir(node.vfss[0], "/d1", 1), node.source
    arrivals = node.manager.arrivals
    loaded = await arrivals.load(log_dir, lambda _: None)
    arrival = arrivals.install(loaded, replaces=old, is_taken=lambda tp: tp == TP)
    await node.manager.delete(TP)
    new_id, here = TopicId(b"2" * 16), directory_id(1 if comes_as == "replica" else 2)
    making = asyncio.ensure_future(node.manager.create(TP, new_id, here))
    if comes_as == "copy":
        await making
        making = asyncio.ensure_future(node.manager.create_future(TP, log_dir, MOVE))
    await settle()
    assert not making.done()
    await arrivals.settle(arrival)
    await making
    served = node.manager.get(TP)
    assert served is not None
    await append(served)
    (came,) = (name for name in node.names(0) if name.endswith("-stray"))
    (made,) = (name for name in node.names(0) if name != came)
    assert made == (TP.topic + "-0" if comes_as == "replica" else FUTURE)
    assert [stray.directory for stray in node.manager.strays.all()] == [f"/d1/{came}"]
    assert node.manager.strays.all()[0].topic_id == TOPIC_ID


async def test_dir_arrival_keeps_two_copies_without_a_served_replica_as_duplicates() -> None:
    node = await start()
    await create(node, 3)
    fail_dir(node, node.source)
    await node.manager.create(TP, TOPIC_ID, directory_id(2))
    await attach_dir(node.manager, node.vfss[0], 1)
    assert node.manager.get(TP) is None
    assert len(node.manager.duplicates[TP]) == 2


async def test_dir_arrival_failure_while_loading_changes_nothing() -> None:
    node = await start()
    await create(node, 3)
    fail_dir(node, node.source)
    node.vfss[0].inject(Fault(kinds=frozenset({"open"}), path="*.log"))
    with capture_logs(), pytest.raises(KafkaStorageError, match="Input/output error"):
        await attach_dir(node.manager, node.vfss[0], 1)
    assert list(node.manager.dirs()) == [node.source, node.target]
    assert node.manager.get(TP) is None


async def test_dir_arrival_of_the_target_resumes_a_move() -> None:
    node = await start()
    handle = await create(node)
    await node.manager.create_future(TP, node.target, MOVE)
    async with node.pool.executor() as executor:
        future = node.manager.future(TP)
        assert future is not None
        await future.catch_up(handle, executor, 1500)
    fail_dir(node, node.target)
    assert node.manager.future(TP) is None
    back = await attach_dir(node.manager, node.vfss[1], 2, TP)
    resumed = node.manager.future(TP)
    assert resumed is not None
    assert (resumed.log_dir, resumed.move_id) == (back, MOVE)
    await move_on(node)
    assert await content(await promote(node)) == await content(handle)


async def test_dir_arrival_of_the_source_resumes_a_move() -> None:
    node = await start()
    handle = await create(node)
    await node.manager.create_future(TP, node.target, MOVE)
    async with node.pool.executor() as executor:
        future = node.manager.future(TP)
        assert future is not None
        await future.catch_up(handle, executor, 1500)
    before = await content(handle)
    fail_dir(node, node.source)
    await attach_dir(node.manager, node.vfss[0], 1)
    assert node.manager.future(TP) is future
    await move_on(node)
    assert await content(await promote(node)) == before


@pytest.mark.parametrize("comes_during_it", [False, True])
async def test_dir_arrival_of_an_old_move_yields_to_a_newer_one(
    comes_during_it: bool,
) -> None:
    node = await start()
    await create(node)
    await node.manager.create_future(TP, node.target, MOVE)
    fail_dir(node, node.target)
    slow = FaultVfs(MemVfs())
    third = await attach_new_dir(node.manager, slow, 3)
    with Gate(slow, "make_dirs") as gate:
        ordered = asyncio.ensure_future(node.manager.create_future(TP, third, Uuid(b"o" * 16)))
        await gate.reached()
        if not comes_during_it:
            gate.open()
            await ordered
        await attach_dir(node.manager, node.vfss[1], 2, TP)
        gate.open()
    other = await ordered
    assert node.manager.future(TP) is other
    assert FUTURE not in node.names(1)


async def attach_new_dir(manager: LogManager, vfs: MemVfs | FaultVfs, number: int) -> LogDir:
    format_dir(vfs, f"/d{number}", number)
    return await attach_dir(manager, vfs, number)


async def test_dir_arrival_of_the_source_completes_an_interrupted_swap() -> None:
    """The copy that replaces the log was present all the time."""
    node, before = await interrupted_swap()
    vfss = [FaultVfs(disk) for disk in node.disks]
    target = open_dir(vfss[1], "/d2", 2)
    dead = open_dir(vfss[0], "/d1", 1)
    with capture_logs():
        dead.go_offline("a test said so")
    manager = manager_of_node(node, [dead, target])
    await manager.load()
    future = manager.future(TP)
    assert future is not None
    assert manager.get(TP) is None
    with capture_logs() as logs:
        await attach_dir(manager, vfss[0], 1)
    assert "swap_mended" in {e["event"] for e in logs}
    handle = manager.get(TP)
    assert handle is not None
    assert await content(handle) == before
    assert handle.log_dir is target
    assert node.names(1) == ["t-0"]
    assert [name.endswith("-delete") for name in node.names(0)] == [True]


def manager_of_node(node: Node, dirs: list[LogDir]) -> LogManager:
    return manager_of(dirs, clock=node.clock)


def dirs_with_jobs(node: Node) -> set[LogDir]:
    """Return the directories whose background jobs run."""
    return set(node.manager._chores)


async def test_background_jobs_start_and_end_with_their_directory() -> None:
    node = await start()
    running = asyncio.ensure_future(node.manager.run_background())
    await asyncio.sleep(0)
    new = await attach_new_dir(node.manager, MemVfs(), 3)
    handle = await node.manager.create(TP, TOPIC_ID, new.directory_id)
    await append(handle)
    source, target = node.source, node.target
    assert dirs_with_jobs(node) == {source, target, new}
    with pytest.raises(KafkaStorageError, match="holds replicas"):
        node.manager.arrivals.take_out(new)
    await node.manager.delete(TP)
    node.manager.arrivals.take_out(new)
    assert dirs_with_jobs(node) == {source, target}
    node.manager.arrivals.put_back(new)
    assert new in node.manager.dirs()
    fail_dir(node, source)
    back = await attach_dir(node.manager, node.vfss[0], 1)
    assert dirs_with_jobs(node) == {back, target, new}
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
