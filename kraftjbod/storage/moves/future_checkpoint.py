"""PURE. ``future-copy-checkpoint``: the durable state of a future copy, as JSON in its directory.

The file is replaced only after its content became true on the disk, so a restart may trust it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from kraftjbod.core.errors import InvalidUuidText
from kraftjbod.core.ids import DirectoryId
from kraftjbod.storage.checkpoints import CorruptCheckpointError
from kraftjbod.storage.log.leader_epochs import EpochEntries, EpochEntry

_VERSION: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureCheckpoint:
    """Content of ``future-copy-checkpoint``: how much of a move's copy is durable, so that a
    restart continues it.
    """

    #: Directory of the current replica when the move started.
    source_directory_id: DirectoryId
    #: Base offset to durable bytes, in rising order.
    synced: dict[int, int]
    #: Start and end of the log at that time; nothing outside of this range was copied.
    log_start_offset: int
    log_end_offset: int
    epochs: EpochEntries
    #: The copy was complete: bytes, leader epochs and producers.
    is_complete: bool = False


def format_future(checkpoint: FutureCheckpoint) -> bytes:
    """Return the content of the checkpoint file."""
    content = {
        "version": _VERSION,
        "source_directory_id": str(checkpoint.source_directory_id),
        "synced": list(checkpoint.synced.items()),
        "log_start_offset": checkpoint.log_start_offset,
        "log_end_offset": checkpoint.log_end_offset,
        "epochs": checkpoint.epochs,
        "is_complete": checkpoint.is_complete,
    }
    return json.dumps(content).encode()


def parse_future(text: str, path: str) -> FutureCheckpoint:
    """Parse the text of the checkpoint file.

    :raises CorruptCheckpointError: the text is not in the format of :func:`format_future`.
    """
    try:
        content: dict[str, Any] = json.loads(text)
        if content["version"] != _VERSION:
            raise CorruptCheckpointError(f"{path}: version {content['version']}")
        return FutureCheckpoint(
            source_directory_id=DirectoryId.parse(content["source_directory_id"]),
            synced={int(base): int(size) for base, size in content["synced"]},
            log_start_offset=int(content["log_start_offset"]),
            log_end_offset=int(content["log_end_offset"]),
            epochs=tuple(EpochEntry(int(epoch), int(start)) for epoch, start in content["epochs"]),
            is_complete=bool(content["is_complete"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, InvalidUuidText) as e:
        raise CorruptCheckpointError(f"{path}: {e!r}") from e
