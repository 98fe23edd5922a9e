"""A voter with a ``RaftDriver`` over a real directory thread and a memory file system."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from kraftjbod.core.errors import (
    OperatingError,
)
from kraftjbod.core.ids import BrokerId
from kraftjbod.raft.driver import Proposal, RaftDriver
from kraftjbod.raft.log.log_store import RaftLogStore
from kraftjbod.raft.log.snapshot_files import Snapshot
from kraftjbod.raft.machine.messages import Entry, node
from kraftjbod.raft.machine.voter_set import VoterSet
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.vfs import Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import ManualClock, open_dir

NO_OP = b"no-op"


PATH = "/d1"


DIRECTORY = f"{PATH}/__cluster_metadata-0"


class Listener:
    """A listener that records its calls; its state is the concatenation of all payloads."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.terms: list[int] = []
        self.pieces: list[bytes] = []
        self.snapshots: list[tuple[int, bytes]] = []

    def on_snapshot_piece(self, _snapshot: Snapshot, piece: bytes) -> None:
        self.pieces.append(piece)

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshots.append((snapshot.last_offset, b"".join(self.pieces)))

    def on_commit(self, entry: Entry) -> None:
        self.entries.append(entry)

    def on_leader(self, term: int) -> None:
        self.terms.append(term)

    @property
    def payloads(self) -> list[bytes]:
        return [entry.payload for entry in self.entries]


class Node:
    def __init__(
        self, vfs: Vfs, *, reserve_bytes: int = 0, io_suspect_ms: int = 2000, **options: int
    ) -> None:
        limits = {
            "bytes_between_snapshots": 1 << 30,
            "max_cached_bytes": 1 << 20,
            "max_pending_proposals": 100,
            "retry_interval_ms": 1,
        }
        self.clock = ManualClock()
        self.listener = Listener()
        self._is_stopped = False
        self.log_dir: LogDir = open_dir(
            vfs, PATH, clock=self.clock, reserve_bytes=reserve_bytes, io_suspect_ms=io_suspect_ms
        )
        self.driver = RaftDriver(
            log_dir=self.log_dir,
            store=RaftLogStore(vfs=vfs, directory=DIRECTORY, segment_bytes=500, retained_entries=0),
            clock=self.clock,
            node_id=BrokerId(1),
            voters=VoterSet.of_keys([node(1)]),
            first_payload_of_term=NO_OP,
            **{**limits, **options},
        )

    async def start(self) -> None:
        await self.driver.start(self.listener)

    async def stop(self) -> None:
        """Stop the node once; the fixture may call this again."""
        if not self._is_stopped:
            self._is_stopped = True
            await self.driver.stop()
            self.log_dir.close()

    async def propose(self, *payloads: bytes) -> None:
        proposals = [self.driver.propose(payload) for payload in payloads]
        await asyncio.gather(*(proposal.committed for proposal in proposals))


def limit_free_space(memory: MemVfs, spare_bytes: int) -> None:
    """Limit the free space to ``spare_bytes`` from now on."""
    held = sum(
        file.size()
        for item in memory.list_dir(DIRECTORY)
        if (file := memory.open_if_exists(f"{DIRECTORY}/{item.name}")) is not None
    )
    others = (f"{PATH}/{item.name}" for item in memory.list_dir(PATH))
    found = (memory.open_if_exists(path) for path in others if path != DIRECTORY)
    memory.capacity_bytes = held + spare_bytes + sum(file.size() for file in found if file)


async def logged(events: list[MutableMapping[str, Any]], name: str) -> None:
    while name not in {event["event"] for event in events}:
        await asyncio.sleep(0)


def slices_of(payloads: list[bytes]) -> list[bytes]:
    return [b"state:", *payloads]


async def make_snapshot(node: Node) -> Snapshot:
    before = await node.driver.committed.newest_snapshot()
    offset = node.driver.next_offset - 1
    node.driver.start_snapshot(offset, node.listener.terms[-1], slices_of(node.listener.payloads))
    while (snapshot := await node.driver.committed.newest_snapshot()) == before:
        await asyncio.sleep(0)
    assert snapshot is not None
    return snapshot


async def append_until_lost(node: Node) -> list[Proposal]:
    """Append single entries, with some rolls and two snapshots, until the directory is lost."""
    proposals: list[Proposal] = []
    for number in range(14):
        try:
            proposals.append(node.driver.propose(b"%03d" % number * 60))
        except OperatingError:
            break
        await asyncio.wait([proposals[-1].committed])
        if node.driver.wants_snapshot:
            before = await newest_snapshot_offset(node)
            offset = proposals[-1].entry.offset
            node.driver.start_snapshot(offset, 1, slices_of(node.listener.payloads))
            while node.driver.is_snapshotting:
                await asyncio.sleep(0)
            assert await newest_snapshot_offset(node) >= before
    return proposals


def is_committed(proposal: Proposal) -> bool:
    return proposal.committed.done() and proposal.committed.exception() is None


async def newest_snapshot_offset(node: Node) -> int:
    """Return the last offset of the newest snapshot, or a large number if the directory is lost."""
    if not node.log_dir.is_online:
        return 1 << 30
    newest = await node.driver.committed.newest_snapshot()
    return -1 if newest is None else newest.last_offset
