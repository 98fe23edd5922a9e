"""LOOP. ``LogWriter``: what has to be on the metadata dir, tried until it is there.

What a full disk or one that does not answer keeps from being written is written when it can be,
in its order; any other failure goes to the caller.
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
    """Of one metadata dir. For the loop's thread; one write at a time."""

    def __init__(
        self, *, log_dir: LogDir, space: LogSpace, retry_interval_ms: int, log: Logger
    ) -> None:
        """:param retry_interval_ms: how often an impaired disk is tried again."""
        self._log_dir = log_dir
        self._space = space
        self._retry_interval_ms = retry_interval_ms
        self._log = log

    async def write(self, write: Callable[[], object]) -> None:
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
