"""PURE. Names of directories and files in a log directory: parsing and formatting.

* A replica: ``<topic>-<partition>``.
* A replica that is being deleted: ``<topic>-<partition>.<32 hex digits>-delete``.
* A stray replica: the same with ``-stray``. A copy that a move builds: the same with ``-future``.

:func:`parse_replica_dir` returns None for other names, such as ``lost+found``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition, Uuid

META_PROPERTIES: Final = "meta.properties"
LOCK_FILE: Final = ".lock"
PROBE_FILE: Final = ".probe"
RESERVE_FILE: Final = ".kraftjbod_reserve"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
FUTURE_CHECKPOINT: Final = "future-copy-checkpoint"
#: An empty file in a replica's directory. Offsets may be missing between its batches, because
#: compaction removed them, here or on a leader. Without the file, missing offsets are damage.
GAPS_MARK: Final = "may-have-gaps"
#: In the directory of a stray replica: why the replica is a stray.
STRAY_MARK: Final = "set-aside.json"
SCRUB_FILE: Final = ".kraftjbod_scrub"
KNOWN_LOG_DIRS: Final = "known-log-dirs.json"
ASKED_MOVES: Final = "asked-moves.json"
APPLIED_METADATA: Final = "applied-metadata.json"
#: In a controller's metadata directory: its log has to get another id.
FORK_MARK: Final = "fork-metadata"
BOOTSTRAP_FILE: Final = "bootstrap.json"
CLUSTER_METADATA_DIR: Final = "__cluster_metadata-0"

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
#: Aborted transactions of the segment. A segment without any may have no such file.
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
#: Files that may exist beside a segment's ``.log``.
INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
#: Segments that retention removed. A start may restore them (see ``log_loader``). It never restores
#: ``.deleted`` segments: truncation and compaction removed those.
EXPIRED_SUFFIX: Final = ".expired"
#: Output of compaction while it is written, and while it replaces the old segments.
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
#: Files of an operation that a crash interrupted; removed when a replica is loaded.
LEFTOVER_SUFFIXES: Final = (DELETED_SUFFIX, EXPIRED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")

#: Plain files directly in a log directory.
OWN_FILES: Final = frozenset(
    {
        META_PROPERTIES,
        LOCK_FILE,
        PROBE_FILE,
        RESERVE_FILE,
        CLEAN_SHUTDOWN_FILE,
        RECOVERY_POINT_CHECKPOINT,
        LOG_START_CHECKPOINT,
        HIGH_WATERMARK_CHECKPOINT,
        CLEANER_CHECKPOINT,
        SCRUB_FILE,
        KNOWN_LOG_DIRS,
        ASKED_MOVES,
        APPLIED_METADATA,
        BOOTSTRAP_FILE,
        FORK_MARK,
    }
)

_MAX_NAME_BYTES: Final = 255
_OFFSET_DIGITS: Final = 20
_TOPIC: Final = r"(?P<topic>[a-zA-Z0-9._-]+)"
_PARTITION: Final = r"(?P<partition>0|[1-9][0-9]*)"
_CURRENT: Final = re.compile(rf"{_TOPIC}-{_PARTITION}")
_SUFFIXED: Final = re.compile(
    rf"{_TOPIC}-{_PARTITION}\.(?P<uid>[0-9a-f]{{32}})-(?P<kind>delete|stray|future)"
)
#: The topic and partition may be shortened, so only the end of the name is matched.
_DOOMED: Final = re.compile(r".*\.(?P<uid>[0-9a-f]{32})-(?P<kind>delete|stray)")
_OFFSET_FILE: Final = re.compile(r"(?P<offset>[0-9]{20})(?P<suffix>\.[a-z]+)")


class ReplicaDirKind(Enum):
    """Purpose of a replica's directory, by the suffix of its name."""

    CURRENT = "current"
    """The replica itself; no suffix."""
    DELETE = "delete"
    """Being deleted."""
    STRAY = "stray"
    """Set aside: kept, but not served."""
    FUTURE = "future"
    """The copy that a move builds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDir:
    """Parsed name of a replica's directory.

    ``topic_partition`` is None if the topic may have been shortened. ``unique`` is None for a
    current replica. The two directories of a swap, ``-future`` and ``-delete``, have the id of the
    move there.
    """

    name: str
    kind: ReplicaDirKind
    topic_partition: TopicPartition | None
    unique: Uuid | None = None


def parse_replica_dir(name: str) -> ReplicaDir | None:
    """Parse the name of a replica's directory. Return None if ``name`` is another name."""
    for pattern in (_SUFFIXED, _CURRENT):
        if found := pattern.fullmatch(name):
            tp = TopicPartition(found["topic"], int(found["partition"]))
            return _replica_dir(name, found.groupdict(), tp)
    if found := _DOOMED.fullmatch(name):
        return _replica_dir(name, found.groupdict(), None)
    return None


def _replica_dir(name: str, found: dict[str, str], tp: TopicPartition | None) -> ReplicaDir:
    uid = found.get("uid")
    return ReplicaDir(
        name=name,
        kind=ReplicaDirKind(found.get("kind", "current")),
        topic_partition=tp,
        unique=None if uid is None else Uuid(bytes.fromhex(uid)),
    )


def doomed_dir_name(tp: TopicPartition, kind: ReplicaDirKind, unique: Uuid) -> str:
    """Return the directory name of a replica that is deleted (``-delete``) or a stray (``-stray``).

    The topic is shortened if the file system's limit on names requires it.
    """
    assert kind in (ReplicaDirKind.DELETE, ReplicaDirKind.STRAY), kind
    suffix = f".{unique.hex()}-{kind.value}"
    return f"{tp}"[: _MAX_NAME_BYTES - len(suffix)] + suffix


def future_dir_name(tp: TopicPartition, move_id: Uuid) -> str:
    """Return the directory name of the copy that a move builds. The topic is never shortened.

    :raises OperatingError: INVALID_TOPIC_EXCEPTION, if the name exceeds the file system's limit.
    """
    name = f"{tp}.{move_id.hex()}-{ReplicaDirKind.FUTURE.value}"
    if len(name) > _MAX_NAME_BYTES:
        raise OperatingError("The topic name is too long.", code=ErrorCode.INVALID_TOPIC_EXCEPTION)
    return name


def offset_file_name(offset: int, suffix: str) -> str:
    """Return ``00000000000000000042.log`` for 42 and ``.log``."""
    return f"{offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_offset_file(name: str) -> tuple[int, str] | None:
    """Return the offset and the suffix of a file in a replica's directory; None for other names."""
    found = _OFFSET_FILE.fullmatch(name)
    if found is None:
        return None
    return int(found["offset"]), found["suffix"]
