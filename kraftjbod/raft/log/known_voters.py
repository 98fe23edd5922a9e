"""LOOP. ``KnownVoters``: the directory id of each voter of a static quorum.

A static quorum knows voters by their node ids alone. A voter that returns with another disk has
lost its vote and the entries that it acknowledged. If its messages counted, committed entries could
be lost.

So the directory id of each voter is stored in ``voter-directories`` beside the log before its first
message counts. Messages from another directory are refused until an operator intervenes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from kraftjbod.core.errors import (
    ErrorCode,
    InconsistentStorageError,
    InvalidUuidText,
    OperatingError,
)
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.raft.log.static_voters import VOTER_DIRECTORIES
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.vfs import write_atomically


class KnownVoters:
    """The directory id from which each voter of a static quorum has voted, kept in a file. Detects
    a voter that returns with another disk.

    Use it in the event loop's thread only.
    """

    def __init__(self, *, log_dir: LogDir, directory: str) -> None:
        """Create without reading the file.

        :param directory: path of the directory of the metadata log.
        """
        self._log_dir = log_dir
        self._path = f"{directory}/{VOTER_DIRECTORIES}"
        self._known: dict[BrokerId, DirectoryId] = {}
        self._writing = asyncio.Lock()

    @property
    def directories(self) -> Mapping[BrokerId, DirectoryId]:
        return self._known

    async def load(self) -> None:
        """Read the directory ids from the file, if the file exists.

        :raises InconsistentStorageError: the file is damaged.
        :raises KafkaStorageError: the metadata directory fails.
        """
        text = await self._log_dir.run_operation(
            OpKind.LOAD, lambda: self._log_dir.vfs.read_if_exists(self._path)
        )
        try:
            found = {} if text is None else json.loads(bytes(text))
            self._known = {
                BrokerId(int(node)): DirectoryId.parse(directory)
                for node, directory in found.items()
            }
        except (ValueError, AttributeError, InvalidUuidText) as e:
            raise InconsistentStorageError(
                f"{self._path} is damaged ({e}); remove it if no controller's disk was replaced"
            ) from e

    def is_known(self, node: BrokerId, directory: DirectoryId) -> bool:
        return self._known.get(node) == directory

    async def require(self, node: BrokerId, directory: DirectoryId) -> None:
        """Raise an error unless ``directory`` is the known one of ``node``. Store it if none is
        known.

        :raises OperatingError: INVALID_VOTER_KEY; the message says what to do.
        :raises KafkaStorageError: the new id cannot be stored; LogDirImpairedError if only for now.
        """
        async with self._writing:
            known = self._known.get(node)
            if known is None:
                await self._remember({**self._known, node: directory})
            elif known != directory:
                raise OperatingError(
                    f"controller {node} uses directory {directory}, but it voted from directory "
                    f"{known}: the new directory lacks its votes. If the disk of {known} is lost "
                    f"permanently and all other controllers run, stop this one, remove "
                    f"{self._path}, start it, and do the same with the next",
                    code=ErrorCode.INVALID_VOTER_KEY,
                )

    async def _remember(self, known: dict[BrokerId, DirectoryId]) -> None:
        text = json.dumps({str(node): str(directory) for node, directory in known.items()})
        await self._log_dir.run_operation(
            OpKind.CHECKPOINT,
            lambda: write_atomically(self._log_dir.vfs, self._path, text.encode()),
        )
        self._known = known
