"""LOOP. ``SnapshotMaker``: writes snapshots of the state, whose slices the caller encodes.

The slices are encoded from an immutable copy, between other work of the event loop, and are written
concurrently with the log's appends. A snapshot that finds no space, or fails, is repeated later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Final

from kraftjbod.core import buggify
from kraftjbod.core.errors import KafkaStorageError, OperatingError, OverloadedError
from kraftjbod.core.telemetry import Logger
from kraftjbod.raft.log.log_space import LogSpace
from kraftjbod.raft.log.log_store import RaftLogStore
from kraftjbod.raft.log.snapshot_files import SnapshotPart
from kraftjbod.raft.machine.messages import SnapshotId
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind

_WRITTEN_AT_ONCE_BYTES: Final = 256 * 1024


class SnapshotMaker:
    """Writes snapshots of the state to the disk in the background, one at a time, and tells when
    the next one is due.

    Use it in the event loop's thread only.
    """

    def __init__(
        self,
        *,
        log_dir: LogDir,
        store: RaftLogStore,
        space: LogSpace,
        log: Logger,
        bytes_between_snapshots: int,
        retry_interval_ms: int,
        committed: Callable[[SnapshotId], Awaitable[bool]],
        in_use: Callable[[], Collection[int]],
        installed: Callable[[SnapshotId, int], None],
    ) -> None:
        """Create without a running snapshot.

        :param bytes_between_snapshots: a snapshot is due after this many bytes of entries.
        :param retry_interval_ms: interval between attempts on an impaired disk.
        :param committed: waits until it is certain whether the given entry is committed, and
            returns that.
        :param in_use: returns the last offsets of snapshots that are being sent.
        :param installed: called with each durable snapshot and the first offset of the log then.
        """
        self._log_dir = log_dir
        self._store = store
        self._space = space
        self._log = log
        self.bytes_between_snapshots = bytes_between_snapshots
        self._retry_interval_ms = retry_interval_ms
        self._committed = committed
        self._in_use = in_use
        self._installed = installed
        self._bytes_since_snapshot = 0
        #: Size of the last snapshot if it found no free space, else 0.
        self._needs_bytes = 0
        #: Whether the finished file is being renamed, which cannot be undone.
        self._is_installing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def is_due(self) -> bool:
        """Whether enough was written since the last snapshot, and there is space for the next one.

        False while a snapshot is being made.
        """
        is_due = self._bytes_since_snapshot >= self.bytes_between_snapshots or (
            buggify.is_on
            and self._bytes_since_snapshot > 0
            and buggify.fires("raft.early_snapshot")
        )
        return not self.is_busy and is_due and self._space.has(self._needs_bytes)

    def want(self) -> None:
        """Make a snapshot due, even if little was written since the last one."""
        self._bytes_since_snapshot = max(self._bytes_since_snapshot, self.bytes_between_snapshots)

    def note_written(self, size_bytes: int) -> None:
        self._bytes_since_snapshot += size_bytes

    def start(self, snapshot: SnapshotId, slices: Iterable[bytes], voters: bytes = b"") -> None:
        """Start a snapshot of the state after ``snapshot``, which may not be committed yet.

        :param slices: the encoded state, consumed gradually.
        :param voters: the encoded voter set, see :class:`Snapshot`.
        """
        self._bytes_since_snapshot = 0
        self._is_installing = False
        self._task = asyncio.create_task(self._make(snapshot, slices, voters))
        self._task.add_done_callback(self._note_end)

    async def stop(self) -> None:
        """Cancel a running snapshot. Its file is removed later, without waiting."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _make(self, of: SnapshotId, slices: Iterable[bytes], voters: bytes) -> None:
        part = self._store.begin_snapshot(*of, voters)
        try:
            try:
                is_installed = await self._write(part, of, slices)
            except Exception:
                await self._discard(part)
                raise
            if not is_installed:
                await self._discard(part)
        except asyncio.CancelledError:
            # The removal is queued behind the running operation. stop() does not wait for a disk
            # that hangs or refuses: then the next start removes the file.
            if not self._is_installing:
                with contextlib.suppress(OperatingError):
                    self._log_dir.submit_operation(OpKind.FLUSH, part.discard)
            raise

    async def _write(self, part: SnapshotPart, of: SnapshotId, slices: Iterable[bytes]) -> bool:
        """Write and install the snapshot, unless space is short or its last entry was replaced.

        :returns: whether the snapshot is installed.
        :raises KafkaStorageError: the metadata directory fails.
        :raises LogDirImpairedError: the metadata directory is full or does not respond.
        """
        # The flush queue, so that appends are not delayed.
        run = partial(self._log_dir.run_operation, OpKind.FLUSH)
        async with contextlib.aclosing(_joined_slices(slices)) as pieces:
            async for piece in pieces:
                needed_bytes = part.size_bytes + len(piece)
                if not self._space.has(needed_bytes):
                    self._needs_bytes = needed_bytes
                    self._bytes_since_snapshot += self.bytes_between_snapshots
                    self._log.warning(
                        "metadata_snapshot_postponed", size_bytes=needed_bytes, reason="no space"
                    )
                    return False
                await run(partial(part.append_piece, piece))
        self._needs_bytes = 0
        if not await self._committed(of):
            return False  # Another leader may have replaced the entry.
        snapshot = await run(part.finish)
        self._is_installing = True
        install = partial(self._store.install_snapshot, snapshot, in_use=self._in_use())
        self._installed(of, await self._log_dir.run_operation(OpKind.CHECKPOINT, install))
        self._log.info(
            "metadata_snapshot_written", last_offset=of.last_offset, size_bytes=part.size_bytes
        )
        return True

    async def _discard(self, part: SnapshotPart) -> None:
        """Remove the file, with retries while the directory is busy or impaired.

        No effect if it is OFFLINE.
        """
        while True:
            try:
                return await self._log_dir.run_operation(OpKind.FLUSH, part.discard)
            except OverloadedError:
                await asyncio.sleep(self._retry_interval_ms / 1000)
            except KafkaStorageError:
                return

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Log an error of the snapshot that has ended.

        The log is unchanged, and a later snapshot is made.
        """
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.log_failure(error)

    def log_failure(self, error: BaseException) -> None:
        """Log the failure of a snapshot that was made here or received from another replica."""
        bug = None if isinstance(error, OperatingError) else error
        self._log.warning("metadata_snapshot_failed", reason=str(error), exc_info=bug)


async def _joined_slices(slices: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Join slices to pieces of at least 256 KiB, except the last one.

    Other tasks run after each slice.
    """
    gathered = bytearray()
    for piece in slices:
        gathered += piece
        if len(gathered) >= _WRITTEN_AT_ONCE_BYTES:
            yield bytes(gathered)
            gathered.clear()
        await asyncio.sleep(0)
    if gathered:
        yield bytes(gathered)
