"""LOOP. ``MetadataMemory``: which metadata log this broker follows, remembered beyond its own life.

By the metadata a broker makes replicas, sets them aside and deletes them. So it must be the right
one: a controller that was formatted anew, or restored from an old backup, knows less than this
broker does, and doing what it says would take every replica out of service.

* The first log that a broker hears of is its own from then on, until an operator has it forget;
  then the first *other* one is. Of the same log it never takes less than it has followed: one that
  lost its end and goes on is another log, and has to be given an id of its own.
* Metadata of another log, or of one that ends before what is remembered, is refused: nothing of it
  is applied, nothing on any disk is touched, and the broker waits for the right one to come back.
  So is one that goes on behind an earlier end: it has an entry of another epoch where this broker
  was last, which the controller sees (``Followed``).
* What is remembered is brought to disk before anything is made, set aside or deleted by it, at an
  orderly stop, and once in ``_WRITE_INTERVAL_MS`` while there is news. So a log that lost its last
  second may pass for whole after a crash of the broker, but none that lost a replica's coming or
  going.
* A metadata dir that takes no writes now is logged, and holds nothing up: it is the last resort of
  two, after a log that is synced before anybody hears of an entry.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, NoReturn

from kraftjbod.core.errors import ForeignMetadataError, OperatingError
from kraftjbod.core.ids import Uuid
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.identity.applied_metadata import (
    AppliedMetadata,
    parse_applied_metadata,
    path_of,
    write_applied_metadata,
)
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind

_WRITE_INTERVAL_MS: Final = 1_000


class Followed(NamedTuple):
    """What controllers get to know of what this broker has followed.

    ``offset`` is that of the last entry, -1 for none, and ``epoch`` the entry's, None if it is not
    known. None for an ``offset`` is said by a broker that may take another log: what it has
    followed is nothing to go by, and only the active controller may answer it.
    """

    metadata_log_id: Uuid | None
    offset: int | None
    epoch: int | None


class MetadataMemory:
    """``await load()`` first, ``run()`` for the life of the broker, ``write()`` at its end."""

    def __init__(self, *, metadata_dir: LogDir) -> None:
        self._metadata_dir = metadata_dir
        #: Which log is followed; None until one that has an id is heard of.
        self.metadata_log_id: Uuid | None = None
        self._applied_offset = -1
        #: Of the entry there.
        self._applied_epoch: int | None = None
        self._written: AppliedMetadata | None = None
        #: What the disk said last if it did not take a write.
        self._complaint: str | None = None
        self._writing = asyncio.Lock()
        self._log = get_logger(component="metadata_memory")

    def __repr__(self) -> str:
        return f"<MetadataMemory {self.metadata_log_id} applied={self._applied_offset}>"

    @property
    def applied_offset(self) -> int:
        """This much of the log was applied, in this life or before; -1 for nothing."""
        return self._applied_offset

    @property
    def followed(self) -> Followed:
        if self._written is not None and self._written.is_forgotten:
            return Followed(None, None, None)
        return Followed(self.metadata_log_id, self._applied_offset, self._applied_epoch)

    async def load(self) -> None:
        """What the broker remembers of earlier lives.

        :raises InconsistentStorageError: the file is damaged; says what to do.
        :raises KafkaStorageError: the metadata dir is or goes offline.
        """
        metadata_dir = self._metadata_dir
        path = path_of(metadata_dir.path)
        text = await metadata_dir.read_text(OpKind.START, path)
        if text is not None:
            self._written = parse_applied_metadata(text, path)
            self.metadata_log_id = self._written.metadata_log_id
            self._applied_offset = self._written.offset
            self._applied_epoch = self._written.epoch

    def heard_of(self, metadata_log_id: Uuid | None) -> None:
        """A controller has this log; None if it is from before logs had ids.

        :raises ForeignMetadataError: it is another than the one that is followed.
        """
        if self.metadata_log_id is None:
            self.metadata_log_id = metadata_log_id
        elif metadata_log_id not in (None, self.metadata_log_id):
            if self._written is not None and self._written.is_forgotten:
                self._begin_anew(metadata_log_id)
                return
            self._refuse(f"the controller has log {metadata_log_id}")

    def require_whole(self, last_offset: int) -> None:
        """The controller's log ends at ``last_offset``.

        :raises ForeignMetadataError: this broker has followed it further.
        """
        if last_offset < self._applied_offset:
            self._refuse(f"the controller's log ends at offset {last_offset}")

    def _begin_anew(self, metadata_log_id: Uuid | None) -> None:
        self._log.warning(
            "metadata_log_replaced",
            forgotten=str(self.metadata_log_id),
            followed=str(metadata_log_id),
        )
        self.metadata_log_id, self._written = metadata_log_id, None
        self._applied_offset, self._applied_epoch = -1, None

    def _refuse(self, what: str) -> NoReturn:
        known = f"metadata log {self.metadata_log_id or 'of no id'}"
        raise ForeignMetadataError(
            f"{what}, but this broker has followed {known} up to offset {self._applied_offset}. "
            "Nothing of it is applied, and no replica is touched. Put the controller's metadata "
            "directory back as it was; docs/metadata-backup.md says how, and what to do if that "
            "cannot be"
        )

    def note_applied(self, offset: int, epoch: int | None) -> None:
        """Everything up to ``offset``, whose entry is of ``epoch``, if that is known."""
        if offset > self._applied_offset:
            self._applied_offset, self._applied_epoch = offset, epoch

    # --- to disk ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what is new, now and then, until cancelled."""
        while True:
            await asyncio.sleep(_WRITE_INTERVAL_MS / 1000)
            await self.write()

    async def write(self) -> None:
        """Return once all that was applied before the call is remembered for good, or cannot be."""
        wanted = self._applied_offset
        async with self._writing:
            if self._written is not None and self._written.offset >= wanted:
                return
            if self.metadata_log_id is None or wanted < 0:
                return
            news = AppliedMetadata(
                metadata_log_id=self.metadata_log_id,
                offset=self._applied_offset,
                epoch=self._applied_epoch,
            )
            metadata_dir = self._metadata_dir
            try:
                await metadata_dir.run(
                    OpKind.CHECKPOINT,
                    lambda: write_applied_metadata(metadata_dir.vfs, metadata_dir.path, news),
                )
            except OperatingError as e:
                if self._complaint != e.message:
                    self._log.warning("applied_metadata_not_written", reason=e.message)
                self._complaint = e.message
            else:
                self._written, self._complaint = news, None
