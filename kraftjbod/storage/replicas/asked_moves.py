"""LOOP. ``AskedMoves``: moves between log dirs that the controller was, or is about to be, asked
for.

While one is noted here, the replica has been served from its source and from nowhere else: it is
noted for good before the controller is asked to name the target, and forgotten for good before the
replica gets a log in any other way. So a source that a crash left in its place is whole, although
metadata may name the target, and that is dead. A file that is gone says nothing of anybody.

A note may outlive its move, for as long as it is true. They lie in ``asked-moves.json`` of the
metadata dir, because what one disk says of another is worth nothing once it was away.
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
from kraftjbod.storage.vfs import write_atomically

_VERSION: Final = 1


class AskedMove(NamedTuple):
    source: DirectoryId
    target: DirectoryId


class AskedMoves:
    """One note per replica; all methods are for the loop's thread.

    ``load`` first; until then nothing is noted.
    """

    def __init__(self, metadata_dir: LogDir) -> None:
        self._dir = metadata_dir
        self._path = f"{metadata_dir.path}/{ASKED_MOVES}"
        self._notes: dict[TopicIdPartition, AskedMove] = {}
        #: Counts changes; the file holds the notes as of ``_written``.
        self._changes = self._written = 0
        self._writing = asyncio.Lock()
        self._log = get_logger(component="asked_moves")

    async def load(self, is_true: Callable[[TopicIdPartition, AskedMove], bool]) -> None:
        """Take over those notes of the last run that ``is_true`` says may still matter.

        :raises KafkaStorageError: the metadata dir is or goes offline.
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
        """Where the replica is whole, if it was being moved to ``target``."""
        note = self._notes.get(key)
        return None if note is None or note.target != target else note.source

    async def note(self, key: TopicIdPartition, source: DirectoryId, target: DirectoryId) -> None:
        """It is on the disk once this returns. At once if it is already.

        :raises OperatingError: the metadata dir does not take it.
        """
        note = AskedMove(source, target)
        if self._notes.get(key) != note:
            self._notes[key] = note
            self._changes += 1
        await self._write()

    async def forget(self, key: TopicIdPartition) -> None:
        """It is gone from the disk once this returns. At once if there was none.

        :raises OperatingError: as :meth:`note`; nobody may count on it being gone.
        """
        if self._notes.pop(key, None) is not None:
            self._changes += 1
        await self._write()

    async def _write(self) -> None:
        """One at a time; whoever waited meanwhile may find his change written."""
        wanted = self._changes
        if self._written >= wanted:
            return
        async with self._writing:
            if self._written >= wanted:
                return
            changes, data, vfs = self._changes, _format(self._notes), self._dir.vfs
            await self._dir.run(OpKind.CHECKPOINT, lambda: write_atomically(vfs, self._path, data))
            self._written = changes


def _format(notes: dict[TopicIdPartition, AskedMove]) -> bytes:
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


def _parse(text: str, path: str) -> dict[TopicIdPartition, AskedMove]:
    try:
        document = json.loads(text)
        if document["version"] != _VERSION:
            raise CorruptCheckpointError(f"{path}: version {document['version']}")
        return {
            TopicIdPartition(TopicId.parse(move["topic_id"]), int(move["partition"])): AskedMove(
                DirectoryId.parse(move["source"]), DirectoryId.parse(move["target"])
            )
            for move in document["moves"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, InvalidUuidText) as e:
        raise CorruptCheckpointError(f"{path}: {e!r}") from e
