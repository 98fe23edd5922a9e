"""LOOP. ``CommittedLog``: passes the committed entries of the metadata log to a listener, and reads
them.

* Entries are passed to the listener in log order, each once, when the driver publishes them.
* :meth:`reload` passes everything to the listener again, from the newest snapshot on. The event
  loop does other work in between. Entries committed meanwhile wait for the end of the reload.
* A snapshot that is found damaged is not used. The previous snapshot and the log replace it until
  a new snapshot is written.
* The newest entries are cached in memory, within a limit, for the replicas that follow the log.
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

#: A snapshot counts as being sent for this long after a piece of it was read.
READ_WITHIN_MS: Final = 10_000
#: A reader that needs longer for a snapshot has to start again with the newest snapshot.
LONGEST_READ_MS: Final = 600_000
#: Maximum number of snapshots kept, besides the newest ones, because they are being sent.
MAX_IN_USE: Final = 2
#: Small, because the quorum waits for answers meanwhile: 1 MiB would block the event loop for about
#: a third of a second.
_RELOADED_AT_ONCE_BYTES: Final = 64 * 1024


class RaftListener(Protocol):
    """The state to which committed entries and snapshots are applied; the controller implements it.

    Its methods are called in the event loop's thread, in log order.
    """

    def on_reset(self) -> None:
        """Discard the whole state.

        All entries are passed again, or a newer snapshot and the entries after it.
        """
        ...

    def on_snapshot_piece(self, snapshot: Snapshot, piece: bytes) -> None:
        """Apply a piece of a snapshot. Called only before the first entry, or after a reset."""
        ...

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Complete the state. All pieces of ``snapshot`` were passed."""
        ...

    def on_snapshot_due(self) -> None:
        """Start a snapshot of the present state: the newest one is damaged, or a snapshot got due
        while the state was reloaded.
        """
        ...

    def on_commit(self, entry: Entry) -> None:
        """Apply a committed entry."""
        ...

    def on_leader(self, term: int) -> None:
        """Become the leader of ``term``.

        All entries that were committed before have been applied.
        """
        ...

    def on_leader_lost(self) -> None:
        """Stop leading. Entries proposed by this node may never be committed."""
        ...


class CommittedLog:
    """Passes the committed entries and snapshots of the metadata log to a listener, and reads them
    for other replicas.

    All methods must be called in the event loop's thread.
    """

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
        """Create with nothing applied. Call :meth:`load_snapshot` first.

        :param retry_interval_ms: interval between attempts to read from an impaired disk.
        :param term_at: returns the term of the log's entry at an offset; None if it is not known
            any more.
        :param reloaded: called at the end of a reload, with the error that ended it early, or None.
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
        #: Last offset that was passed to the listener; -1 before the first.
        self.offset = -1
        #: Per last offset of a snapshot: times of the first and the last read of a piece of it.
        self._snapshot_reads: dict[int, tuple[int, int]] = {}
        self._reloading: asyncio.Task[None] | None = None
        self._is_left = False

    @property
    def is_reloading(self) -> bool:
        """Whether the listener's state does not correspond to :attr:`offset` at present."""
        return self._reloading is not None or self._is_left

    # --- to the listener -------------------------------------------------------------------------

    async def load_snapshot(self, listener: RaftListener, snapshot: Snapshot | None) -> None:
        """Pass ``snapshot``, the newest one, to the listener at a start.

        :raises InconsistentStorageError: the snapshot, which was intact at loading, is damaged now.
        :raises KafkaStorageError: the metadata directory fails.
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
        """Pass newly committed entries to the listener, unless it is being reloaded.

        :param committed_offset: the last entry to pass; it and all before it must be in the cache.
        :param given: called with the offset of each entry after the listener applied it.
        :returns: whether there was such an entry.
        """
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
        """Start to pass all entries up to and including :attr:`offset` to the listener again.

        The entries come from the newest snapshot and the log after it. ``reloaded`` of the
        constructor is called at the end.
        """
        if self._reloading is not None:
            self._reloading.cancel()
        self._is_left = False
        self._reloading = asyncio.create_task(self._give_all(listener))
        self._reloading.add_done_callback(self._note_end)

    async def leave(self) -> None:
        """Pass no entries to the listener until :meth:`reload`.

        A snapshot from another replica is about to replace the log.
        """
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
        """Reset the listener and pass it the newest intact snapshot.

        :returns: the snapshot's last offset; -1 if there is no snapshot that can be used.
        """
        while True:
            listener.on_reset()
            snapshot = await self._patiently(self.newest_snapshot)
            if snapshot is None or snapshot.last_offset > self.offset:
                return -1
            try:
                await self._give_snapshot(listener, snapshot, _RELOADED_AT_ONCE_BYTES)
            except CorruptRecordError:
                continue  # The store dropped it; the previous snapshot is the newest now.
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
        """Repeat ``read`` while the disk is impaired, and return its result.

        :raises KafkaStorageError: the directory is OFFLINE.
        """
        while True:
            try:
                return await read()
            except LogDirImpairedError:
                await asyncio.sleep(self._retry_interval_ms / 1000)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task is self._reloading and not task.cancelled():
            self._reloading = None
            self._reloaded(task.exception())

    # --- to the replicas that follow -------------------------------------------------------------

    async def read(
        self, from_offset: int, max_bytes: int, max_entries: int = MAX_ENTRIES_PER_READ
    ) -> Sequence[Entry]:
        """Return committed entries from ``from_offset`` on: at least one, and about ``max_bytes``
        at most.

        The result is empty if ``from_offset`` is not committed, or if the log starts later. In the
        second case :meth:`newest_snapshot` contains the entry.

        :param max_entries: needed because the number of small entries decides how long a reader is
            busy.
        :raises LogDirImpairedError: the disk does not answer.
        :raises KafkaStorageError: the metadata directory fails, or the entries are damaged.
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
            found = await self._log_dir.run_operation(
                OpKind.READ, lambda: self._store.read(from_offset, max_bytes, max_entries)
            )
            found = [entry for entry in found if entry.offset <= self.offset]
            self._require_terms(found)
        except CorruptRecordError as e:
            self._log.error("metadata_log_damaged", offset=from_offset, reason=e.message)
            raise KafkaStorageError(f"the metadata log is damaged: {e.message}") from e
        return found

    def _require_terms(self, entries: Sequence[Entry]) -> None:
        """Raise an error unless the terms of ``entries``, read from the disk, match the known
        terms.

        The CRC of an older file does not cover the term.

        :raises CorruptRecordError: a term on the disk changed.
        """
        for entry in entries:
            if self._term_at(entry.offset) not in (None, entry.term):
                raise CorruptRecordError(f"entry {entry.offset} has term {entry.term} on the disk")

    async def newest_snapshot(self) -> Snapshot | None:
        return await self._log_dir.run_operation(OpKind.READ, lambda: self._store.newest_snapshot)

    async def read_snapshot(
        self, last_offset: int, position: int, max_bytes: int
    ) -> SnapshotPiece | None:
        """Return a piece of the snapshot that ends at ``last_offset``; None if it does not exist.
        Errors of the disk are those of :meth:`read`.

        :raises CorruptRecordError: the snapshot is damaged. Later reads return None.
        """
        try:
            found = await self._log_dir.run_operation(
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
        """Return the last offsets of snapshots that must be kept because they are being sent: at
        most ``MAX_IN_USE``, each for at most ``LONGEST_READ_MS``.

        Without this, a follower that receives a snapshot more slowly than the leader writes new
        ones would have to start again each time, and never catch up.
        """
        now_ms = self._clock.now_ms()
        self._snapshot_reads = {
            offset: (first_ms, last_ms)
            for offset, (first_ms, last_ms) in self._snapshot_reads.items()
            if now_ms - last_ms <= READ_WITHIN_MS
        }
        in_use = [
            (first_ms, offset)
            for offset, (first_ms, _) in self._snapshot_reads.items()
            if now_ms - first_ms <= LONGEST_READ_MS
        ]
        return frozenset(offset for _, offset in sorted(in_use)[:MAX_IN_USE])
