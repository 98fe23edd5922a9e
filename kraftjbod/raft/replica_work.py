"""LOOP. ``ReplicaWork``: disk work of a quorum with several voters, done while messages are sent.

* Entries and snapshot slices are written in order. Successive entries share one write. Meanwhile
  the driver continues to send messages and heartbeats.
* Entries and slices that a peer needs and that are no longer in memory are read from the disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from kraftjbod.core import buggify
from kraftjbod.core.errors import (
    CorruptRecordError,
    LogDirImpairedError,
    OperatingError,
)
from kraftjbod.core.telemetry import Logger
from kraftjbod.raft.log.log_store import RaftLogStore, SnapshotPiece
from kraftjbod.raft.log.log_writer import LogWriter
from kraftjbod.raft.log.snapshot_files import SNAPSHOT_PIECE_BYTES, SnapshotPart
from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.leadership import MAX_APPEND_BYTES, MAX_APPEND_ENTRIES
from kraftjbod.raft.machine.messages import (
    Entry,
    ReadEntries,
    ReadSnapshot,
    SnapshotId,
    SnapshotSlice,
)
from kraftjbod.raft.machine.voter_set import VoterSet
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind

#: A slice of a snapshot under simulation, in some cases.
_SMALL_SLICE_BYTES: Final = 300
#: How long a write is sometimes delayed in simulation, so that messages overtake it.
_LATE_WRITE_S: Final = 0.02


class Writable(NamedTuple):
    """Entries of one ``Ready`` to write, and their generation (:attr:`EntryLog.generation`)."""

    entries: tuple[Entry, ...]
    generation: int


class ReplicaWork:
    """Writes entries and snapshot slices for one replica's state machine in order, and reads
    entries and slices for its peers.

    All methods must be called in the event loop's thread.
    """

    def __init__(
        self,
        *,
        log_dir: LogDir,
        store: RaftLogStore,
        writer: LogWriter,
        log: Logger,
        append: Callable[[tuple[Entry, ...], int], Awaitable[None]],
        before_install: Callable[[], Awaitable[None]],
        installed: Callable[[SnapshotId], None],
        snapshot_failed: Callable[[OperatingError], None],
        changed: Callable[[], None],
        read_entries: Callable[[int, int, int], Awaitable[Sequence[Entry]]],
        read_snapshot: Callable[[int, int, int], Awaitable[SnapshotPiece | None]],
    ) -> None:
        """Create without work. Call :meth:`run_writes` to process the queue.

        :param append: makes entries of a generation durable and notifies the state machine.
        :param before_install: stops all work on the log that is about to be replaced by a snapshot.
        :param installed: called after a snapshot of another replica has replaced the log.
        :param snapshot_failed: called with the error if a snapshot could not be received.
        :param changed: called when the state machine has something to do.
        :param read_entries: :meth:`CommittedLog.read`. Evicted entries are always committed; later
            entries on the disk may be about to be replaced.
        :param read_snapshot: :meth:`CommittedLog.read_snapshot`.
        """
        self._log_dir = log_dir
        self._store = store
        self._writer = writer
        self._log = log
        self._append = append
        self._before_install = before_install
        self._installed = installed
        self._snapshot_failed = snapshot_failed
        self._changed = changed
        self._read_entries = read_entries
        self._read_snapshot = read_snapshot
        self._queue: deque[Writable | SnapshotSlice] = deque()
        self._work = asyncio.Event()
        self._part: SnapshotPart | None = None
        self._reads: set[asyncio.Task[None]] = set()
        #: Completes with the error of a failed read.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write_later(self, item: Writable | SnapshotSlice) -> None:
        """Queue a write.

        The limits of the leader (``MAX_IN_FLIGHT``) and of proposals bound the queue.
        """
        self._queue.append(item)
        self._work.set()

    async def run_writes(self, core: RaftCore) -> None:
        """Carry out the queued writes until cancelled.

        :raises KafkaStorageError: the metadata directory fails.
        """
        while True:
            self._work.clear()
            while self._queue:
                item = self._queue.popleft()
                if buggify.is_on and buggify.fires("raft.late_write"):
                    await asyncio.sleep(_LATE_WRITE_S)
                if isinstance(item, SnapshotSlice):
                    await self._take_slice(core, item)
                else:
                    await self._append(*self._with_followers(item))
                self._changed()
            if self._is_part_covered(core):
                # After a refusal of an impaired disk, the next commit repeats this.
                with suppress(LogDirImpairedError):
                    await self.drop_part()
            await self._work.wait()

    def _with_followers(self, first: Writable) -> Writable:
        """Return ``first`` with the queued entries that directly follow it, for one write and one
        sync.

        The generation is the one of the last entries.
        """
        entries, generation = first
        if buggify.is_on and buggify.fires("raft.separate_writes"):
            return first
        while self._queue:
            following = self._queue[0]
            if isinstance(following, SnapshotSlice):
                break
            if following.entries[0].offset != entries[-1].offset + 1:
                break
            entries, generation = entries + following.entries, following.generation
            self._queue.popleft()
        return Writable(entries, generation)

    # --- receiving a snapshot --------------------------------------------------------------------

    def note_committed(self, core: RaftCore) -> None:
        """Remove the received part of a snapshot soon if the log covers it now: a new leader may
        have sent the entries instead.
        """
        if self._is_part_covered(core):
            self._work.set()

    def _is_part_covered(self, core: RaftCore) -> bool:
        return self._part is not None and self._part.last_offset <= core.committed_offset

    async def drop_part(self) -> None:
        """Close and remove the received part of a snapshot, if there is any.

        :raises KafkaStorageError: the metadata directory fails.
        :raises LogDirImpairedError: the disk hangs. The part stays.
        """
        part = self._part
        if part is not None:
            await self._log_dir.run_operation(OpKind.FLUSH, part.discard)
            self._part = None

    async def _take_slice(self, core: RaftCore, taken: SnapshotSlice) -> None:
        try:
            await self._write_slice(core, taken)
        except (LogDirImpairedError, CorruptRecordError) as e:
            # The leader sends the snapshot again from the beginning, which discards the part.
            self._snapshot_failed(e)
            core.snapshot_discarded()

    async def _write_slice(self, core: RaftCore, taken: SnapshotSlice) -> None:
        run = partial(self._log_dir.run_operation, OpKind.FLUSH)
        if taken.position == 0:
            old, self._part = self._part, None
            if old is not None:
                await run(old.discard)
            self._part = self._store.begin_snapshot(*taken.snapshot, taken.voters)
        part = self._part
        if part is None or part.size_bytes != taken.position:
            core.snapshot_discarded()
            return
        await run(partial(part.append_piece, taken.data))
        if not taken.is_last:
            core.slice_persisted(taken)
            return
        if taken.crc not in (None, part.crc):
            self._part = None
            await run(part.discard)
            raise CorruptRecordError(
                f"the metadata snapshot up to {taken.snapshot.last_offset} from "
                f"{taken.sender} does not match its CRC"
            )
        snapshot = await run(part.finish)
        self._part = None
        await self._before_install()
        await self._writer.write(partial(self._store.install_snapshot, snapshot, replaces_log=True))
        # A snapshot without voters is of a log that never named any: the configured ones apply.
        voters = VoterSet.decode(taken.voters) if taken.voters else core.log.base_voters
        core.snapshot_installed(taken.snapshot, voters)
        self._installed(taken.snapshot)
        self._log.info(
            "metadata_snapshot_received",
            last_offset=snapshot.last_offset,
            size_bytes=snapshot.size_bytes,
        )

    # --- reading for peers -----------------------------------------------------------------------

    def read(self, core: RaftCore, wanted: ReadEntries | ReadSnapshot) -> None:
        """Start to read entries or a slice for a peer.

        The leadership starts one read per peer at a time.
        """
        task = asyncio.create_task(self._read(core, wanted))
        self._reads.add(task)
        task.add_done_callback(self._read_ended)

    async def _read(self, core: RaftCore, wanted: ReadEntries | ReadSnapshot) -> None:
        try:
            if isinstance(wanted, ReadEntries):
                found = await self._read_entries(
                    wanted.from_offset, MAX_APPEND_BYTES, MAX_APPEND_ENTRIES
                )
                core.entries_read(wanted, found)
            else:
                await self._read_slice(core, wanted)
        except LogDirImpairedError:
            # The next heartbeat requests the read again.
            if isinstance(wanted, ReadEntries):
                core.entries_read(wanted, [])
            return
        self._changed()

    async def _read_slice(self, core: RaftCore, wanted: ReadSnapshot) -> None:
        last_offset, position = wanted.snapshot.last_offset, wanted.position
        is_small = buggify.is_on and buggify.fires("raft.small_slice")
        max_bytes = _SMALL_SLICE_BYTES if is_small else SNAPSHOT_PIECE_BYTES
        try:
            found = await self._read_snapshot(last_offset, position, max_bytes)
        except CorruptRecordError:
            found = None
        if found is None:
            core.slice_read(wanted, None, is_last=False)
            return
        core.slice_read(
            wanted,
            found.data,
            is_last=found.next_position < 0,
            voters=found.snapshot.voters,
            crc=found.snapshot.crc,
        )

    def _read_ended(self, task: asyncio.Task[None]) -> None:
        self._reads.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)

    async def stop(self) -> None:
        for task in self._reads:
            task.cancel()
        await asyncio.gather(*self._reads, return_exceptions=True)
        if self.failed.done():
            self.failed.exception()


async def first_failure(failed: asyncio.Future[None], *works: Coroutine[Any, Any, None]) -> None:
    """Run ``works`` until one of them ends or ``failed`` completes, and cancel the others. Raise
    the error, if any, with which the first one ended or ``failed`` completed.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait({failed, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            ended.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
