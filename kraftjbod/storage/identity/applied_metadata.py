"""DISK. ``applied-metadata.json``: the metadata log that a broker follows, and an applied offset.

The file is in the broker's metadata directory. Its offset may be lower than the broker's applied
offset, never higher. Without the file a broker accepts the first metadata log that it fetches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from kraftjbod.core.errors import InconsistentStorageError, InvalidUuidText
from kraftjbod.core.ids import Uuid
from kraftjbod.storage.dir_names import APPLIED_METADATA
from kraftjbod.storage.vfs import Vfs, write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedMetadata:
    """Metadata log of a broker, with the ``offset`` and ``epoch`` of an entry that the broker has
    applied.

    ``epoch`` is None if it is not known.
    """

    metadata_log_id: Uuid
    offset: int
    epoch: int | None = None
    is_forgotten: bool = False
    """An operator allowed another log. This log is still refused if it ends below ``offset``."""


def path_of(metadata_dir: str) -> str:
    return f"{metadata_dir}/{APPLIED_METADATA}"


def parse_applied_metadata(text: str, path: str) -> AppliedMetadata:
    """Parse the text of ``applied-metadata.json``.

    :raises InconsistentStorageError: the text is damaged. The message names ``path``.
    """
    try:
        document = json.loads(text)
        return AppliedMetadata(
            metadata_log_id=Uuid.parse(document["metadata_log_id"]),
            offset=int(document["offset"]),
            epoch=None if document.get("epoch") is None else int(document["epoch"]),
            is_forgotten=bool(document.get("forgotten", False)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, InvalidUuidText) as e:
        raise InconsistentStorageError(
            f"{path} is damaged ({e}). It says which metadata this broker has followed. If the "
            "controller's metadata is sure to be the right one, remove it with "
            "`kraftjbod-storage forget-metadata` and start again."
        ) from e


def read_applied_metadata(vfs: Vfs, metadata_dir: str) -> AppliedMetadata | None:
    """Return the content of ``applied-metadata.json``; None if the file does not exist.

    :raises InconsistentStorageError: the file is damaged.
    """
    path = path_of(metadata_dir)
    data = vfs.read_if_exists(path)
    if data is None:
        return None
    return parse_applied_metadata(bytes(data).decode(errors="replace"), path)


def write_applied_metadata(vfs: Vfs, metadata_dir: str, applied: AppliedMetadata) -> None:
    """Write ``applied-metadata.json`` atomically and durably."""
    document = {
        "version": 1,
        "metadata_log_id": str(applied.metadata_log_id),
        "offset": applied.offset,
        "epoch": applied.epoch,
        "forgotten": applied.is_forgotten,
    }
    write_atomically(vfs, path_of(metadata_dir), (json.dumps(document) + "\n").encode())


def forget_applied_metadata(vfs: Vfs, metadata_dir: str) -> AppliedMetadata | None:
    """Mark the file's content as forgotten, so that the broker accepts another metadata log.

    Returns the former content; None if the file does not exist.

    :raises InconsistentStorageError: the file was damaged, and was removed.
    """
    try:
        known = read_applied_metadata(vfs, metadata_dir)
    except InconsistentStorageError:
        vfs.unlink_if_exists(path_of(metadata_dir))
        vfs.sync_dir(metadata_dir)
        raise
    if known is not None:
        write_applied_metadata(vfs, metadata_dir, replace(known, is_forgotten=True))
    return known
