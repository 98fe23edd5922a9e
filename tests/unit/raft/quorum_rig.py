"""Three drivers over real directory threads, memory file systems, and a network with partitions."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace

from kraftjbod.core.errors import NotControllerError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.daemon.process.environment import SystemClock
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.log.log_store import RaftLogStore
from kraftjbod.raft.log.snapshot_files import Snapshot
from kraftjbod.raft.machine.messages import (
    Entry,
    EntryKind,
    Message,
    SnapshotSlice,
    node,
)
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet
from tests.faults.rig import open_dir
from tests.faults.vfs_fault import FaultVfs

PATH = "/d1"


NO_OP = b"no-op"


IDS = (1, 2, 3)


def directory_of(node_id: int) -> DirectoryId:
    return DirectoryId(bytes(15) + bytes([node_id]))


class Node:
    """A voter with a listener whose state is the list of payloads."""

    def __init__(
        self, net: Net, node_id: int, vfs: FaultVfs, *, election_timeout_ms: int = 200
    ) -> None:
        self.net, self.node_id, self.vfs = net, node_id, vfs
        self.payloads: list[bytes] = []
        self.offset = -1
        self.led: list[int] = []
        self.lost = self.resets = 0
        self.log_dir = open_dir(vfs, PATH, clock=SystemClock(), io_suspect_ms=100)
        self.log_dir.start_watches()
        self.driver = RaftDriver(
            log_dir=self.log_dir,
            store=RaftLogStore(
                vfs=vfs,
                directory=f"{PATH}/__cluster_metadata-0",
                segment_bytes=500,
                retained_entries=0,
            ),
            clock=SystemClock(),
            node_id=BrokerId(node_id),
            voters=VoterSet.of_keys(map(node, IDS)),
            directory_id=directory_of(node_id),
            first_payload_of_term=NO_OP,
            bytes_between_snapshots=1 << 30,
            max_cached_bytes=1000,
            retry_interval_ms=1,
            transport=net,
            draw_below=random.Random(node_id).randrange,
            election_timeout_ms=election_timeout_ms,
        )

    # --- listener

    def on_reset(self) -> None:
        self.resets += 1
        self.payloads, self.offset = [], -1

    def on_snapshot_piece(self, _snapshot: Snapshot, piece: bytes) -> None:
        self.payloads += piece.split(b",")

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self.offset = snapshot.last_offset

    def on_snapshot_due(self) -> None:
        self._start_snapshot()

    def on_commit(self, entry: Entry) -> None:
        assert entry.offset == self.offset + 1
        self.offset = entry.offset
        if entry.payload != NO_OP and entry.kind is EntryKind.DATA:
            self.payloads.append(entry.payload)

    def on_leader(self, term: int) -> None:
        self.led.append(term)

    def on_leader_lost(self) -> None:
        self.lost += 1

    # --- actions of a test

    async def stop(self) -> None:
        self.net.cut.add(self.node_id)
        await self.driver.stop()
        self.log_dir.close()

    async def propose(self, *payloads: bytes) -> None:
        proposals = [self.driver.propose(payload) for payload in payloads]
        await asyncio.gather(*(proposal.committed for proposal in proposals))

    async def snapshot(self) -> None:
        self._start_snapshot()
        while self.driver.is_snapshotting:
            await asyncio.sleep(0.001)
        assert self.driver.core.log.snapshot.last_offset == self.offset

    async def compact(self) -> None:
        """Make two snapshots, which truncates the log up to the older one."""
        await self.snapshot()
        await self.propose(b"between snapshots")
        await self.snapshot()
        assert self.driver.core.log.base.last_offset == self.offset - 1

    def _start_snapshot(self) -> None:
        term = self.driver.core.log.term_at(self.offset)
        assert term is not None
        self.driver.start_snapshot(self.offset, term, [b",".join(self.payloads)])


class Net:
    """A network in which nodes in ``cut`` neither receive nor deliver messages."""

    def __init__(self) -> None:
        self.cut: set[int] = set()
        self.nodes: dict[int, Node] = {}
        #: Awaited before each slice of a snapshot is delivered.
        self.before_slice: Callable[[], Coroutine[None, None, None]] | None = None
        self._late: set[asyncio.Task[None]] = set()

    async def start(self, node_id: int, vfs: FaultVfs) -> Node:
        self.cut.discard(node_id)
        node = self.nodes[node_id] = Node(self, node_id, vfs)
        await node.driver.start(node)
        return node

    def send(self, message: Message) -> None:
        if isinstance(message, SnapshotSlice) and self.before_slice is not None:
            task = asyncio.create_task(self._deliver_after(self.before_slice(), message))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        else:
            asyncio.get_running_loop().call_soon(self._deliver, message)

    async def _deliver_after(self, work: Coroutine[None, None, None], message: Message) -> None:
        await work
        self._deliver(message)

    def _deliver(self, message: Message) -> None:
        if not {message.sender.node_id, message.to.node_id} & self.cut:
            driver = self.nodes[message.to.node_id].driver
            sender = ReplicaKey(message.sender.node_id, directory_of(message.sender.node_id))
            driver.receive(replace(message, sender=driver.voters.known_as(sender)))

    async def propose(self, payload: bytes) -> Node:
        """Propose ``payload`` until a leader has committed it; return that leader.

        A payload whose leader was deposed may be committed twice.
        """
        while True:
            leader = await self.leader()
            with contextlib.suppress(NotControllerError):
                await leader.propose(payload)
                return leader

    async def leader(self, *, but: int = 0) -> Node:
        found: list[Node] = []
        await until(lambda: found.extend(self._leading(but)) or found)
        return found[0]

    def _leading(self, but: int) -> list[Node]:
        return [n for i, n in self.nodes.items() if n.driver.leads and i != but]


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.005)
