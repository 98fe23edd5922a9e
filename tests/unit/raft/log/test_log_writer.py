"""``LogWriter``: entries that cannot be written now are written later."""

from __future__ import annotations

import asyncio
from errno import ENOSPC

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import (
    LogDirImpairedError,
)
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir
from tests.faults.vfs_fault import WRITING_KINDS, Fault, FaultVfs
from tests.unit.raft.driver_rig import (
    DIRECTORY,
    NO_OP,
    PATH,
    Node,
    append_until_lost,
    is_committed,
    limit_free_space,
    logged,
)


async def test_log_writer_without_space_writes_entries_once_there_is_space(
    memory: MemVfs, node: Node
) -> None:
    await node.propose(b"a")
    limit_free_space(memory, 20)
    log = memory.open(f"{DIRECTORY}/{0:020d}.log", OpenMode.READ)
    size_bytes = log.size()
    with capture_logs() as events:
        proposals = [node.driver.propose(b"b"), node.driver.propose(b"c")]
        await logged(events, "metadata_log_waits")
        assert node.log_dir.state is LogDirState.SATURATED
        assert not any(proposal.committed.done() for proposal in proposals)
        assert log.size() == size_bytes, "the torn entry was truncated"
        with pytest.raises(LogDirImpairedError, match="has to be written"):
            node.driver.propose(b"not even begun")
        memory.capacity_bytes = None
        await asyncio.gather(*(proposal.committed for proposal in proposals))
        assert "metadata_log_goes_on" in {event["event"] for event in events}
    await node.propose(b"d")
    assert node.listener.payloads == [NO_OP, b"a", b"b", b"c", b"d"]


async def test_log_writer_waits_for_a_stalled_directory(vfs: FaultVfs) -> None:
    node = Node(vfs, io_suspect_ms=50)
    await node.start()
    node.log_dir.start_watches()
    await node.propose(b"a")
    vfs.inject(Fault(effect=DiskFault.HANG, kinds=frozenset({"sync"})))
    proposals = [node.driver.propose(b"b")]
    while node.log_dir.state is not LogDirState.STALLED:
        node.clock.ms += 10
        await asyncio.sleep(0.01)
    proposals.append(node.driver.propose(b"c"))
    assert await node.driver.committed.read(1, 100) == node.listener.entries[1:], (
        "the newest are in memory"
    )
    vfs.clear()
    await asyncio.gather(*(proposal.committed for proposal in proposals))
    assert node.listener.payloads == [NO_OP, b"a", b"b", b"c"]
    await node.stop()


@pytest.mark.parametrize("effect", [DiskFault.EIO, DiskFault.SHORT_WRITE])
async def test_log_writer_without_space_at_each_operation_keeps_log_and_listener_equal(
    memory: MemVfs, effect: DiskFault
) -> None:
    """The listener received the entries of the log, whichever operation found no space."""
    for nth in range(1, 1000):
        inner = MemVfs()
        format_dir(inner, PATH, 1)
        vfs = FaultVfs(inner)
        node = Node(vfs, bytes_between_snapshots=1500)
        await node.start()
        fault = vfs.inject(
            Fault(effect=effect, errno=ENOSPC, kinds=WRITING_KINDS, nth=nth, sticky=False)
        )
        with capture_logs():
            proposals = await append_until_lost(node)
        reported = node.listener.payloads
        answered = [p.entry.payload for p in proposals if is_committed(p)]
        assert reported == [NO_OP, *answered], nth
        assert node.log_dir.is_online == (len(proposals) == len(answered)), nth
        await node.stop()
        again = Node(inner)
        await again.start()
        covered = again.listener.snapshots[0][0] if again.listener.snapshots else -1
        whole = [NO_OP, *(p.entry.payload for p in proposals)][covered + 1 :]
        found = again.listener.payloads[:-1]
        assert found == whole[: len(found)], nth
        assert covered + 1 + len(found) >= len(reported), nth
        await again.stop()
        if not fault.hits:
            assert again.listener.snapshots[0][0] > 7, "the second one"
            return
    raise AssertionError("the story never ran through")
