"""``SnapshotMaker``: snapshots written in pieces while the log continues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import (
    KafkaStorageError,
)
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.gates import settle
from tests.unit.raft.driver_rig import (
    DIRECTORY,
    NO_OP,
    Node,
    logged,
    make_snapshot,
    slices_of,
)


async def test_snapshot_maker_snapshot_is_wanted_after_enough_bytes_and_restores_the_state(
    vfs: FaultVfs,
) -> None:
    node = Node(vfs, bytes_between_snapshots=1000)
    await node.start()
    assert not node.driver.wants_snapshot
    await node.propose(b"a" * 1000)
    assert node.driver.wants_snapshot
    snapshot = await make_snapshot(node)
    assert not node.driver.wants_snapshot
    await node.propose(b"b")
    await node.stop()
    again = Node(vfs)
    await again.start()
    state = b"".join(slices_of([NO_OP, b"a" * 1000]))
    assert again.listener.snapshots == [(snapshot.last_offset, state)]
    assert again.listener.payloads == [b"b", NO_OP]
    piece = await again.driver.committed.read_snapshot(snapshot.last_offset, 0, 6)
    assert piece is not None
    assert (piece.data, piece.next_position) == (b"state:", 6)
    await again.stop()


async def test_snapshot_maker_writes_no_snapshot_of_entries_that_could_not_be_written(
    vfs: FaultVfs, node: Node
) -> None:
    vfs.inject(Fault(kinds=frozenset({"sync"}), path="*.log"))
    proposal = node.driver.propose(b"never committed")
    with capture_logs():
        node.driver.start_snapshot(proposal.entry.offset, 1, slices_of([]))
        with pytest.raises(KafkaStorageError):
            await proposal.committed
    assert not any(item.name.endswith(".checkpoint") for item in vfs.list_dir(DIRECTORY))


async def test_snapshot_maker_snapshot_that_waits_for_an_entry_ends_when_waits_are_released(
    vfs: FaultVfs, node: Node
) -> None:
    """The stop waited for the event loop, and the snapshot never released the loop."""
    vfs.inject(Fault(effect=DiskFault.HANG, kinds=frozenset({"sync"}), path="*.log"))
    proposal = node.driver.propose(b"not committed yet")
    node.driver.start_snapshot(proposal.entry.offset, 1, slices_of([]))
    while not any(item.name.endswith(".part") for item in vfs.list_dir(DIRECTORY)):
        await asyncio.sleep(0.001)
    await settle()
    node.driver.release_waits()
    with capture_logs() as events:
        while node.driver.is_snapshotting:
            await asyncio.sleep(0.001)
    vfs.release()
    # A busy loop would turn pytest's timeout into an error of the snapshot, and pass.
    assert "metadata_snapshot_failed" not in [event["event"] for event in events]
    assert not any(item.name.endswith(".checkpoint") for item in vfs.list_dir(DIRECTORY))


@pytest.mark.parametrize("end", ["leadership lost", "cancelled"])
async def test_snapshot_maker_unfinished_snapshot_leaves_no_file_and_no_descriptor(
    vfs: FaultVfs, node: Node, end: str
) -> None:
    opened: Counter[str] = Counter()
    vfs.on_operation = lambda kind, path: opened.update([kind] if path.endswith(".part") else [])
    vfs.inject(Fault(effect=DiskFault.HANG, kinds=frozenset({"sync"}), path="*.log"))
    proposal = node.driver.propose(b"not committed yet")
    node.driver.start_snapshot(proposal.entry.offset, 1, slices_of([]))
    while not opened["write_at"]:
        await asyncio.sleep(0.001)
    if end == "leadership lost":
        node.driver.release_waits()
    else:
        await node.driver._maker.stop()
    while node.driver.is_snapshotting:
        await asyncio.sleep(0.001)
    # The flush thread runs its operations in order, so this one follows all others.
    await node.log_dir.run_operation(OpKind.FLUSH, lambda: None)
    vfs.release()
    assert opened["open"] == opened["close"] == 1
    assert not any(item.name.endswith(".part") for item in vfs.list_dir(DIRECTORY))


async def test_snapshot_maker_unexpected_error_fails_only_its_snapshot(node: Node) -> None:
    def broken() -> Iterator[bytes]:
        yield b"state"
        raise ZeroDivisionError

    with capture_logs() as events:
        node.driver.start_snapshot(0, 1, broken())
        await logged(events, "metadata_snapshot_failed")
    await node.propose(b"continues")
    assert (await make_snapshot(node)).last_offset == 1


async def test_snapshot_maker_yields_to_the_event_loop_after_each_slice(node: Node) -> None:
    """Collecting slices up to a full write blocked the event loop for two thousand records."""
    turns, seen = 0, []

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def slices() -> Iterator[bytes]:
        for _ in range(5):
            seen.append(turns)
            yield b"small"

    turning = asyncio.create_task(turn())
    node.driver.start_snapshot(0, 1, slices())
    while node.driver.is_snapshotting:
        await asyncio.sleep(0.001)
    turning.cancel()
    assert len(set(seen)) == 5


async def test_snapshot_maker_writes_and_reads_a_large_snapshot_in_pieces(vfs: FaultVfs) -> None:
    """Neither the write nor the read holds the whole snapshot in memory."""
    node = Node(vfs)
    await node.start()
    held: list[int] = []
    total, piece_bytes = 20, 1 << 20

    def slices() -> Iterator[bytes]:
        for number in range(total):
            found = vfs.list_dir(DIRECTORY, sized=".part")
            written_bytes = sum(i.size_bytes or 0 for i in found if i.name.endswith(".part"))
            held.append(number * piece_bytes - written_bytes)
            yield bytes([number]) * piece_bytes

    node.driver.start_snapshot(0, 1, slices())
    while await node.driver.committed.newest_snapshot() is None:
        await asyncio.sleep(0.001)
    assert max(held) <= 2 * piece_bytes
    await node.stop()
    again = Node(vfs)
    await again.start()
    assert max(map(len, again.listener.pieces)) <= piece_bytes
    ((_, state),) = again.listener.snapshots
    assert state == b"".join(bytes([number]) * piece_bytes for number in range(total))
    await again.stop()


async def test_snapshot_maker_write_error_is_logged_and_takes_the_directory_offline(
    vfs: FaultVfs, node: Node
) -> None:
    vfs.inject(Fault(kinds=frozenset({"write_at"}), path="*.part"))
    with capture_logs() as events:
        node.driver.start_snapshot(0, 1, slices_of([]))
        while node.log_dir.is_online:
            await asyncio.sleep(0)
        while "metadata_snapshot_failed" not in {event["event"] for event in events}:
            await asyncio.sleep(0)


async def test_snapshot_maker_without_space_postpones_the_snapshot(memory: MemVfs) -> None:
    node = Node(memory, bytes_between_snapshots=1000)
    await node.start()
    await node.propose(b"a" * 2000)
    memory.usable_bytes = 1000
    node.log_dir.check_disk()
    while node.log_dir.space.usable_bytes != 1000:
        await asyncio.sleep(0)
    with capture_logs() as events:
        node.driver.start_snapshot(1, 1, slices_of(node.listener.payloads))
        await logged(events, "metadata_snapshot_postponed")
    while node.driver.is_snapshotting:
        await asyncio.sleep(0)
    assert node.log_dir.state is LogDirState.ONLINE
    assert not node.driver.wants_snapshot
    memory.usable_bytes = 10_000
    node.log_dir.check_disk()
    while not node.driver.wants_snapshot:
        await asyncio.sleep(0)
    assert (await make_snapshot(node)).last_offset == 1
    await node.stop()
