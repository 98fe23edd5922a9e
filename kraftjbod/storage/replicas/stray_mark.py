"""DISK. ``set-aside.json``: why and when a replica became a stray, in the stray's own directory.

The mark stores facts that cannot be found out later: the metadata log that did not contain the
replica, and its log start offset, which otherwise only the checkpoints contain.

A stray without a readable mark comes from an older version, or from a disk that refused writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

from kraftjbod.core.errors import InvalidUuidText
from kraftjbod.core.ids import TopicId, Uuid
from kraftjbod.storage.checkpoints import (
    CorruptCheckpointError,
    parse_leader_epochs,
    parse_partition_metadata,
)
from kraftjbod.storage.dir_names import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, STRAY_MARK
from kraftjbod.storage.log.log_loader import is_half_made
from kraftjbod.storage.vfs import Vfs, write_atomically


class StrayReason(Enum):
    """Why a copy is kept as ``-stray`` and not served."""

    TOPIC_UNKNOWN = "topic unknown"
    """The metadata had no topic with its id.

    Topic ids are never reused. So metadata that contains the topic belongs to another metadata log,
    or another branch of it, than the one that decided.
    """
    NOT_A_REPLICA = "not a replica"
    """The metadata had the topic, but no replica of the partition on this broker."""
    SUPERSEDED = "superseded"
    """The copy came with an added directory when another copy was already served."""
    UNREADABLE = "unreadable"
    """Its topic id cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayMark:
    """Content of ``set-aside.json`` in the directory of a stray: why and when the copy became one,
    and its offsets at that time.

    ``metadata_log_id`` is the metadata log that did not contain the replica, None if no metadata
    was consulted. ``set_aside_ms`` is wall-clock time.
    """

    reason: StrayReason
    set_aside_ms: int
    metadata_log_id: Uuid | None = None
    log_start_offset: int = 0
    high_watermark: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStray:
    """Content of a stray's directory. Parts that are missing or unreadable are None. ``last_epoch``
    is the newest leader epoch in its ``leader-epoch-checkpoint``.

    ``holds_nothing``: no records and no readable topic id, as after an interrupted creation.
    """

    topic_id: TopicId | None
    last_epoch: int | None
    mark: StrayMark | None
    size_bytes: int
    holds_nothing: bool


def write_stray_mark(vfs: Vfs, directory: str, mark: StrayMark) -> None:
    document = {
        "version": 1,
        "reason": mark.reason.value,
        "set_aside_ms": mark.set_aside_ms,
        "metadata_log_id": None if mark.metadata_log_id is None else str(mark.metadata_log_id),
        "log_start_offset": mark.log_start_offset,
        "high_watermark": mark.high_watermark,
    }
    write_atomically(vfs, f"{directory}/{STRAY_MARK}", (json.dumps(document) + "\n").encode())


def parse_stray_mark(text: str) -> StrayMark | None:
    """Parse the text of ``set-aside.json``. Return None if it is malformed."""
    try:
        document = json.loads(text)
        log_id = document["metadata_log_id"]
        return StrayMark(
            reason=StrayReason(document["reason"]),
            set_aside_ms=int(document["set_aside_ms"]),
            metadata_log_id=None if log_id is None else Uuid.parse(log_id),
            log_start_offset=int(document["log_start_offset"]),
            high_watermark=int(document["high_watermark"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, InvalidUuidText):
        return None


def examine_stray(vfs: Vfs, directory: str) -> FoundStray:
    """Read what is known of a stray from its files.

    A directory that was removed since it was listed or renamed is a stray that holds nothing.
    """
    mark_text = _text(vfs, f"{directory}/{STRAY_MARK}")
    topic_id = _topic_id(vfs, f"{directory}/{PARTITION_METADATA}")
    is_gone = not vfs.is_dir(directory)
    entries = [] if is_gone else vfs.list_dir(directory, sized="")
    return FoundStray(
        topic_id=topic_id,
        last_epoch=_last_epoch(vfs, f"{directory}/{LEADER_EPOCH_CHECKPOINT}"),
        mark=None if mark_text is None else parse_stray_mark(mark_text),
        size_bytes=sum(entry.known_size for entry in entries),
        holds_nothing=topic_id is None and (is_gone or is_half_made(vfs, directory)),
    )


def _topic_id(vfs: Vfs, path: str) -> TopicId | None:
    text = _text(vfs, path)
    try:
        return None if text is None else parse_partition_metadata(text, path)
    except CorruptCheckpointError:
        return None


def _last_epoch(vfs: Vfs, path: str) -> int | None:
    text = _text(vfs, path)
    try:
        entries = [] if text is None else parse_leader_epochs(text, path)
    except CorruptCheckpointError:
        return None
    return entries[-1][0] if entries else None


def _text(vfs: Vfs, path: str) -> str | None:
    data = vfs.read_if_exists(path)
    return None if data is None else bytes(data).decode(errors="replace")
