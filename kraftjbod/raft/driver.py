"""LOOP. ``RaftDriver``: carries out what ``RaftCore`` asks on a metadata log dir.

* one task persists: term and vote, then entries; what is proposed while a sync runs shares the
  next one (group commit);
* an entry is given to the listener, and its proposer answered, once it is committed, in order;
* the newest entries stay in memory, within a limit, for those who follow the log;
* what a full disk or one that does not answer keeps from being written is written when it can be,
  in its order; who proposed it waits, and log_space.py says what may still be proposed (KIP-928);
* any other failure to persist ends it: ``wait_failed`` raises, and every proposer hears it.

Snapshots are made of slices that the caller encodes from an immutable copy, between other work of
the loop, and are written beside the log's appends. One that finds no free space is left for later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from kraftjbod.core.errors import (
    CorruptRecordError,
    KafkaStorageError,
    LogDirImpairedError,
    NotControllerError,
    OperatingError,
    OverloadedError,
    StartupError,
)
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.request_limits import MAX_ENTRIES_PER_READ
from kraftjbod.core.telemetry import get_logger
from kraftjbod.raft.core import NOTHING, RaftCore, Role
from kraftjbod.raft.log_space import LogSpace
from kraftjbod.raft.log_store import SNAPSHOT_PIECE_BYTES, RaftLogStore, Snapshot
from kraftjbod.raft.messages import Entry, Ready, SnapshotId
from kraftjbod.raft.voter_set import ReplicaKey, VoterSet
from kraftjbod.storage.dirs.log_dir import LogDir
from kraftjbod.storage.dirs.log_dir_policy import OpKind

#: What an entry costs in memory beside its payload.
_ENTRY_OVERHEAD_BYTES: Final = 200
#: Of a snapshot.
_WRITTEN_AT_ONCE_BYTES: Final = 256 * 1024


class RaftListener(Protocol):
    """Who applies the log. Called on the loop, in the order of the log."""

    def on_snapshot_piece(self, snapshot: Snapshot, piece: bytes) -> None:
        """Some of the whole state; only before the first entry."""
        ...

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """All pieces were given."""
        ...

    def on_commit(self, entry: Entry) -> None: ...

    def on_leader(self, term: int) -> None:
        """This node leads; everything committed before has been given to the listener already."""
        ...


class Proposal(NamedTuple):
    """An entry on its way; ``committed`` is done when it is."""

    entry: Entry
    committed: asyncio.Future[None]


class RaftDriver:
    """The metadata log of this node. All methods are for the loop's thread."""

    def __init__(
        self,
        *,
        log_dir: LogDir,
        store: RaftLogStore,
        clock: Clock,
        node_id: BrokerId,
        voters: Collection[BrokerId],
        first_payload_of_term: bytes,
        bytes_between_snapshots: int,
        max_cached_bytes: int,
        max_pending_proposals: int = 10_000,
        kept_free_bytes: int = 0,
        retry_interval_ms: int = 500,
        start_timeout_ms: int = 30_000,
    ) -> None:
        """
        :param kept_free_bytes: what is never used up of a full disk, but to start again.
        :param retry_interval_ms: how often an impaired disk is tried again.
        :param start_timeout_ms: how long a start waits for an impaired disk.
        """
        self._log_dir = log_dir
        self._space = LogSpace(log_dir=log_dir, last_bytes=kept_free_bytes)
        self._retry_interval_ms = retry_interval_ms
        self._start_timeout_ms = start_timeout_ms
        self._store = store
        self._clock = clock
        self._node_id = node_id
        self._voters = voters
        self._first_payload_of_term = first_payload_of_term
        self._bytes_between_snapshots = bytes_between_snapshots
        self._max_cached_bytes = max_cached_bytes
        self._max_pending_proposals = max_pending_proposals
        self._log = get_logger(component="raft", node_id=node_id)
        self._core: RaftCore | None = None
        self._listener: RaftListener | None = None
        #: Given to the listener; -1 before the first.
        self.committed_offset = -1
        #: The newest entries by offset, without gaps; the first are forgotten beyond the limit.
        self._tail: dict[int, Entry] = {}
        self._tail_start = 0
        self._tail_bytes = 0
        self._is_stopping = False
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._work = asyncio.Event()
        self._progress = asyncio.Event()
        self._bytes_since_snapshot = 0
        #: Size of the last snapshot that found no free space; 0 if the last one did.
        self._snapshot_needs_bytes = 0
        self._persisting: asyncio.Task[None] | None = None
        self._snapshotting: asyncio.Task[None] | None = None

    # --- life ------------------------------------------------------------------------------------

    async def start(self, listener: RaftListener) -> None:
        """Load, give the listener everything, and lead.

        :raises StartupError: if the log cannot be read, or not be written for want of free space.
        :raises KafkaStorageError: if the metadata dir fails.
        """
        try:
            stored = await self._log_dir.run(OpKind.LOAD, self._store.open)
        except LogDirImpairedError as e:
            raise self._impaired_at_start() from e
        for warning in stored.warnings:
            self._log.warning("metadata_log_repaired", what=warning)
        self._listener = listener
        if stored.snapshot is not None:
            self.committed_offset = stored.snapshot.last_offset
            await self._give_snapshot(listener, stored.snapshot)
        found = stored.snapshot
        self._core = RaftCore(
            key=ReplicaKey(self._node_id),
            voters=VoterSet.of(map(ReplicaKey, self._voters)),
            hard_state=stored.hard_state,
            first_payload_of_term=self._first_payload_of_term,
            draw_below=_no_draw,
            snapshot=NOTHING if found is None else SnapshotId(found.last_offset, found.term),
            entries=stored.entries,
        )
        for entry in stored.entries:
            self._remember(entry)
        await self._lead(self._core)
        listener.on_leader(self._core.term)
        self._persisting = asyncio.create_task(self._persist(self._core))

    async def _give_snapshot(self, listener: RaftListener, snapshot: Snapshot) -> None:
        position = 0
        while position >= 0:
            found = await self.read_snapshot(snapshot.last_offset, position, SNAPSHOT_PIECE_BYTES)
            assert found is not None, "only a newer one takes its place"
            piece, position = found
            listener.on_snapshot_piece(snapshot, piece)
        listener.on_snapshot(snapshot)

    def release_waits(self) -> None:
        """Those who wait for entries to come are answered now: there will be none."""
        self._is_stopping = True
        self._progress.set()

    async def stop(self) -> None:
        """End what runs; proposals that are not committed yet fail."""
        self.release_waits()
        for task in (self._snapshotting, self._persisting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._fail_waiters(NotControllerError("the controller is stopping"))
        # Files of a disk that does not answer are left to the end of the process.
        answers = self._log_dir.state in (LogDirState.ONLINE, LogDirState.SATURATED)
        if self._core is not None and answers:
            await self._log_dir.run(OpKind.CLOSE, self._store.close)

    async def wait_failed(self) -> None:
        """Only ever raises.

        :raises KafkaStorageError: the metadata dir is lost.
        """
        assert self._persisting is not None, "start() comes first"
        await asyncio.shield(self._persisting)

    # --- proposing -------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """Of the entries that are proposed now."""
        return self._required_core().term

    @property
    def next_offset(self) -> int:
        """Offset of the next entry to be proposed."""
        return self._required_core().last_offset + 1

    def propose(self, payload: bytes, *, grows: bool = False) -> Proposal:
        """Append an entry; several may be in flight.

        :param grows: whether it takes space for good, which a full disk does not have.
        :raises NotControllerError: if this node does not lead.
        :raises OverloadedError: if too many are in flight.
        :raises LogDirImpairedError: if the disk is full; the message says which one.
        """
        self.require_may_propose([payload], grows=grows)
        entry = self._required_core().propose(payload)
        self._space.note_proposed(_size_bytes(entry))
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        committed.add_done_callback(_mark_seen)
        self._waiters[entry.offset] = committed
        self._work.set()
        return Proposal(entry, committed)

    def require_may_propose(self, payloads: Sequence[bytes], *, grows: bool = False) -> None:
        """Pass if :meth:`propose` takes all of ``payloads`` now; raises as that does."""
        if len(self._waiters) + len(payloads) > self._max_pending_proposals:
            raise OverloadedError(f"{len(self._waiters)} metadata entries are being written")
        if self._persisting is None or self._persisting.done():
            raise NotControllerError("the metadata log is closed")
        size_bytes = sum(len(payload) + _ENTRY_OVERHEAD_BYTES for payload in payloads)
        self._space.require(size_bytes, grows=grows)

    # --- following -------------------------------------------------------------------------------

    async def wait_for(self, offset: int, timeout_ms: int) -> None:
        """Return when ``offset`` is committed, or after ``timeout_ms`` at the latest."""
        deadline_ms = self._clock.now_ms() + timeout_ms
        while self.committed_offset < offset and not self._is_stopping:
            left_ms = deadline_ms - self._clock.now_ms()
            if left_ms <= 0:
                return
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._progress.wait()
            except TimeoutError:
                return

    async def read(
        self, from_offset: int, max_bytes: int, max_entries: int = MAX_ENTRIES_PER_READ
    ) -> Sequence[Entry]:
        """Committed entries from ``from_offset`` on, about ``max_bytes`` and at least one.

        Most entries are small: it is their number that decides how long a reader is busy.

        Empty if there is none, or if the log does not reach back so far: see
        :meth:`newest_snapshot`.

        :raises KafkaStorageError: if the metadata dir fails.
        """
        if from_offset > self.committed_offset:
            return ()
        if from_offset in self._tail:
            return self._read_tail(from_offset, max_bytes, max_entries)
        try:
            found = await self._log_dir.run(
                OpKind.READ, lambda: self._store.read(from_offset, max_bytes, max_entries)
            )
        except CorruptRecordError as e:
            self._log.error("metadata_log_damaged", offset=from_offset, reason=e.message)
            raise KafkaStorageError(f"the metadata log is damaged: {e.message}") from e
        return [entry for entry in found if entry.offset <= self.committed_offset]

    async def newest_snapshot(self) -> Snapshot | None:
        return await self._log_dir.run(OpKind.READ, lambda: self._store.newest_snapshot)

    async def read_snapshot(
        self, last_offset: int, position: int, max_bytes: int
    ) -> tuple[bytes, int] | None:
        """A piece of that snapshot and the next position (-1 at the end); None if it is gone."""
        return await self._log_dir.run(
            OpKind.READ, lambda: self._store.read_snapshot(last_offset, position, max_bytes)
        )

    # --- snapshots -------------------------------------------------------------------------------

    @property
    def is_snapshotting(self) -> bool:
        return self._snapshotting is not None and not self._snapshotting.done()

    @property
    def wants_snapshot(self) -> bool:
        """Enough was written since the last one, none is being made, and it finds space."""
        is_due = self._bytes_since_snapshot >= self._bytes_between_snapshots
        return not self.is_snapshotting and is_due and self._space.has(self._snapshot_needs_bytes)

    def start_snapshot(self, last_offset: int, term: int, slices: Iterable[bytes]) -> None:
        """Make a snapshot of the state after ``last_offset``, which may not be committed yet.

        ``slices`` is drawn from piece by piece, between other work of the loop.
        """
        self._bytes_since_snapshot = 0
        self._snapshotting = asyncio.create_task(self._snapshot(last_offset, term, slices))
        self._snapshotting.add_done_callback(self._note_snapshot_end)

    async def _snapshot(self, last_offset: int, term: int, slices: Iterable[bytes]) -> None:
        # The flush queue, so that entries are appended meanwhile.
        run = partial(self._log_dir.run, OpKind.FLUSH)
        part = await run(lambda: self._store.begin_snapshot(last_offset, term))
        for piece in _gathered(slices):
            await asyncio.sleep(0)
            needed_bytes = part.size_bytes + len(piece)
            if not self._space.has(needed_bytes):
                self._snapshot_needs_bytes = needed_bytes
                self._bytes_since_snapshot += self._bytes_between_snapshots
                self._log.warning(
                    "metadata_snapshot_postponed", size_bytes=needed_bytes, reason="no space"
                )
                await run(part.discard)
                return
            await run(partial(part.append, piece))
        self._snapshot_needs_bytes = 0
        while self.committed_offset < last_offset:
            if self._is_stopping:
                return  # What it speaks of may never be committed.
            await self._progress.wait()
        snapshot = await run(part.finish)
        await self._log_dir.run(OpKind.CHECKPOINT, lambda: self._store.install_snapshot(snapshot))
        self._required_core().compact(SnapshotId(last_offset, term))
        self._log.info(
            "metadata_snapshot_written", last_offset=last_offset, size_bytes=part.size_bytes
        )

    def _note_snapshot_end(self, task: asyncio.Task[None]) -> None:
        """A snapshot that cannot be written leaves the log as it was: logged, and tried later."""
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            bug = None if isinstance(error, OperatingError) else error
            self._log.warning("metadata_snapshot_failed", reason=str(error), exc_info=bug)

    # --- inside ----------------------------------------------------------------------------------

    def _required_core(self) -> RaftCore:
        assert self._core is not None, "start() comes first"
        return self._core

    async def _lead(self, core: RaftCore) -> None:
        """:raises StartupError: the disk is full or does not answer, and stays so."""
        core.campaign()
        try:
            async with asyncio.timeout(self._start_timeout_ms / 1000):
                while (ready := core.ready()) or core.role is not Role.LEADER:
                    await self._carry_out(core, ready)
        except TimeoutError as e:
            raise self._impaired_at_start() from e

    def _impaired_at_start(self) -> StartupError:
        log_dir = self._log_dir
        return StartupError(
            f"metadata.log.dir {log_dir.path} is {log_dir.state.value} "
            f"({log_dir.impaired_reason}), so the metadata log cannot be written; free some space "
            "there, or repair the disk, and start again"
        )

    async def _persist(self, core: RaftCore) -> None:
        try:
            while True:
                self._work.clear()
                while ready := core.ready():
                    await self._carry_out(core, ready)
                await self._work.wait()
        except OperatingError as e:
            # Whatever kept the entry from the disk, nobody may build on it any more.
            lost = KafkaStorageError(f"the metadata log cannot be written: {e.message}")
            self._log.error("metadata_log_failed", reason=e.message)
            self._fail_waiters(lost)
            raise lost from e

    async def _carry_out(self, core: RaftCore, ready: Ready) -> None:
        hard_state, entries = ready.hard_state, ready.entries
        if hard_state is not None:
            await self._until_written(lambda: self._store.write_hard_state(hard_state))
            core.hard_state_persisted(hard_state)
        if entries:
            wall_ms = self._clock.wall_ms()
            await self._until_written(lambda: self._store.append(entries, wall_ms))
            for entry in entries:
                self._remember(entry)
                if entry.offset in self._waiters:
                    self._space.note_written(_size_bytes(entry))
            core.entries_persisted(entries[-1])
        self._publish(core.applicable_offset)

    async def _until_written(self, write: Callable[[], None]) -> None:
        """Tried again for as long as the dir is impaired; OFFLINE ends it, and so does a stop.

        What fails for want of free space leaves nothing behind, so it may be done again.

        :raises KafkaStorageError: the dir is or goes offline.
        """
        failures = 0
        while True:
            is_full = self._log_dir.state is LogDirState.SATURATED
            try:
                # On a full disk this is one of the things that the reserve was kept for.
                await self._log_dir.run(OpKind.CHECKPOINT if is_full else OpKind.APPEND, write)
            except LogDirImpairedError as e:
                failures += 1
                self._space.note_no_space()
                if failures == 1:
                    # The reserve may have been released just now: its space is tried at once.
                    continue
                if failures == 2:
                    self._log.warning("metadata_log_waits", state=e.state, reason=e.message)
                self._space.is_waiting = True
                await asyncio.sleep(self._retry_interval_ms / 1000)
            else:
                if failures > 1:
                    self._log.info("metadata_log_goes_on")
                self._space.is_waiting = False
                return

    def _publish(self, committed_offset: int) -> None:
        """Give the listener what is committed now; the waiters are answered after that."""
        if committed_offset <= self.committed_offset:
            return
        assert self._listener is not None
        for offset in range(self.committed_offset + 1, committed_offset + 1):
            self.committed_offset = offset
            self._listener.on_commit(self._tail[offset])
            waiter = self._waiters.pop(offset, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        self._trim_tail()
        self._progress.set()
        self._progress = asyncio.Event()

    def _remember(self, entry: Entry) -> None:
        if not self._tail:
            self._tail_start = entry.offset
        self._tail[entry.offset] = entry
        self._tail_bytes += _size_bytes(entry)
        self._bytes_since_snapshot += _size_bytes(entry)

    def _trim_tail(self) -> None:
        while self._tail_bytes > self._max_cached_bytes:
            if self._tail_start >= self.committed_offset:
                return
            self._tail_bytes -= _size_bytes(self._tail.pop(self._tail_start))
            self._tail_start += 1
            self._required_core().log.release(self._tail_start)

    def _read_tail(self, from_offset: int, max_bytes: int, max_entries: int) -> list[Entry]:
        found: list[Entry] = []
        size_bytes = 0
        end = min(self.committed_offset + 1, from_offset + max_entries)
        for offset in range(from_offset, end):
            entry = self._tail[offset]
            size_bytes += len(entry.payload)
            if found and size_bytes > max_bytes:
                break
            found.append(entry)
        return found

    def _fail_waiters(self, error: OperatingError) -> None:
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()


def _no_draw(_bound: int) -> int:
    """One voter waits for nobody, so that its time-outs need no luck."""
    return 0


def _size_bytes(entry: Entry) -> int:
    return len(entry.payload) + _ENTRY_OVERHEAD_BYTES


def _gathered(slices: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in larger pieces, each worth a write."""
    gathered = bytearray()
    for piece in slices:
        gathered += piece
        if len(gathered) >= _WRITTEN_AT_ONCE_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


def _mark_seen(committed: asyncio.Future[None]) -> None:
    """A proposer that went away need not read its outcome."""
    if not committed.cancelled():
        committed.exception()
