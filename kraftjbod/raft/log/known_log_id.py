"""LOOP. ``KnownLogId``: the id of this controller's metadata log, once the id is committed.

Two separate logs look alike to Raft: both have terms and offsets from 0. Voters that look for a
leader would follow a controller that was formatted as a separate quorum by mistake. So messages of
another log are refused.

The id is kept in the file ``metadata-log-id`` beside the log, because a starting controller does
not know which entries are committed. Without the file, no message is refused before the first entry
of another leader is committed here.
"""

from __future__ import annotations

import asyncio
from functools import partial

from kraftjbod.core.errors import (
    InconsistentStorageError,
    InvalidUuidText,
    KafkaStorageError,
    LogDirImpairedError,
)
from kraftjbod.core.ids import Uuid
from kraftjbod.core.loop.task_end import raise_task_error
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.vfs import write_atomically

METADATA_LOG_ID = "metadata-log-id"


class KnownLogId:
    """The id of the metadata log that this controller belongs to, kept in a file.

    ``value`` is None until the id is known. Use it in the event loop's thread only.
    """

    def __init__(self, *, log_dir: LogDir, directory: str, retry_interval_ms: int) -> None:
        """Create without reading the file.

        :param directory: path of the directory of the metadata log.
        :param retry_interval_ms: interval between attempts to write while the disk is full.
        """
        self._log_dir = log_dir
        self._path = f"{directory}/{METADATA_LOG_ID}"
        self._retry_interval_ms = retry_interval_ms
        self.value: Uuid | None = None
        self._written: Uuid | None = None
        self._writing: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Read the id from the file, if the file exists.

        :raises InconsistentStorageError: the file is damaged.
        :raises KafkaStorageError: the metadata directory fails.
        """
        text = await self._log_dir.run_operation(
            OpKind.LOAD, lambda: self._log_dir.vfs.read_if_exists(self._path)
        )
        if text is None:
            return
        try:
            self.value = self._written = Uuid.parse(bytes(text).decode())
        except (UnicodeDecodeError, InvalidUuidText) as e:
            raise InconsistentStorageError(
                f"{self._path} is damaged ({e}); remove it, and it is written again once this "
                "controller follows the others"
            ) from e

    def note(self, log_id: Uuid | None) -> None:
        """Record that ``log_id`` is committed; None has no effect.

        The file is written in the background, with retries.
        """
        if log_id is None or log_id == self.value:
            return
        self.value = log_id
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="metadata_log_id")
            self._writing.add_done_callback(raise_task_error)

    async def stop(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write(self) -> None:
        while self.value is not None and self.value != self._written:
            log_id = self.value
            write = partial(write_atomically, self._log_dir.vfs, self._path, str(log_id).encode())
            try:
                await self._log_dir.run_operation(OpKind.CHECKPOINT, write)
                self._written = log_id
            except LogDirImpairedError:
                await asyncio.sleep(self._retry_interval_ms / 1000)
            except KafkaStorageError:
                # The dir is lost, which ends the controller.
                return
