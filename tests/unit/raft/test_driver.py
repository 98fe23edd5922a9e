"""The driver over a real dir thread and a file system in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, MutableMapping
from errno import ENOSPC
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import (
    KafkaStorageError,
    LogDirImpairedError,
    NotControllerError,
    OperatingError,
    OverloadedError,
    StartupError,
)
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.raft.driver import Proposal, RaftDriver
from kraftjbod.raft.log_store import RaftLogStore, Snapshot
from kraftjbod.raft.messages import Entry
from kraftjbod.storage.dirs.log_dir import LogDir
from kraftjbod.storage.vfs import OpenMode, Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import ManualClock, format_dir, open_dir
from tests.faults.vfs_fault import WRITING_KINDS, Effect, Fault, FaultVfs

NO_OP = b"no-op"
PATH = "/d1"
DIRECTORY = f"{PATH}/__cluster_metadata-0"


class Listener:
    """What a listener heard, and the state that it would have: all payloads, joined."""

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
            voters=[BrokerId(1)],
            first_payload_of_term=NO_OP,
            **{**limits, **options},
        )

    async def start(self) -> None:
        await self.driver.start(self.listener)

    async def stop(self) -> None:
        """Once; the fixture may come second."""
        if not self._is_stopped:
            self._is_stopped = True
            await self.driver.stop()
            self.log_dir.close()

    async def propose(self, *payloads: bytes) -> None:
        proposals = [self.driver.propose(payload) for payload in payloads]
        await asyncio.gather(*(proposal.committed for proposal in proposals))


@pytest.fixture
def memory() -> MemVfs:
    made = MemVfs()
    format_dir(made, PATH, 1)
    return made


@pytest.fixture
def vfs(memory: MemVfs) -> FaultVfs:
    return FaultVfs(memory)


@pytest.fixture
async def node(vfs: FaultVfs) -> AsyncIterator[Node]:
    made = Node(vfs)
    await made.start()
    yield made
    await made.stop()


async def test_a_new_log_is_led_and_takes_proposals(node: Node) -> None:
    assert node.listener.terms == [1]
    assert node.driver.next_offset == 1
    await node.propose(b"a", b"b")
    assert node.listener.payloads == [NO_OP, b"a", b"b"]
    assert node.driver.committed_offset == 2


async def test_the_listener_hears_of_an_entry_before_its_proposer(node: Node) -> None:
    proposal = node.driver.propose(b"a")
    heard = asyncio.Event()
    proposal.committed.add_done_callback(lambda _: heard.set())
    await heard.wait()
    assert node.listener.payloads[-1] == b"a"


async def test_what_is_proposed_during_a_sync_shares_the_next_one(
    vfs: FaultVfs, node: Node
) -> None:
    counted = vfs.inject(Fault(kinds=frozenset({"sync"}), nth=10_000))
    await node.propose(*(b"%d" % number for number in range(50)))
    assert counted.seen <= 2


async def test_a_restart_reads_everything_and_begins_a_new_term(vfs: FaultVfs, node: Node) -> None:
    await node.propose(b"a", b"b")
    await node.stop()
    again = Node(vfs)
    await again.start()
    assert again.listener.payloads == [NO_OP, b"a", b"b", NO_OP]
    assert again.listener.terms == [2]
    assert [entry.term for entry in again.listener.entries] == [1, 1, 1, 2]
    await again.stop()


async def test_a_repair_at_start_is_reported(vfs: FaultVfs, node: Node) -> None:
    await node.propose(b"a")
    await node.stop()
    file = vfs.open(f"{DIRECTORY}/{0:020d}.log", OpenMode.READ_WRITE)
    file.truncate(file.size() - 3)
    again = Node(vfs)
    with capture_logs() as events:
        await again.start()
    assert [event["event"] for event in events] == ["metadata_log_repaired"]
    assert again.listener.payloads == [NO_OP, NO_OP]
    await again.stop()


async def test_a_failed_write_fails_every_proposer_and_the_node(vfs: FaultVfs, node: Node) -> None:
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


def _hold(memory: MemVfs, spare_bytes: int) -> None:
    """From now on there is space for this much more."""
    held = sum(
        file.size()
        for item in memory.list_dir(DIRECTORY)
        if (file := memory.open_if_exists(f"{DIRECTORY}/{item.name}")) is not None
    )
    others = (f"{PATH}/{item.name}" for item in memory.list_dir(PATH))
    found = (memory.open_if_exists(path) for path in others if path != DIRECTORY)
    memory.capacity_bytes = held + spare_bytes + sum(file.size() for file in found if file)


async def _logged(events: list[MutableMapping[str, Any]], name: str) -> None:
    while name not in {event["event"] for event in events}:
        await asyncio.sleep(0)


async def test_what_finds_no_space_is_written_once_there_is_some(
    memory: MemVfs, node: Node
) -> None:
    await node.propose(b"a")
    _hold(memory, 20)
    log = memory.open(f"{DIRECTORY}/{0:020d}.log", OpenMode.READ)
    size_bytes = log.size()
    with capture_logs() as events:
        proposals = [node.driver.propose(b"b"), node.driver.propose(b"c")]
        await _logged(events, "metadata_log_waits")
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


async def test_the_reserve_has_space_for_what_does_not_grow(memory: MemVfs) -> None:
    node = Node(memory, reserve_bytes=10_000)
    await node.log_dir.secure_reserve()
    await node.start()
    _hold(memory, 10)
    with capture_logs() as events:
        await node.propose(b"a")
    assert "log_dir_reserve_released" in {event["event"] for event in events}
    assert "metadata_log_waits" not in {event["event"] for event in events}
    with pytest.raises(LogDirImpairedError, match=r"metadata grow.*/d1 is full"):
        node.driver.propose(b"a topic", grows=True)
    await node.propose(b"b")
    assert node.listener.payloads == [NO_OP, b"a", b"b"]
    await node.stop()


async def test_a_dir_that_does_not_answer_is_waited_for(vfs: FaultVfs) -> None:
    node = Node(vfs, io_suspect_ms=50)
    await node.start()
    node.log_dir.start_watches()
    await node.propose(b"a")
    vfs.inject(Fault(effect=Effect.HANG, kinds=frozenset({"sync"})))
    proposals = [node.driver.propose(b"b")]
    while node.log_dir.state is not LogDirState.STALLED:
        node.clock.ms += 10
        await asyncio.sleep(0.01)
    proposals.append(node.driver.propose(b"c"))
    assert await node.driver.read(1, 100) == node.listener.entries[1:], "the newest are in memory"
    vfs.clear()
    await asyncio.gather(*(proposal.committed for proposal in proposals))
    assert node.listener.payloads == [NO_OP, b"a", b"b", b"c"]
    await node.stop()


async def test_a_start_on_a_full_disk_ends_with_what_to_do(memory: MemVfs, node: Node) -> None:
    await node.stop()
    _hold(memory, 0)
    again = Node(memory, start_timeout_ms=50)
    with (
        capture_logs() as events,
        pytest.raises(StartupError, match=r"/d1 is saturated.*free some space"),
    ):
        await again.start()
    assert "metadata_log_waits" in {event["event"] for event in events}
    await again.stop()
    memory.capacity_bytes = None
    more = Node(memory)
    await more.start()
    assert more.listener.terms == [2]
    await more.stop()


async def test_a_new_log_without_space_does_not_start(memory: MemVfs) -> None:
    memory.capacity_inodes = 3
    node = Node(memory, start_timeout_ms=50)
    with pytest.raises(StartupError, match=r"/d1 is saturated.*free some space"):
        await node.start()
    await node.stop()


@pytest.mark.parametrize("effect", [Effect.ERROR, Effect.SHORT_WRITE])
async def test_no_space_at_each_operation_in_turn(memory: MemVfs, effect: Effect) -> None:
    """What the listener got is what is in the log, whichever operation found no space."""
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
            proposals = await _live_on(node)
        reported = node.listener.payloads
        answered = [p.entry.payload for p in proposals if _is_good(p)]
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


async def _live_on(node: Node) -> list[Proposal]:
    """Entries one by one, with some rolls and two snapshots, until the dir is lost."""
    proposals: list[Proposal] = []
    for number in range(14):
        try:
            proposals.append(node.driver.propose(b"%03d" % number * 60))
        except OperatingError:
            break
        await asyncio.wait([proposals[-1].committed])
        if node.driver.wants_snapshot:
            before = await _state_of_snapshots(node)
            offset = proposals[-1].entry.offset
            node.driver.start_snapshot(offset, 1, _slices(node.listener.payloads))
            while node.driver.is_snapshotting:
                await asyncio.sleep(0)
            assert await _state_of_snapshots(node) >= before
    return proposals


def _is_good(proposal: Proposal) -> bool:
    return proposal.committed.done() and proposal.committed.exception() is None


async def _state_of_snapshots(node: Node) -> int:
    """Last offset of the newest one; a lost dir has what it had."""
    if not node.log_dir.is_online:
        return 1 << 30
    newest = await node.driver.newest_snapshot()
    return -1 if newest is None else newest.last_offset


async def test_too_many_proposals_in_flight_are_refused(vfs: FaultVfs) -> None:
    node = Node(vfs, max_pending_proposals=2)
    await node.start()
    proposals = [node.driver.propose(b"a"), node.driver.propose(b"b")]
    with pytest.raises(OverloadedError):
        node.driver.propose(b"c")
    await asyncio.gather(*(proposal.committed for proposal in proposals))
    await node.stop()


async def test_a_proposer_that_stops_does_not_hear_of_success(node: Node) -> None:
    proposal = node.driver.propose(b"a")
    await node.stop()
    with pytest.raises(NotControllerError, match="is stopping"):
        await proposal.committed


async def test_followers_read_from_memory_and_from_disk(vfs: FaultVfs) -> None:
    node = Node(vfs, max_cached_bytes=1000)
    await node.start()
    payloads = [NO_OP, *(b"payload %d" % number for number in range(40))]
    for payload in payloads[1:]:
        await node.propose(payload)
    reads = vfs.inject(Fault(kinds=frozenset({"read_at"}), nth=10_000))
    assert [e.payload for e in await node.driver.read(39, 1000)] == payloads[39:]
    assert reads.seen == 0
    read: list[bytes] = []
    while found := await node.driver.read(len(read), 100):
        read += [entry.payload for entry in found]
    assert read == payloads
    assert reads.seen > 0
    for first in (0, 39):
        few = await node.driver.read(first, 1000, max_entries=1)
        assert [entry.payload for entry in few] == [payloads[first]]
    await node.stop()


async def test_an_entry_damaged_after_it_was_written_is_not_served(vfs: FaultVfs) -> None:
    node = Node(vfs, max_cached_bytes=0)
    await node.start()
    await node.propose(b"a", b"b", b"c")
    vfs.inject(Fault(effect=Effect.FLIPPED_BIT, kinds=frozenset({"read_at"})))
    with capture_logs() as events, pytest.raises(KafkaStorageError, match="damaged"):
        await node.driver.read(0, 1000)
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


def _slices(payloads: list[bytes]) -> list[bytes]:
    return [b"state:", *payloads]


async def _snapshot(node: Node) -> Snapshot:
    before = await node.driver.newest_snapshot()
    offset = node.driver.next_offset - 1
    node.driver.start_snapshot(offset, node.listener.terms[-1], _slices(node.listener.payloads))
    while (snapshot := await node.driver.newest_snapshot()) == before:
        await asyncio.sleep(0)
    assert snapshot is not None
    return snapshot


async def test_a_snapshot_is_wanted_after_enough_bytes_and_restores(vfs: FaultVfs) -> None:
    node = Node(vfs, bytes_between_snapshots=1000)
    await node.start()
    assert not node.driver.wants_snapshot
    await node.propose(b"a" * 1000)
    assert node.driver.wants_snapshot
    snapshot = await _snapshot(node)
    assert not node.driver.wants_snapshot
    await node.propose(b"b")
    await node.stop()
    again = Node(vfs)
    await again.start()
    state = b"".join(_slices([NO_OP, b"a" * 1000]))
    assert again.listener.snapshots == [(snapshot.last_offset, state)]
    assert again.listener.payloads == [b"b", NO_OP]
    piece = await again.driver.read_snapshot(snapshot.last_offset, 0, 6)
    assert piece == (b"state:", 6)
    await again.stop()


async def test_a_snapshot_waits_for_the_entries_that_it_contains(vfs: FaultVfs, node: Node) -> None:
    vfs.inject(Fault(kinds=frozenset({"sync"}), path="*.log"))
    proposal = node.driver.propose(b"never committed")
    with capture_logs():
        node.driver.start_snapshot(proposal.entry.offset, 1, _slices([]))
        with pytest.raises(KafkaStorageError):
            await proposal.committed
    assert not any(item.name.endswith(".checkpoint") for item in vfs.list_dir(DIRECTORY))


async def test_a_stop_does_not_wait_for_a_snapshot_that_waits(vfs: FaultVfs, node: Node) -> None:
    """It span for ever: the door waits for the loop, and the snapshot never let go of it."""
    vfs.inject(Fault(effect=Effect.HANG, kinds=frozenset({"sync"}), path="*.log"))
    proposal = node.driver.propose(b"not committed yet")
    node.driver.start_snapshot(proposal.entry.offset, 1, _slices([]))
    while not any(item.name.endswith(".part") for item in vfs.list_dir(DIRECTORY)):
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    node.driver.release_waits()
    with capture_logs() as events:
        while node.driver.is_snapshotting:
            await asyncio.sleep(0.001)
    vfs.release()
    # What spins takes pytest's time-out for an error of its own, and would pass.
    assert "metadata_snapshot_failed" not in [event["event"] for event in events]
    assert not any(item.name.endswith(".checkpoint") for item in vfs.list_dir(DIRECTORY))


async def test_a_snapshot_that_meets_a_bug_costs_itself_only(node: Node) -> None:
    def broken() -> Iterator[bytes]:
        yield b"state"
        raise ZeroDivisionError

    with capture_logs() as events:
        node.driver.start_snapshot(0, 1, broken())
        await _logged(events, "metadata_snapshot_failed")
    await node.propose(b"goes on")
    assert (await _snapshot(node)).last_offset == 1


async def test_a_large_snapshot_passes_in_pieces(vfs: FaultVfs) -> None:
    """Neither its writing nor its reading holds all of it."""
    node = Node(vfs)
    await node.start()
    held: list[int] = []
    total, piece_bytes = 20, 1 << 20

    def slices() -> Iterator[bytes]:
        for number in range(total):
            written = [i for i in vfs.list_dir(DIRECTORY) if i.name.endswith(".part")]
            file = vfs.open(f"{DIRECTORY}/{written[0].name}", OpenMode.READ)
            held.append(number * piece_bytes - file.size())
            yield bytes([number]) * piece_bytes

    node.driver.start_snapshot(0, 1, slices())
    while await node.driver.newest_snapshot() is None:
        await asyncio.sleep(0.001)
    assert max(held) <= 2 * piece_bytes
    await node.stop()
    again = Node(vfs)
    await again.start()
    assert max(map(len, again.listener.pieces)) <= piece_bytes
    ((_, state),) = again.listener.snapshots
    assert state == b"".join(bytes([number]) * piece_bytes for number in range(total))
    await again.stop()


async def test_a_snapshot_that_cannot_be_written_is_reported(vfs: FaultVfs, node: Node) -> None:
    vfs.inject(Fault(kinds=frozenset({"write_at"}), path="*.part"))
    with capture_logs() as events:
        node.driver.start_snapshot(0, 1, _slices([]))
        while node.log_dir.is_online:
            await asyncio.sleep(0)
        while "metadata_snapshot_failed" not in {event["event"] for event in events}:
            await asyncio.sleep(0)


async def test_a_snapshot_without_space_waits_for_some(memory: MemVfs) -> None:
    node = Node(memory, bytes_between_snapshots=1000)
    await node.start()
    await node.propose(b"a" * 2000)
    memory.usable_bytes = 1000
    node.log_dir.check_disk()
    while node.log_dir.space.usable_bytes != 1000:
        await asyncio.sleep(0)
    with capture_logs() as events:
        node.driver.start_snapshot(1, 1, _slices(node.listener.payloads))
        await _logged(events, "metadata_snapshot_postponed")
    while node.driver.is_snapshotting:
        await asyncio.sleep(0)
    assert node.log_dir.state is LogDirState.ONLINE
    assert not node.driver.wants_snapshot
    memory.usable_bytes = 10_000
    node.log_dir.check_disk()
    while not node.driver.wants_snapshot:
        await asyncio.sleep(0)
    assert (await _snapshot(node)).last_offset == 1
    await node.stop()
