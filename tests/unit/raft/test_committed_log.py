"""``CommittedLog``: reads of committed entries, waits, and snapshots in use."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import (
    KafkaStorageError,
)
from kraftjbod.raft.committed_log import LONGEST_READ_MS, MAX_IN_USE, READ_WITHIN_MS
from kraftjbod.testing.faults import DiskFault
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.raft.driver_rig import (
    NO_OP,
    Node,
    make_snapshot,
)


async def test_committed_log_reads_from_memory_and_from_disk(vfs: FaultVfs) -> None:
    node = Node(vfs, max_cached_bytes=1000)
    await node.start()
    payloads = [NO_OP, *(b"payload %d" % number for number in range(40))]
    for payload in payloads[1:]:
        await node.propose(payload)
    reads = vfs.inject(Fault(kinds=frozenset({"read_at"}), nth=10_000))
    assert [e.payload for e in await node.driver.committed.read(39, 1000)] == payloads[39:]
    assert reads.seen == 0
    read: list[bytes] = []
    while found := await node.driver.committed.read(len(read), 100):
        read += [entry.payload for entry in found]
    assert read == payloads
    assert reads.seen > 0
    for first in (0, 39):
        few = await node.driver.committed.read(first, 1000, max_entries=1)
        assert [entry.payload for entry in few] == [payloads[first]]
    await node.stop()


async def test_committed_log_refuses_an_entry_damaged_after_its_write(vfs: FaultVfs) -> None:
    node = Node(vfs, max_cached_bytes=0)
    await node.start()
    await node.propose(b"a", b"b", b"c")
    vfs.inject(Fault(effect=DiskFault.ROT, kinds=frozenset({"read_at"})))
    with capture_logs() as events, pytest.raises(KafkaStorageError, match="damaged"):
        await node.driver.committed.read(0, 1000)
    assert [event["event"] for event in events] == ["metadata_log_damaged"]
    await node.stop()


async def test_committed_log_wait_ends_with_commit_timeout_or_stop(node: Node) -> None:
    await node.driver.wait_for(1, 1)
    waiting = asyncio.create_task(node.driver.wait_for(1, 60_000))
    endless = asyncio.create_task(node.driver.wait_for(9, 60_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    await node.propose(b"a")
    await waiting
    assert not endless.done()
    node.driver.release_waits()
    await endless


async def test_committed_log_snapshot_is_in_use_while_its_pieces_are_read(node: Node) -> None:
    """A reader that stops or never ends does not keep the snapshot and the log on the disk."""
    committed, snapshots = node.driver.committed, []
    for _ in range(4):
        await node.propose(b"a")
        snapshots.append((await make_snapshot(node)).last_offset)
        assert await committed.read_snapshot(snapshots[-1], 0, 1) is not None
        node.clock.ms += 1
    assert committed.snapshots_in_use() == set(snapshots[:MAX_IN_USE])
    assert await committed.read_snapshot(snapshots[0], 0, 1) is not None
    node.clock.ms += READ_WITHIN_MS
    assert committed.snapshots_in_use() == {snapshots[0]}
    for _ in range(LONGEST_READ_MS // READ_WITHIN_MS):
        assert await committed.read_snapshot(snapshots[0], 0, 1) is not None
        node.clock.ms += READ_WITHIN_MS
    assert committed.snapshots_in_use() == set()
