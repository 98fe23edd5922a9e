"""``SwapRecovery``: contents of two directories after a stop or crash, case by case."""

from __future__ import annotations

import asyncio
from errno import EMFILE, ENOSPC

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import LogDirImpairedError
from kraftjbod.core.ids import TopicId
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.replicas import dir_loading
from kraftjbod.storage.vfs import DirEntry, OpenMode, write_atomically
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, chores, directory_id, format_dir, manager_of, open_dir
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.storage.replicas.test_replica_swap import (
    CONFIG,
    MOVE,
    Node,
    append,
    content,
    create,
    move_on,
    move_to_end,
    promote,
    start,
)

FUTURE = f"t-0.{MOVE.hex()}-future"
DELETE = f"t-0.{MOVE.hex()}-delete"


async def restart(node: Node) -> Node:
    """Restart as after kill -9: all written bytes are present."""
    return await start(node.disks)


async def interrupted_swap(*, batches: int = 12) -> tuple[Node, bytes]:
    """Interrupt a swap after its first rename."""
    node = await start()
    handle = await create(node, batches)
    await move_to_end(node)
    before = await content(handle)
    node.vfss[1].inject(Fault(kinds=frozenset({"rename"}), path="*-future"))
    node.vfss[0].inject(Fault(kinds=frozenset({"rename"}), path="*-delete"))
    with capture_logs(), pytest.raises(Exception, match="offline"):
        await promote(node)
    assert (node.names(0), node.names(1)) == ([DELETE], [FUTURE])
    return node, before


async def test_swap_recovery_resumes_a_stopped_move() -> None:
    node = await start()
    old = await create(node)
    future = await node.manager.create_future(TP, node.target, MOVE)
    async with node.pool.executor() as executor:
        await future.catch_up(old, executor, 1500)
    await node.manager.close(1)
    node = await restart(node)
    resumed, handle = node.manager.future(TP), node.manager.get(TP)
    assert resumed is not None
    assert handle is not None
    assert (resumed.move_id, resumed.size_bytes) == (MOVE, 1500)
    assert resumed.source_directory_id == directory_id(1)
    assert resumed.topic_id == TOPIC_ID
    async with node.pool.executor() as executor:
        step = await resumed.catch_up(handle, executor)
    assert (step.copied_bytes, step.is_caught_up) == (handle.size_bytes - 1500, True)
    assert await content(await promote(node)) == await content(handle)


async def test_swap_recovery_completes_a_swap_with_a_complete_copy() -> None:
    """The start performs the second rename of KIP-113 and does not refuse two copies."""
    node, before = await interrupted_swap()
    with capture_logs() as events:
        node = await restart(node)
    assert [e["event"] for e in events] == ["swap_mended"]
    handle = node.manager.get(TP)
    assert handle is not None
    assert handle.log_dir is node.target
    assert await content(handle) == before
    node.clock.ms += 60_000
    await chores(node.manager).purge_due()
    assert (node.names(0), node.names(1)) == ([], ["t-0"])


async def test_swap_recovery_never_replaces_a_longer_copy() -> None:
    """The fix of KAFKA-16082 promotes any future copy; this recovery compares the lengths."""
    node, before = await interrupted_swap()
    name = "00000000000000000000.log"
    file = node.disks[1].open(f"/d2/{FUTURE}/{name}", OpenMode.READ_WRITE)
    file.truncate(300)
    file.sync()
    with capture_logs() as events:
        node = await restart(node)
    assert [e["event"] for e in events] == ["swap_mended"]
    handle = node.manager.get(TP)
    assert handle is not None
    assert (handle.log_dir, await content(handle)) == (node.source, before)
    assert node.manager.future(TP) is not None
    assert (node.names(0), node.names(1)) == (["t-0"], [FUTURE])
    await move_on(node)
    assert (await promote(node)).log_dir is node.target


async def test_swap_recovery_prefers_a_longer_future_copy() -> None:
    """At the power cut, the tail was on the disk of the new copy only."""
    node, before = await interrupted_swap()
    bases = [e.name for e in node.disks[0].list_dir(f"/d1/{DELETE}") if e.name.endswith(".log")]
    file = node.disks[0].open(f"/d1/{DELETE}/{bases[-1]}", OpenMode.READ_WRITE)
    file.truncate(file.size() // 2)
    with capture_logs():
        node = await restart(node)
    handle = node.manager.get(TP)
    assert handle is not None
    assert (handle.log_dir, await content(handle)) == (node.target, before)


async def test_swap_recovery_with_a_failing_target_keeps_the_source() -> None:
    node, before = await interrupted_swap()
    node.vfss[1].clear()
    disks = node.disks

    class Failing(MemVfs):
        """A Vfs that refuses renames."""

        def rename(self, source: str, target: str) -> None:
            raise OSError(5, "Input/output error", source)

    disks[1].__class__ = Failing
    with capture_logs() as events:
        node = await restart(node)
    assert "future_copy_not_opened" in [e["event"] for e in events]
    handle = node.manager.get(TP)
    assert handle is not None
    assert (handle.log_dir, await content(handle)) == (node.source, before)


async def test_swap_recovery_with_an_absent_target_keeps_the_source_as_an_orphan() -> None:
    node, before = await interrupted_swap()
    node.disks[1].remove_tree("/d2")
    with capture_logs():
        node = await restart(node)
    assert node.manager.get(TP) is None
    (orphan,) = node.manager.orphans
    assert (orphan.topic_id, orphan.directory) == (TOPIC_ID, f"/d1/{DELETE}")
    handle = await node.manager.restore_deleted(orphan)
    assert node.manager.get(TP) is handle
    assert await content(handle) == before
    assert (node.names(0), list(node.manager.orphans)) == (["t-0"], [])
    await append(handle)


async def test_abandoned_future_copy_is_removed_once_while_its_source_arrives() -> None:
    """Two removals raced, and the second purge failed; or a removed copy was resumed."""
    for what in ("remove", "resume"):
        node = await start()
        await create(node)
        await move_to_end(node)
        future = node.manager.future(TP)
        assert future is not None
        swap, recovery = node.manager._swap, node.manager._recovery
        late = swap.remove_unneeded(future) if what == "remove" else recovery._resume(future)
        with capture_logs() as events:
            await asyncio.gather(node.manager.drop_future(TP), late)
            await chores(node.manager, node.target).purge_due()
        assert "log_dir_operation_made_no_sense" not in {event["event"] for event in events}
        assert node.manager.future(TP) is None, what
        assert node.names(1) == [], what


async def test_discard_deleted_on_a_hung_disk_is_completed_when_it_answers() -> None:
    node, _ = await interrupted_swap()
    node.disks[1].remove_tree("/d2")
    with capture_logs():
        node = await restart(node)
    (orphan,) = node.manager.orphans
    node.source.suspect("it hangs")
    await node.manager.discard_deleted(orphan)
    await chores(node.manager).purge_due()
    assert node.names(0) == [DELETE]
    node.source.absolve()
    await chores(node.manager).purge_due()
    assert node.names(0) != [DELETE], "it cannot be half of a swap any more"
    node.clock.ms += CONFIG.file_delete_delay_ms
    await chores(node.manager).purge_due()
    assert node.names(0) == []


async def test_remove_unneeded_future_on_a_hung_disk_is_completed_when_it_answers() -> None:
    node = await start()
    await create(node)
    await move_to_end(node)
    future = node.manager.future(TP)
    assert future is not None
    node.target.suspect("it hangs")
    await node.manager._swap.remove_unneeded(future)
    await chores(node.manager, node.target).purge_due()
    assert node.names(1) == [FUTURE]
    node.target.absolve()
    await chores(node.manager, node.target).purge_due()
    assert node.names(1) == []


async def test_unreadable_deleted_replica_is_kept() -> None:
    node, _ = await interrupted_swap()
    d1, d2 = (open_dir(disk, f"/d{i}", i) for i, disk in enumerate(node.disks, 1))
    d2.go_offline("not there")
    manager = manager_of([d1, d2], CONFIG, node.clock)
    read = d1.vfs.read_if_exists

    def hangs(path: str) -> bytes | None:
        if path.endswith("/partition.metadata"):
            raise LogDirImpairedError("it hangs", directory_id=None, path=d1.path, state="stalled")
        return read(path)

    d1.vfs.read_if_exists = hangs  # type: ignore[method-assign]
    with capture_logs() as events:
        await manager.load()
    assert "deleted_replica_not_known" in [event["event"] for event in events]
    node.clock.ms += CONFIG.file_delete_delay_ms
    await chores(manager).purge_due()
    assert node.names(0) == [DELETE]


async def test_deleted_replica_is_listed_although_descriptors_were_lacking_for_a_moment() -> None:
    """Without a retry the copy was neither restored nor removed until the next start."""
    node, _ = await interrupted_swap()
    d1, d2 = (open_dir(disk, f"/d{i}", i) for i, disk in enumerate(node.disks, 1))
    d2.go_offline("not there")
    manager = manager_of([d1, d2], CONFIG, node.clock)
    read, failures = d1.vfs.read_if_exists, [OSError(EMFILE, "too many open files")]

    def read_later(path: str) -> bytes | None:
        if path.endswith("/partition.metadata") and failures:
            raise failures.pop()
        return read(path)

    d1.vfs.read_if_exists = read_later  # type: ignore[method-assign]
    with capture_logs():
        await manager.load()
    assert not failures
    assert [orphan.topic_id for orphan in manager.orphans] == [TOPIC_ID]


async def test_deleted_replicas_share_one_wait_for_descriptors_and_are_listed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 4,000 copies a start waited for hours, 30 s for each copy."""
    monkeypatch.setattr(dir_loading, "LACK_LIMIT_MS", 50)
    node, _ = await interrupted_swap()
    other = f"/d1/{DELETE.replace(str(TP), 't-9')}"
    node.disks[0].make_dirs(other)
    metadata = node.disks[0].read_if_exists(f"/d1/{DELETE}/partition.metadata")
    assert metadata is not None
    write_atomically(node.disks[0], f"{other}/partition.metadata", bytes(metadata))
    d1, d2 = (open_dir(disk, f"/d{i}", i) for i, disk in enumerate(node.disks, 1))
    d2.go_offline("not there")
    manager = manager_of([d1, d2], CONFIG, node.clock)
    read, tries, is_lacking = d1.vfs.read_if_exists, list[str](), True

    def read_later(path: str) -> bytes | None:
        if path.endswith("/partition.metadata") and is_lacking:
            tries.append(path)
            raise OSError(EMFILE, "too many open files")
        return read(path)

    d1.vfs.read_if_exists = read_later  # type: ignore[method-assign]
    with capture_logs():
        await manager.load()
    assert not manager.orphans
    assert len(tries) > len(set(tries)) == 2
    assert tries.count(tries[-1]) == 1, "the wait is over"
    is_lacking = False
    background = asyncio.create_task(manager.run_background())
    async with asyncio.timeout(60):
        while len(manager.orphans) < 2:
            await asyncio.sleep(0.01)
    background.cancel()
    await asyncio.gather(background, return_exceptions=True)


async def test_interrupted_move_does_not_collide_with_a_discarded_copy() -> None:
    """The source half of a swap is discarded; then the target arrives, and its move is resumed."""
    node, _ = await interrupted_swap()
    d1, d2 = (open_dir(disk, f"/d{i}", i) for i, disk in enumerate(node.disks, 1))
    d2.go_offline("not there yet")
    node = Node(
        manager_of([d1, d2], CONFIG, node.clock), node.pool, node.clock, node.disks, node.vfss
    )
    await node.manager.load()
    (orphan,) = node.manager.orphans
    await node.manager.discard_deleted(orphan)
    node.clock.ms += CONFIG.file_delete_delay_ms // 2
    await append(await create(node, 0))

    arrived = await node.manager.arrivals.load(open_dir(node.disks[1], "/d2", 2), lambda _: None)
    arrival = node.manager.arrivals.install(arrived, replaces=d2, is_taken=lambda _: False)
    await node.manager.arrivals.settle(arrival)
    await move_on(node)
    await promote(node)
    node.clock.ms += CONFIG.file_delete_delay_ms // 2
    await chores(node.manager).purge_due()
    assert (node.names(0), node.names(1)) == ([DELETE], ["t-0"])
    node.clock.ms += CONFIG.file_delete_delay_ms
    await chores(node.manager).purge_due()
    assert node.names(0) == []


async def test_future_copy_without_replica_is_kept_until_adopted() -> None:
    """KIP-113 section 3: the disk with the replica was replaced by an empty one."""
    node = await start()
    handle = await create(node)
    future = await node.manager.create_future(TP, node.target, MOVE)
    async with node.pool.executor() as executor:
        await future.catch_up(handle, executor, 1500)
    await future.sync()
    before = await content(handle)
    node.disks[0].remove_tree("/d1/t-0")
    node = await restart(node)
    assert node.manager.get(TP) is None
    assert node.manager.future(TP) is not None
    with capture_logs():
        adopted = await node.manager.adopt_future(TP)
    assert node.manager.get(TP) is adopted
    assert node.manager.futures() == []
    found = await content(adopted)
    assert found == before[: len(found)]
    assert len(found) > 1000
    assert node.names(1) == ["t-0"]
    await append(adopted, epoch=1)


async def test_swap_recovery_keeps_the_longer_of_two_future_copies() -> None:
    node = await start()
    await create(node)
    await move_to_end(node)
    await node.manager.close(1)
    tree = node.disks[1]
    other = f"t-0.{bytes(range(1, 17)).hex()}-future"
    for name in ("partition.metadata", "future-copy-checkpoint"):
        data = tree.read_if_exists(f"/d2/{FUTURE}/{name}")
        assert data is not None
        tree.make_dirs(f"/d2/{other}")
        text = data.decode()
        if name != "partition.metadata":
            text = text[: text.index('"synced": [') + 11] + text[text.index('], "log_start') :]
        tree.open(f"/d2/{other}/{name}", OpenMode.CREATE).write_at(0, [text.encode()])
    with capture_logs() as events:
        node = await restart(node)
    assert [e["event"] for e in events] == ["future_copy_dropped"]
    future = node.manager.future(TP)
    assert future is not None
    assert future.move_id == MOVE
    await chores(node.manager, node.target).purge_due()
    assert node.names(1) == [FUTURE]


async def test_swap_recovery_drops_a_future_copy_in_the_directory_of_its_replica() -> None:
    node = await start()
    await create(node)
    await move_to_end(node)
    await node.manager.close(1)
    node.disks[1].make_dirs("/d2/t-0")
    for entry in node.disks[0].list_dir("/d1/t-0"):
        source = node.disks[0].open(f"/d1/t-0/{entry.name}", OpenMode.READ)
        copy = node.disks[1].open(f"/d2/t-0/{entry.name}", OpenMode.CREATE)
        copy.copy_from(source, 0, source.size())
    node.disks[0].remove_tree("/d1/t-0")
    with capture_logs() as events:
        node = await restart(node)
    assert [e["event"] for e in events] == ["future_copy_of_no_use"]
    assert node.manager.futures() == []


async def test_swap_recovery_drops_a_future_copy_of_an_older_topic_id() -> None:
    """KAFKA-16157: the topic was deleted and recreated while the disk was absent."""
    node = await start()
    await create(node)
    await move_to_end(node)
    await node.manager.close(1)
    metadata = node.disks[0].open("/d1/t-0/partition.metadata", OpenMode.READ_WRITE)
    fresh = TopicId(bytes(range(100, 116)))
    metadata.write_at(0, [f"version: 0\ntopic_id: {fresh}".encode()])
    with capture_logs() as events:
        node = await restart(node)
    assert [e["event"] for e in events] == ["future_copy_of_no_use"]
    assert node.manager.get(TP) is not None
    assert node.manager.futures() == []


@pytest.mark.parametrize("name", ["partition.metadata", "future-copy-checkpoint"])
async def test_swap_recovery_drops_an_unreadable_future_copy(name: str) -> None:
    node = await start()
    await create(node)
    await move_to_end(node)
    node.disks[1].open(f"/d2/{FUTURE}/{name}", OpenMode.READ_WRITE).truncate(3)
    with capture_logs() as events:
        node = await restart(node)
    assert [e["event"] for e in events] == ["future_copy_unreadable"]
    assert node.manager.futures() == []
    node.clock.ms += 60_000
    await chores(node.manager, node.target).purge_due()
    assert node.names(1) == []
    await move_to_end(node)


@pytest.mark.parametrize("kind", ["delete", "future"])
async def test_swap_recovery_of_a_leftover_that_vanishes_has_nothing_to_remove(kind: str) -> None:
    """An operator removes the directory after the start listed it and before it is renamed."""
    node = await start()
    await create(node)
    await move_to_end(node)
    await node.manager.close(1)
    leftover = f"/d2/t-0.{MOVE.hex()}-{kind}"
    if kind == "delete":
        node.disks[1].rename(f"/d2/{FUTURE}", leftover)
    else:
        node.disks[1].open(f"{leftover}/partition.metadata", OpenMode.READ_WRITE).truncate(3)
    d1, d2 = (open_dir(disk, f"/d{i}", i) for i, disk in enumerate(node.disks, 1))
    manager = manager_of([d1, d2], CONFIG, node.clock)
    list_dir = d2.vfs.list_dir

    def list_then_remove(path: str, *, sized: str | None = None) -> list[DirEntry]:
        entries = list_dir(path, sized=sized)
        if path == "/d2":
            node.disks[1].remove_tree(leftover)
        return entries

    d2.vfs.list_dir = list_then_remove  # type: ignore[method-assign]
    with capture_logs() as events:
        await manager.load()
    assert {event["event"] for event in events} <= {"future_copy_unreadable"}
    assert d2.state is LogDirState.ONLINE
    node.clock.ms += CONFIG.file_delete_delay_ms
    await chores(manager, d2).purge_due()
    assert node.names(1) == []


async def undone_swap() -> Node:
    """Fail the directory fsync after the second rename of a swap."""
    node = await start()
    await create(node)
    await move_to_end(node)
    node.vfss[1].inject(Fault(kinds=frozenset({"sync_dir"}), path="/d2", nth=4))
    with capture_logs(), pytest.raises(Exception, match="offline"):
        await promote(node)
    assert (node.names(0), node.names(1)) == (["t-0"], ["t-0"])
    return node


async def test_swap_recovery_of_an_undone_swap_serves_the_source() -> None:
    """Kafka refuses to start with two current copies; here the current copy is known."""
    node = await undone_swap()
    handle = node.manager.get(TP)
    assert handle is not None
    await append(handle)
    before = await content(handle)
    with capture_logs() as events:
        node = await restart(node)
    assert [e["event"] for e in events] == ["undone_swap_settled"]
    handle = node.manager.get(TP)
    assert handle is not None
    assert (handle.log_dir, await content(handle)) == (node.source, before)
    assert not node.manager.duplicates


async def test_future_copy_checkpoint_of_a_moved_replica_is_removed_at_the_next_start() -> None:
    node = await start()
    await create(node)
    await move_to_end(node)
    await promote(node)
    assert node.disks[1].exists("/d2/t-0/future-copy-checkpoint")
    node = await restart(node)
    assert not node.disks[1].exists("/d2/t-0/future-copy-checkpoint")


async def test_swap_recovery_logs_an_unreadable_source_half_and_keeps_the_future_copy() -> None:
    node, _ = await interrupted_swap()
    node.disks[0].open(f"/d1/{DELETE}/partition.metadata", OpenMode.READ_WRITE).truncate(2)
    with capture_logs() as events:
        node = await restart(node)
    assert "swap_not_mended" in [e["event"] for e in events]
    assert node.manager.future(TP) is not None


async def test_resumed_move_drops_bytes_after_a_different_epoch() -> None:
    """The log was truncated and extended under another leader while the copy was absent."""
    node = await start()
    await create(node)
    await move_to_end(node)
    await node.manager.close(1)
    away, empty = node.disks[1], MemVfs()
    format_dir(empty, "/d2", 2)
    node = await start((node.disks[0], empty))
    handle = node.manager.get(TP)
    assert handle is not None
    await handle.truncate_to(11)
    for _ in range(8):
        await append(handle, epoch=4)
    await node.manager.close(2)
    node = await start((node.disks[0], away))
    handle, future = node.manager.get(TP), node.manager.future(TP)
    assert handle is not None
    assert future is not None
    assert 0 < future.size_bytes < handle.size_bytes
    await move_on(node)
    assert await content(await promote(node)) == await content(handle)


async def test_future_copy_that_cannot_be_compared_for_lack_of_space_is_dropped() -> None:
    """A copy has to be compared with its replica before the move is resumed."""
    node = await start()
    old = await create(node)
    future = await node.manager.create_future(TP, node.target, MOVE)
    async with node.pool.executor() as executor:
        await future.catch_up(old, executor, 1500)
    await node.manager.close(1)
    for name in node.disks[1].list_dir(f"/d2/{FUTURE}"):
        if name.name.endswith(".log"):
            node.disks[1].open(f"/d2/{FUTURE}/{name.name}", OpenMode.READ_WRITE).truncate(9999)
    vfs = FaultVfs(node.disks[1])
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"truncate"})))
    dirs = [open_dir(node.disks[0], "/d1", 1), open_dir(vfs, "/d2", 2)]
    manager = manager_of(dirs)
    with capture_logs() as logged:
        await manager.load()
    assert "future_copy_not_resumed" in [line["event"] for line in logged]
    assert manager.future(TP) is None
    assert manager.get(TP) is not None
    assert dirs[1].is_online
    await chores(manager, dirs[1]).reclaim_space()
    assert not node.disks[1].exists(f"/d2/{FUTURE}")
