"""What is certain, read again."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import (
    KafkaStorageError,
)
from tests.faults.vfs_fault import Effect, Fault, FaultVfs
from tests.unit.raft.driver_rig import (
    NO_OP,
    Node,
)


async def test_followers_read_from_memory_and_from_disk(vfs: FaultVfs) -> None:
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


async def test_an_entry_damaged_after_it_was_written_is_not_served(vfs: FaultVfs) -> None:
    node = Node(vfs, max_cached_bytes=0)
    await node.start()
    await node.propose(b"a", b"b", b"c")
    vfs.inject(Fault(effect=Effect.FLIPPED_BIT, kinds=frozenset({"read_at"})))
    with capture_logs() as events, pytest.raises(KafkaStorageError, match="damaged"):
        await node.driver.committed.read(0, 1000)
    assert [event["event"] for event in events] == ["metadata_log_damaged"]
    await node.stop()


async def test_waiting_ends_with_the_entry_the_deadline_or_the_stop(node: Node) -> None:
    await node.driver.wait_for(1, 1)
    waiting = [asyncio.create_task(node.driver.wait_for(1, 60_000))]
    await node.propose(b"a")
    await asyncio.gather(*waiting)
    endless = asyncio.create_task(node.driver.wait_for(9, 60_000))
    await asyncio.sleep(0)
    node.driver.release_waits()
    await endless
