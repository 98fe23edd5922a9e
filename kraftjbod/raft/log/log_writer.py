"""LOOP. ``LogWriter``: writes to the metadata directory, repeated until they succeed.

Writes that fail because the disk is full or does not respond are repeated in order. Any other
failure is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kraftjbod.core.errors import LogDirImpairedError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.telemetry import Logger
from kraftjbod.raft.log.log_space import LogSpace
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind


class LogWriter:
    """Runs writes in the metadata directory, and repeats a write while the disk is full or does not
    respond.

    Use it in the event loop's thread only.
    """

    def __init__(
        self, *, log_dir: LogDir, space: LogSpace, retry_interval_ms: int, log: Logger
    ) -> None:
        """Create without writes.

        :param retry_interval_ms: interval between attempts on an impaired disk.
        """
        self._log_dir = log_dir
        self._space = space
        self._retry_interval_ms = retry_interval_ms
        self._log = log

    async def write(self, write: Callable[[], object]) -> None:
        """Run ``write``, and repeat it while the directory is impaired, until it succeeds.

        A write that finds no free space must leave nothing behind, so that it may be repeated.
        Cancelling the call ends the repetition.

        :raises KafkaStorageError: the directory is or goes offline.
        """
        failures = 0
        while True:
            is_full = self._log_dir.state is LogDirState.SATURATED
            try:
                # The reserve on a full disk exists for such writes.
                await self._log_dir.run_operation(
                    OpKind.CHECKPOINT if is_full else OpKind.APPEND, write
                )
            except LogDirImpairedError as e:
                failures += 1
                self._space.note_no_space()
                if failures == 1:
                    # The reserve may have been released just now, so try its space at once.
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
