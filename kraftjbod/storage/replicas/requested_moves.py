"""LOOP. ``RequestedMoves``: notes of the moves between log directories that were requested from the
controller, or are about to be.

While a move is noted, the replica is served only from its source. So after a crash a log in the
source is complete, even if the metadata assigns a target that has failed.

* The note is durable before the controller is asked to assign the target.
* The note is removed durably before the replica gets a log in any other way.
* A note may stay after its move if it is still true. If the file is lost, no replica counts as
  moved.

The notes are in ``asked-moves.json`` of the metadata directory. A note on one of the two disks
could be outdated after that disk was detached.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final, NamedTuple

from kraftjbod.core.errors import InvalidUuidText
from kraftjbod.core.ids import DirectoryId, TopicId, TopicIdPartition
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.checkpoints import CorruptCheckpointError
from kraftjbod.storage.dir_names import ASKED_MOVES
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind

_VERSION: Final = 1


class RequestedMove(NamedTuple):
    """Directories of a move: the one with the replica, and the one that the controller was or will
    be asked to assign.
    """

    source: DirectoryId
    target: DirectoryId


class RequestedMoves:
    """Durable notes of moves between log directories, at most one per replica: while a note exists,
    only the copy in the source is served. All methods run on the event loop.

    Call :meth:`load` first. Before that there are no notes.
    """

    def __init__(self, metadata_dir: LogDir) -> None:
        self._dir = metadata_dir
        self._path = f"{metadata_dir.path}/{ASKED_MOVES}"
        self._notes: dict[TopicIdPartition, RequestedMove] = {}
        #: Number of changes. The file contains the first ``_written`` of them.
        self._changes = self._written = 0
        self._writing = asyncio.Lock()
        self._log = get_logger(component="requested_moves")

    async def load(self, is_true: Callable[[TopicIdPartition, RequestedMove], bool]) -> None:
        """Load the notes of the last run, and keep those for which ``is_true`` returns True.

        An unreadable file is logged and counts as empty.

        :raises KafkaStorageError: the metadata directory is or goes offline.
        :raises OverloadedError: its queue is full, or no descriptor is free.
        """
        text = await self._dir.read_text(OpKind.LOAD, self._path)
        try:
            notes = {} if text is None else _parse(text, self._path)
        except CorruptCheckpointError as e:
            self._log.warning("asked_moves_unreadable", reason=str(e))
            return
        self._notes = {key: note for key, note in notes.items() if is_true(key, note)}
        self._changes += self._notes != notes

    def source_of(self, key: TopicIdPartition, target: DirectoryId) -> DirectoryId | None:
        """Return the source of the noted move of the replica to ``target``; None without such a
        note.

        The replica in the source directory is complete.
        """
        note = self._notes.get(key)
        return None if note is None or note.target != target else note.source

    async def note(self, key: TopicIdPartition, source: DirectoryId, target: DirectoryId) -> None:
        """Store a note durably, instead of an earlier one of the replica. Nothing is written if it
        is stored already.

        :raises OperatingError: the metadata directory refused or failed the write. The note is only
            in memory then, and the next call of :meth:`note` or :meth:`forget` writes it.
        """
        note = RequestedMove(source, target)
        if self._notes.get(key) != note:
            self._notes[key] = note
            self._changes += 1
        await self._write()

    async def forget(self, key: TopicIdPartition) -> None:
        """Remove the note of a replica durably. Nothing is written if there is none.

        :raises OperatingError: as :meth:`note`. The note may still be on the disk then.
        """
        if self._notes.pop(key, None) is not None:
            self._changes += 1
        await self._write()

    async def _write(self) -> None:
        """Write the file, unless another call has written this change.

        Only one write runs at a time.
        """
        wanted = self._changes
        if self._written >= wanted:
            return
        async with self._writing:
            if self._written >= wanted:
                return
            changes = self._changes
            await self._dir.replace_file(self._path, _format(self._notes))
            self._written = changes


def _format(notes: dict[TopicIdPartition, RequestedMove]) -> bytes:
    moves = [
        {
            "topic_id": str(key.topic_id),
            "partition": key.partition,
            "source": str(note.source),
            "target": str(note.target),
        }
        for key, note in notes.items()
    ]
    return (json.dumps({"version": _VERSION, "moves": moves}, indent=1) + "\n").encode()


def _parse(text: str, path: str) -> dict[TopicIdPartition, RequestedMove]:
    try:
        document = json.loads(text)
        if document["version"] != _VERSION:
            raise CorruptCheckpointError(f"{path}: version {document['version']}")
        return {
            TopicIdPartition(
                TopicId.parse(move["topic_id"]), int(move["partition"])
            ): RequestedMove(DirectoryId.parse(move["source"]), DirectoryId.parse(move["target"]))
            for move in document["moves"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, InvalidUuidText) as e:
        raise CorruptCheckpointError(f"{path}: {e!r}") from e
