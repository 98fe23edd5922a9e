"""LOOP. ``MetadataMemory``: persists the id and the offset of the metadata log that this broker
follows.

Metadata makes a broker create, set aside and delete replicas, so it must be the right metadata. A
controller that was reformatted, or restored from an old backup, has less than this broker followed.
Applying its metadata would take every replica out of service.

* The broker follows the first log that it receives, until an operator makes it forget the log; then
  the next *other* log. It never accepts a shorter version of the same log: a log that lost its end
  and continues needs a new id.
* Metadata of another log, or of a log that ends before the persisted offset, is refused: it is not
  applied, no disk is changed, and the broker waits for the right metadata. A log that diverged has
  an entry of another epoch at this broker's offset, which the controller detects (``Followed``).
* The offset is persisted before a replica is created, set aside or deleted, at an orderly stop, and
  once per ``_WRITE_INTERVAL_MS`` while it grows. So after a crash of the broker, a log that lost
  its last second may be accepted, but no log that lost the creation or removal of a replica.
* A failed write to the metadata directory is logged and blocks nothing: the offset is a second
  safeguard, after a metadata log that is synced before its entries are sent.
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
    """The progress that this broker reports to controllers.

    ``offset`` is that of the last applied entry, -1 for none. ``epoch`` is the entry's, None if
    unknown. ``offset`` is None if the broker may accept another log. Then only the active
    controller may respond.
    """

    metadata_log_id: Uuid | None
    offset: int | None
    epoch: int | None


class MetadataMemory:
    """The persisted id and offset of the metadata log that this broker follows.

    Call ``await load()`` first, ``run_writes()`` for the broker's lifetime, and ``write()`` at the
    end.
    """

    def __init__(self, *, metadata_dir: LogDir) -> None:
        self._metadata_dir = metadata_dir
        #: The followed log; None until a log with an id is received.
        self.metadata_log_id: Uuid | None = None
        self._applied_offset = -1
        #: Epoch of the entry at ``_applied_offset``.
        self._applied_epoch: int | None = None
        self._written: AppliedMetadata | None = None
        #: The last logged error of a write.
        self._complaint: str | None = None
        self._writing = asyncio.Lock()
        self._log = get_logger(component="metadata_memory")

    def __repr__(self) -> str:
        return f"<MetadataMemory {self.metadata_log_id} applied={self._applied_offset}>"

    @property
    def applied_offset(self) -> int:
        """The offset of the last entry that this or an earlier incarnation applied; -1 for none."""
        return self._applied_offset

    @property
    def followed(self) -> Followed:
        if self._written is not None and self._written.is_forgotten:
            return Followed(None, None, None)
        return Followed(self.metadata_log_id, self._applied_offset, self._applied_epoch)

    async def load(self) -> None:
        """Load the persisted state.

        :raises InconsistentStorageError: the file is damaged; the message has the remedy.
        :raises KafkaStorageError: the metadata directory is offline or fails.
        """
        metadata_dir = self._metadata_dir
        path = path_of(metadata_dir.path)
        text = await metadata_dir.read_text(OpKind.START, path)
        if text is not None:
            self._written = parse_applied_metadata(text, path)
            self.metadata_log_id = self._written.metadata_log_id
            self._applied_offset = self._written.offset
            self._applied_epoch = self._written.epoch

    def note_metadata_log_id(self, metadata_log_id: Uuid | None) -> None:
        """Note the id of a controller's log. None, of a log without an id, has no effect.

        The first id, or the first other id after an operator made the broker forget its log,
        becomes the followed log.

        :raises ForeignMetadataError: the id is another one than that of the followed log.
        """
        if self.metadata_log_id is None:
            self.metadata_log_id = metadata_log_id
        elif metadata_log_id not in (None, self.metadata_log_id):
            if self._written is not None and self._written.is_forgotten:
                self._follow_new_log(metadata_log_id)
                return
            self._refuse(f"the controller has log {metadata_log_id}")

    def require_complete(self, last_offset: int) -> None:
        """Require that the controller's log, whose last entry is at ``last_offset``, has all
        entries that were applied here.

        :raises ForeignMetadataError: this broker has followed the log further.
        """
        if last_offset < self._applied_offset:
            self._refuse(f"the controller's log ends at offset {last_offset}")

    def _follow_new_log(self, metadata_log_id: Uuid | None) -> None:
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
        """Note that all entries up to and including ``offset`` were applied.

        :param epoch: the epoch of the last entry; None if unknown.
        """
        if offset > self._applied_offset:
            self._applied_offset, self._applied_epoch = offset, epoch

    # --- to disk ---------------------------------------------------------------------------------

    async def run_writes(self) -> None:
        """Persist the progress once per second, until cancelled."""
        while True:
            await asyncio.sleep(_WRITE_INTERVAL_MS / 1000)
            await self.write()

    async def write(self) -> None:
        """Persist all progress from before the call. A failure is logged and not raised."""
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
                await metadata_dir.run_operation(
                    OpKind.CHECKPOINT,
                    lambda: write_applied_metadata(metadata_dir.vfs, metadata_dir.path, news),
                )
            except OperatingError as e:
                if self._complaint != e.message:
                    self._log.warning("applied_metadata_not_written", reason=e.message)
                self._complaint = e.message
            else:
                self._written, self._complaint = news, None
