"""``RaftDriver`` of a single voter over a real directory thread and a memory file system."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import (
    KafkaStorageError,
    LogDirImpairedError,
    NotControllerError,
    StartupError,
)
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.raft.driver_rig import (
    DIRECTORY,
    NO_OP,
    Node,
    limit_free_space,
    logged,
)

HOUR_S: Final = 3600


async def test_raft_driver_of_a_new_log_leads_and_commits_proposals(node: Node) -> None:
    assert node.listener.terms == [1]
    assert node.driver.next_offset == 1
    await node.propose(b"a", b"b")
    assert node.listener.payloads == [NO_OP, b"a", b"b"]
    assert node.driver.committed_offset == 2


async def test_raft_driver_calls_the_listener_before_the_proposer(node: Node) -> None:
    proposal = node.driver.propose(b"a")
    is_committed = asyncio.Event()
    proposal.committed.add_done_callback(lambda _: is_committed.set())
    await is_committed.wait()
    assert node.listener.payloads[-1] == b"a"


async def test_raft_driver_proposals_during_a_sync_share_the_next_sync(
    vfs: FaultVfs, node: Node
) -> None:
    counted = vfs.inject(Fault(kinds=frozenset({"sync"}), nth=10_000))
    await node.propose(*(b"%d" % number for number in range(50)))
    assert counted.seen <= 2


async def test_raft_driver_restart_replays_all_entries_in_a_new_term(
    vfs: FaultVfs, node: Node
) -> None:
    await node.propose(b"a", b"b")
    await node.stop()
    again = Node(vfs)
    await again.start()
    assert again.listener.payloads == [NO_OP, b"a", b"b", NO_OP]
    assert again.listener.terms == [2]
    assert [entry.term for entry in again.listener.entries] == [1, 1, 1, 2]
    await again.stop()


async def test_raft_driver_start_logs_the_removal_of_an_unfinished_write(
    vfs: FaultVfs, node: Node
) -> None:
    await node.propose(b"a")
    await node.stop()
    file = vfs.open(f"{DIRECTORY}/{0:020d}.log", OpenMode.READ_WRITE)
    file.write_at(file.size(), [b"half of another one"])
    again = Node(vfs)
    with capture_logs() as events:
        await again.start()
    assert [event["event"] for event in events] == ["metadata_log_repaired"]
    assert again.listener.payloads == [NO_OP, b"a", NO_OP]
    await again.stop()


async def test_raft_driver_failed_write_fails_all_proposers_and_the_node(
    vfs: FaultVfs, node: Node
) -> None:
    vfs.inject(Fault(kinds=frozenset({"sync"})))
    failed = asyncio.create_task(node.driver.wait_failed())
    with capture_logs() as events:
        proposals = [node.driver.propose(b"a"), node.driver.propose(b"b")]
        for proposal in proposals:
            with pytest.raises(KafkaStorageError):
                await proposal.committed
        with pytest.raises(KafkaStorageError, match="cannot be written"):
            await failed
    assert "metadata_log_failed" in {event["event"] for event in events}
    assert node.listener.payloads == [NO_OP]
    with pytest.raises(NotControllerError):
        node.driver.propose(b"c")
    assert not node.log_dir.is_online


async def test_raft_driver_stop_succeeds_if_the_disk_fails_meanwhile(
    vfs: FaultVfs, node: Node
) -> None:
    hang = vfs.inject(Fault(effect=DiskFault.HANG, kinds=frozenset({"exists"})))
    node.log_dir.submit(OpKind.READ, lambda: vfs.exists(DIRECTORY))
    stopping = asyncio.ensure_future(node.driver.stop())
    while not hang.hits:
        await asyncio.sleep(0.001)
    await asyncio.wait({stopping}, timeout=0.05)
    assert not stopping.done()
    node.log_dir.go_offline("pulled out")
    vfs.release()
    await stopping


async def test_raft_driver_on_a_full_disk_uses_the_reserve_for_entries_that_do_not_grow(
    memory: MemVfs,
) -> None:
    node = Node(memory, reserve_bytes=10_000)
    await node.log_dir.secure_reserve()
    await node.start()
    limit_free_space(memory, 10)
    with capture_logs() as events:
        await node.propose(b"a")
    assert "log_dir_reserve_released" in {event["event"] for event in events}
    assert "metadata_log_waits" not in {event["event"] for event in events}
    with pytest.raises(LogDirImpairedError, match=r"metadata grow.*/d1 is full"):
        node.driver.propose(b"a topic", grows=True)
    await node.propose(b"b")
    assert node.listener.payloads == [NO_OP, b"a", b"b"]
    await node.stop()


async def test_raft_driver_start_on_a_full_disk_fails_with_the_remedy(
    memory: MemVfs, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.stop()
    limit_free_space(memory, 0)
    again = Node(memory, start_timeout_ms=HOUR_S * 1000)
    with capture_logs() as events:
        starting = asyncio.create_task(again.start())
        await logged(events, "metadata_log_waits")
        assert not starting.done()
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: time.monotonic() + HOUR_S)
        with pytest.raises(StartupError, match=r"/d1 is saturated.*free some space"):
            await starting
    await again.stop()
    memory.capacity_bytes = None
    more = Node(memory)
    await more.start()
    assert more.listener.terms == [2]
    await more.stop()


async def test_raft_driver_start_of_a_new_log_without_space_fails(memory: MemVfs) -> None:
    memory.capacity_inodes = 3
    node = Node(memory)
    with pytest.raises(StartupError, match=r"/d1 is saturated.*free some space"):
        await node.start()
    await node.stop()
