"""LOOP. ``CommittedLog``: the part of the log that is certain: given to its listener, and read.

* Entries are given in the order of the log, each once, when the driver publishes them.
* :meth:`reload` gives all of it anew, from the newest snapshot on, between other work of the loop;
  what is committed meanwhile waits for its end.
* A snapshot that is found damaged is not given to anyone; the one before it, and the log, do
  without it until another one is made.
* The newest entries stay in memory, within a limit, for those who follow the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from kraftjbod.core import buggify
from kraftjbod.core.errors import (
    CorruptRecordError,
    InconsistentStorageError,
    KafkaStorageError,
    LogDirImpairedError,
)
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.request_limits import MAX_ENTRIES_PER_READ
from kraftjbod.core.telemetry import Logger
from kraftjbod.raft.entry_cache import EntryCache
from kraftjbod.raft.log.log_store import RaftLogStore, SnapshotPiece
from kraftjbod.raft.log.snapshot_files import SNAPSHOT_PIECE_BYTES, Snapshot
from kraftjbod.raft.machine.messages import Entry
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind

T = TypeVar("T")

#: A snapshot of which a piece was read so recently is being sent to a controller or a broker.
_READ_WITHIN_MS: Final = 10_000
#: A reader that takes longer for a snapshot has to start again with the newest one.
_LONGEST_READ_MS: Final = 600_000
#: Snapshots that stay on the disk because they are being sent, beside the newest ones.
_MAX_IN_USE: Final = 2
#: While a quorum waits for answers: a mebibyte would hold up the loop for a third of a second.
_RELOADED_AT_ONCE_BYTES: Final = 64 * 1024


class RaftListener(Protocol):
    """Who applies the log. Called on the loop, in the order of the log."""

    def on_reset(self) -> None:
        """All that was given, or proposed, is void: the log comes again, or a newer snapshot."""
        ...

    def on_snapshot_piece(self, snapshot: Snapshot, piece: bytes) -> None:
        """Some of the whole state; only before the first entry, or after a reset."""
        ...

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """All pieces were given."""
        ...

    def on_snapshot_due(self) -> None:
        """The newest snapshot is damaged: another one of the present state is needed."""
        ...

    def on_commit(self, entry: Entry) -> None: ...

    def on_leader(self, term: int) -> None:
        """This node leads; everything committed before has been given to the listener already."""
        ...

    def on_leader_lost(self) -> None:
        """It does not any more; nothing may be built on what it proposed."""
        ...


class CommittedLog:
    """For the loop's thread."""

    def __init__(
        self,
        *,
        log_dir: LogDir,
        store: RaftLogStore,
        clock: Clock,
        log: Logger,
        max_cached_bytes: int,
        retry_interval_ms: int,
        term_at: Callable[[int], int | None],
        reloaded: Callable[[BaseException | None], None],
        snapshot_damaged: Callable[[], None],
    ) -> None:
        """
        :param term_at: term of the log's entry at an offset; None if it is not known any more.
        :param reloaded: called at the end of a reload, with the error that ended it early.
        :param snapshot_damaged: called to request another snapshot.
        """
        self._log_dir = log_dir
        self._store = store
        self._clock = clock
        self._log = log
        self._retry_interval_ms = retry_interval_ms
        self._term_at = term_at
        self._reloaded = reloaded
        self._snapshot_damaged = snapshot_damaged
        #: Written entries, committed or not.
        self.cache = EntryCache(max_cached_bytes)
        #: Given to the listener; -1 before the first.
        self.offset = -1
        #: By last offset of a snapshot, when a piece of it was read first and last.
        self._snapshot_reads: dict[int, tuple[int, int]] = {}
        self._reloading: asyncio.Task[None] | None = None
        self._is_left = False

    @property
    def is_reloading(self) -> bool:
        """The listener's state is not that of :attr:`offset`, now or soon."""
        return self._reloading is not None or self._is_left

    # --- to the listener -------------------------------------------------------------------------

    async def begin(self, listener: RaftListener, snapshot: Snapshot | None) -> None:
        """Give what a start begins with.

        :raises InconsistentStorageError: the snapshot was sound a moment ago, and is not any more.
        """
        if snapshot is not None:
            self.offset = snapshot.last_offset
            try:
                await self._give_snapshot(listener, snapshot)
            except CorruptRecordError as e:
                raise InconsistentStorageError(f"{e.message}; start again, without it") from e

    def publish(
        self,
        listener: RaftListener,
        committed_offset: int,
        given: Callable[[int], None],
    ) -> bool:
        """Give what is committed now, and say so entry by entry; whether there was any."""
        if committed_offset <= self.offset or self.is_reloading:
            return False
        for offset in range(self.offset + 1, committed_offset + 1):
            entry = self.cache[offset]
            assert entry.term == self._term_at(offset), f"{entry} is not the committed entry"
            self.offset = offset
            listener.on_commit(entry)
            given(offset)
        return True

    def reload(self, listener: RaftListener) -> None:
        """Give everything anew, as far as it was given, or is in the newest snapshot."""
        if self._reloading is not None:
            self._reloading.cancel()
        self._is_left = False
        self._reloading = asyncio.create_task(self._give_all(listener))
        self._reloading.add_done_callback(self._note_end)

    async def leave(self) -> None:
        """Give nothing until :meth:`reload`: a snapshot from elsewhere takes the log's place."""
        self._is_left = True
        await self.stop_reload()

    async def stop_reload(self) -> None:
        reloading, self._reloading = self._reloading, None
        if reloading is not None:
            reloading.cancel()
            await asyncio.gather(reloading, return_exceptions=True)

    async def _give_all(self, listener: RaftListener) -> None:
        began_ms = self._clock.now_ms()
        given = await self._give_newest_snapshot(listener)
        while given < self.offset:
            read = partial(self.read, given + 1, _RELOADED_AT_ONCE_BYTES)
            entries = await self._patiently(read)
            if not entries:
                raise KafkaStorageError(
                    f"the metadata log does not reach back to {given + 1}, and no snapshot does"
                )
            for entry in entries:
                listener.on_commit(entry)
                given = entry.offset
            await asyncio.sleep(0)
        took_ms = self._clock.now_ms() - began_ms
        self._log.info("metadata_reloaded", offset=given, took_ms=took_ms)

    async def _give_newest_snapshot(self, listener: RaftListener) -> int:
        """Give the newest sound one, after a reset; its last offset, -1 if there is none."""
        while True:
            listener.on_reset()
            snapshot = await self._patiently(self.newest_snapshot)
            if snapshot is None or snapshot.last_offset > self.offset:
                return -1
            try:
                await self._give_snapshot(listener, snapshot, _RELOADED_AT_ONCE_BYTES)
            except CorruptRecordError:
                continue  # It is forgotten; the one before it is the newest now.
            return snapshot.last_offset

    async def _give_snapshot(
        self, listener: RaftListener, snapshot: Snapshot, piece_bytes: int = SNAPSHOT_PIECE_BYTES
    ) -> None:
        position = 0
        while position >= 0:
            read = partial(self.read_snapshot, snapshot.last_offset, position, piece_bytes)
            found = await self._patiently(read)
            if found is None:
                raise CorruptRecordError(f"{snapshot.file_name} was found damaged by another read")
            position = found.next_position
            listener.on_snapshot_piece(snapshot, found.data)
        listener.on_snapshot(snapshot)

    async def _patiently(self, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """A disk that does not answer now may do so later; OFFLINE ends it."""
        while True:
            try:
                return await read()
            except LogDirImpairedError:
                await asyncio.sleep(self._retry_interval_ms / 1000)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task is self._reloading and not task.cancelled():
            self._reloading = None
            self._reloaded(task.exception())

    # --- to those who follow ---------------------------------------------------------------------

    async def read(
        self, from_offset: int, max_bytes: int, max_entries: int = MAX_ENTRIES_PER_READ
    ) -> Sequence[Entry]:
        """Committed entries from ``from_offset`` on, about ``max_bytes`` and at least one.

        Most entries are small: it is their number that decides how long a reader is busy.

        Empty if there is none, or if the log does not reach back so far: see
        :meth:`newest_snapshot`.

        :raises KafkaStorageError: if the metadata dir fails.
        """
        if from_offset > self.offset:
            return ()
        if buggify.is_on and buggify.fires("raft.small_read"):
            max_entries = 1
        is_cached = from_offset in self.cache
        if is_cached and not (buggify.is_on and buggify.fires("raft.not_in_memory")):
            end = min(self.offset + 1, from_offset + max_entries)
            return self.cache.read(from_offset, end, max_bytes)
        try:
            found = await self._log_dir.run(
                OpKind.READ, lambda: self._store.read(from_offset, max_bytes, max_entries)
            )
            found = [entry for entry in found if entry.offset <= self.offset]
            self._require_terms(found)
        except CorruptRecordError as e:
            self._log.error("metadata_log_damaged", offset=from_offset, reason=e.message)
            raise KafkaStorageError(f"the metadata log is damaged: {e.message}") from e
        return found

    def _require_terms(self, entries: Sequence[Entry]) -> None:
        """:raises CorruptRecordError: a term changed on the disk; its CRC may not cover that."""
        for entry in entries:
            if self._term_at(entry.offset) not in (None, entry.term):
                raise CorruptRecordError(f"entry {entry.offset} has term {entry.term} on the disk")

    async def newest_snapshot(self) -> Snapshot | None:
        return await self._log_dir.run(OpKind.READ, lambda: self._store.newest_snapshot)

    async def read_snapshot(
        self, last_offset: int, position: int, max_bytes: int
    ) -> SnapshotPiece | None:
        """A piece of that snapshot; None if it is gone.

        :raises CorruptRecordError: it is damaged, and gone from now on.
        """
        try:
            found = await self._log_dir.run(
                OpKind.READ, lambda: self._store.read_snapshot(last_offset, position, max_bytes)
            )
        except CorruptRecordError as e:
            self._log.error("metadata_snapshot_damaged", reason=e.message)
            self._snapshot_damaged()
            raise
        if found is not None:
            now_ms = self._clock.now_ms()
            first_ms, _ = self._snapshot_reads.get(last_offset, (now_ms, now_ms))
            self._snapshot_reads[last_offset] = first_ms, now_ms
        return found

    def snapshots_in_use(self) -> frozenset[int]:
        """Return the last offsets of snapshots that are being sent, and have to stay for that.

        Otherwise a follower that takes longer for a snapshot than the leader takes for the next
        ones never catches up: it would have to start again and again.
        """
        now_ms = self._clock.now_ms()
        self._snapshot_reads = {
            offset: (first_ms, last_ms)
            for offset, (first_ms, last_ms) in self._snapshot_reads.items()
            if now_ms - last_ms <= _READ_WITHIN_MS
        }
        in_use = [
            (first_ms, offset)
            for offset, (first_ms, _) in self._snapshot_reads.items()
            if now_ms - first_ms <= _LONGEST_READ_MS
        ]
        return frozenset(offset for _, offset in sorted(in_use)[:_MAX_IN_USE])
