"""LOOP. ``NotedVoters``: writes ``static-voters`` beside the log, in the background if necessary.

A controller with a log of an older version starts without that file even if the disk is full. The
voters of a new log, or of a fork with one voter, must be written before the start.
"""

from __future__ import annotations

import asyncio
from functools import partial

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError
from kraftjbod.core.telemetry import Logger
from kraftjbod.raft.log.static_voters import VotersToNote, note_voters
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind


class NotedVoters:
    """Writes the voters of a static quorum to the file ``static-voters`` beside the metadata log.

    Use it in the event loop's thread only.
    """

    def __init__(self, *, log_dir: LogDir, retry_interval_ms: int, log: Logger) -> None:
        self._log_dir = log_dir
        self._retry_interval_ms = retry_interval_ms
        self._log = log
        self._later: asyncio.Task[None] | None = None

    async def note(self, voters: VotersToNote) -> None:
        """Write ``voters``. If the directory is impaired and ``voters.can_wait``, repeat the write
        in the background.

        :raises LogDirImpairedError: the disk is full or hangs, and not ``voters.can_wait``.
        :raises KafkaStorageError: the metadata directory failed.
        """
        try:
            await self._write(voters)
        except LogDirImpairedError as e:
            if not voters.can_wait:
                raise
            self._log.warning("static_voters_wait", state=e.state, reason=e.message)
            self._later = asyncio.create_task(self._write_later(voters))

    async def stop(self) -> None:
        if self._later is not None:
            self._later.cancel()
            await asyncio.gather(self._later, return_exceptions=True)

    async def _write_later(self, voters: VotersToNote) -> None:
        while True:
            try:
                await self._write(voters)
            except LogDirImpairedError:
                await asyncio.sleep(self._retry_interval_ms / 1000)
            except KafkaStorageError:
                # The dir is lost. Writers of the log receive that error; the next start tries
                # again.
                return
            else:
                self._log.info("static_voters_noted", voters=voters.text)
                return

    async def _write(self, voters: VotersToNote) -> None:
        write = partial(note_voters, self._log_dir.vfs, voters)
        try:
            await self._log_dir.run_operation(OpKind.CHECKPOINT, write)
        except LogDirImpairedError:
            # The reserve may have been released just now.
            await self._log_dir.run_operation(OpKind.CHECKPOINT, write)
