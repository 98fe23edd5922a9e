"""LOOP. ``SnapshotMaker``: snapshots of the state, made of slices that the caller encodes.

They are drawn from an immutable copy, between other work of the loop, and are written beside the
log's appends. One that finds no free space is left for later, and so is one that fails.
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
    """One at a time. For the loop's thread."""

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
        """
        :param retry_interval_ms: how often an impaired disk is tried again.
        :param committed: waits until it is certain what the log has there: whether it is that.
        :param in_use: last offsets of the snapshots that are being sent.
        :param installed: called with each one that is durable, and the first entry that the log
            holds after that.
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
        #: Size of the last snapshot that found no free space; 0 if the last one did.
        self._needs_bytes = 0
        #: The finished file is about to get its name, which nothing takes back.
        self._is_installing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def is_due(self) -> bool:
        """Enough was written since the last one, none is being made, and it finds space."""
        is_due = self._bytes_since_snapshot >= self.bytes_between_snapshots or (
            buggify.is_on
            and self._bytes_since_snapshot > 0
            and buggify.fires("raft.early_snapshot")
        )
        return not self.is_busy and is_due and self._space.has(self._needs_bytes)

    def want(self) -> None:
        """Have one made soon, however little was written since the last one."""
        self._bytes_since_snapshot = max(self._bytes_since_snapshot, self.bytes_between_snapshots)

    def note_written(self, size_bytes: int) -> None:
        self._bytes_since_snapshot += size_bytes

    def start(self, snapshot: SnapshotId, slices: Iterable[bytes], voters: bytes = b"") -> None:
        """Make one of the state after ``snapshot``, which may not be committed yet."""
        self._bytes_since_snapshot = 0
        self._is_installing = False
        self._task = asyncio.create_task(self._make(snapshot, slices, voters))
        self._task.add_done_callback(self._note_end)

    async def stop(self) -> None:
        """Cancel a snapshot that is being made; its file is removed without waiting for that."""
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
            # Queued after the operation that runs. The caller of stop() does not wait for a disk
            # that hangs or refuses: the next start removes the file.
            if not self._is_installing:
                with contextlib.suppress(OperatingError):
                    self._log_dir.begin(OpKind.FLUSH, part.discard)
            raise

    async def _write(self, part: SnapshotPart, of: SnapshotId, slices: Iterable[bytes]) -> bool:
        """Return whether the snapshot is installed: space may be short, or the entry be replaced.

        :raises KafkaStorageError: the metadata dir fails.
        :raises LogDirImpairedError: the metadata dir is full or does not answer.
        """
        # The flush queue, so that entries are appended meanwhile.
        run = partial(self._log_dir.run, OpKind.FLUSH)
        async with contextlib.aclosing(_gathered(slices)) as pieces:
            async for piece in pieces:
                needed_bytes = part.size_bytes + len(piece)
                if not self._space.has(needed_bytes):
                    self._needs_bytes = needed_bytes
                    self._bytes_since_snapshot += self.bytes_between_snapshots
                    self._log.warning(
                        "metadata_snapshot_postponed", size_bytes=needed_bytes, reason="no space"
                    )
                    return False
                await run(partial(part.append, piece))
        self._needs_bytes = 0
        if not await self._committed(of):
            return False  # Another leader may put another entry there.
        snapshot = await run(part.finish)
        self._is_installing = True
        install = partial(self._store.install_snapshot, snapshot, in_use=self._in_use())
        self._installed(of, await self._log_dir.run(OpKind.CHECKPOINT, install))
        self._log.info(
            "metadata_snapshot_written", last_offset=of.last_offset, size_bytes=part.size_bytes
        )
        return True

    async def _discard(self, part: SnapshotPart) -> None:
        """Remove the file once the disk takes operations; an OFFLINE dir has released it."""
        while True:
            try:
                return await self._log_dir.run(OpKind.FLUSH, part.discard)
            except OverloadedError:
                await asyncio.sleep(self._retry_interval_ms / 1000)
            except KafkaStorageError:
                return

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """A snapshot that cannot be written leaves the log as it was: logged, and tried later."""
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.log_failure(error)

    def log_failure(self, error: BaseException) -> None:
        """Of one that was made here, or came from elsewhere."""
        bug = None if isinstance(error, OperatingError) else error
        self._log.warning("metadata_snapshot_failed", reason=str(error), exc_info=bug)


async def _gathered(slices: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    """The same bytes in larger pieces, each worth a write; everybody has a turn after a slice."""
    gathered = bytearray()
    for piece in slices:
        gathered += piece
        if len(gathered) >= _WRITTEN_AT_ONCE_BYTES:
            yield bytes(gathered)
            gathered.clear()
        await asyncio.sleep(0)
    if gathered:
        yield bytes(gathered)
