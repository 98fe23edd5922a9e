"""PURE. Verdicts on failed disk operations, and the choice of a log directory for a new replica.

* ``judge`` is the only function that interprets an errno. Other code uses its verdicts.
* A failed fsync is final (ADR 14).
* ``is_allowed`` is the table of operations that an impaired directory accepts. KIP-928 defines it
  for a saturated one.
* ``error_class`` maps a kind of operation to the exception of its caller (KIP-18).

The states are defined in ``core/log_dir_state.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from errno import (
    EBADF,
    EDQUOT,
    EEXIST,
    EFBIG,
    EINVAL,
    EISDIR,
    ENAMETOOLONG,
    ENOENT,
    ENOMEM,
    ENOSPC,
    ENOTDIR,
    ENOTEMPTY,
)
from typing import Final, assert_never

from kraftjbod.core.descriptor_budget import OUT_OF_DESCRIPTORS
from kraftjbod.core.errors import (
    KafkaStorageError,
    LogAppendError,
    LogCheckpointError,
    LogFlushError,
    LogIndexError,
    LogReadError,
    LogRenameError,
)
from kraftjbod.core.ids import DirectoryId
from kraftjbod.core.log_dir_state import LogDirState

_KIND_OF_PART: Final = "kind_of_part"


class OpKind(Enum):
    """Purpose of a disk operation.

    Log events name it, and the verdict on a failure depends on it.
    """

    START = "start"
    LOAD = "load"
    CREATE = "create"
    APPEND = "append"
    READ = "read"
    TRUNCATE = "truncate"
    RETENTION = "retention"
    RENAME = "rename"
    DELETE = "delete"
    CHECKPOINT = "checkpoint"
    INDEX = "index"
    CLOSE = "close"
    FLUSH = "flush"
    UNDO = "undo"
    PROBE = "probe"


class Verdict(Enum):
    """What a failed disk operation means for its log directory."""

    FAILED = "failed"
    """The disk is broken, gone, read-only or inaccessible: the directory goes OFFLINE."""
    FULL = "full"
    """No space for the operation (ENOSPC, EDQUOT): the directory is SATURATED for now."""
    CALLER_BUG = "caller bug"
    """The operation itself was invalid. The disk is checked before the directory is blamed."""
    PROCESS_LIMIT = "process limit"
    """The process or machine lacks a resource other than disk space."""


_FULL: Final = frozenset({ENOSPC, EDQUOT})
#: EFBIG comes from RLIMIT_FSIZE or the largest file size. Neither means a full disk.
_PROCESS_LIMIT: Final = frozenset({ENOMEM, EFBIG})
_CALLER_BUG: Final = frozenset(
    {ENOENT, EBADF, EINVAL, EEXIST, ENOTDIR, EISDIR, ENAMETOOLONG, ENOTEMPTY}
)
#: Operations for which ENOENT proves no loss: a start and a load use names that they listed, and a
#: deletion may find its names removed. All others use names of files that this broker created, in
#: the thread that alone renames and removes them. ENOENT means for these that the file system or
#: another program removed records (KIP-18).
_NAMES_MAY_VANISH: Final = frozenset({OpKind.START, OpKind.LOAD, OpKind.DELETE})


def judge(errno: int | None, kind: OpKind) -> Verdict:
    """Decide what a failed disk operation means for its directory.

    :param errno: of the ``OSError``; None if it has none.
    :param kind: purpose of the operation. A failed flush is final, except for a lack of
        descriptors.
    """
    if errno in OUT_OF_DESCRIPTORS:
        # Opening a file failed, so no flush or probe of the disk was attempted.
        return Verdict.PROCESS_LIMIT
    if kind is OpKind.FLUSH:
        # After a failed fsync the kernel may drop dirty pages and report success on a retry. So the
        # first failure is final for every errno.
        return Verdict.FAILED
    if errno in _FULL:
        return Verdict.FULL
    if kind is OpKind.PROBE:
        return Verdict.FAILED  # A probe does nothing but check the disk.
    if errno in _PROCESS_LIMIT:
        return Verdict.PROCESS_LIMIT
    if errno == ENOENT and kind not in _NAMES_MAY_VANISH:
        return Verdict.FAILED
    if errno in _CALLER_BUG:
        return Verdict.CALLER_BUG
    return Verdict.FAILED


#: Operations that a SATURATED directory refuses, because they take space permanently.
TAKES_SPACE: Final = frozenset({OpKind.APPEND, OpKind.CREATE})
#: Operations that create files or directories directly in the log directory.
MAKES_NAMES: Final = frozenset({OpKind.CREATE, OpKind.CHECKPOINT})
#: Operations that a STALLED directory accepts. They open or close it, check whether it responds, or
#: undo changes once the hanging operation has ended.
_ALWAYS: Final = frozenset({OpKind.CLOSE, OpKind.START, OpKind.LOAD, OpKind.PROBE, OpKind.UNDO})


def is_allowed(state: LogDirState, kind: OpKind) -> bool:
    """Return whether a directory in ``state`` accepts operations of ``kind``."""
    match state:
        case LogDirState.ONLINE:
            return True
        case LogDirState.SATURATED:
            return kind not in TAKES_SPACE
        case LogDirState.STALLED:
            return kind in _ALWAYS
        case LogDirState.OFFLINE:
            return False
        case _:
            assert_never(state)


def error_class(kind: OpKind) -> type[KafkaStorageError]:
    """Return the exception class for the caller of a failed operation of ``kind``."""
    match kind:
        case OpKind.APPEND | OpKind.TRUNCATE:
            return LogAppendError
        case OpKind.READ | OpKind.LOAD:
            return LogReadError
        case OpKind.FLUSH | OpKind.CLOSE:
            return LogFlushError
        case OpKind.CHECKPOINT:
            return LogCheckpointError
        case OpKind.INDEX:
            return LogIndexError
        case OpKind.CREATE | OpKind.RENAME | OpKind.UNDO | OpKind.DELETE | OpKind.RETENTION:
            return LogRenameError
        case OpKind.START | OpKind.PROBE:
            return KafkaStorageError
        case _:
            assert_never(kind)


class FailsAs:
    """Context manager that marks errors of its body as failures of another kind of operation.

    For example, an append may have to flush or to write an index. The error is raised again.
    """

    __slots__ = ("_kind",)

    def __init__(self, kind: OpKind) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        return

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            vars(error).setdefault(_KIND_OF_PART, self._kind)


def kind_of_failure(error: BaseException, whole: OpKind) -> OpKind:
    """Return the kind of operation that really failed: the one that :class:`FailsAs` stored in
    ``error``, else ``whole``, the kind of the whole operation.
    """
    kind: OpKind = vars(error).get(_KIND_OF_PART, whole)
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class DirCandidate:
    """A log directory that could take one more replica.

    ``promised_bytes`` is the space that existing replicas need until each has filled one segment.
    Without it, many new empty replicas would all go to the directory with the most free bytes.
    """

    directory_id: DirectoryId
    usable_bytes: int
    promised_bytes: int
    replicas: int
    is_cordoned: bool = False
    """It accepts no new replicas (KIP-1066)."""
    is_impaired: bool = False
    """It is saturated or stalled, and accepts no replicas now (KIP-928)."""


def choose_dir(candidates: Sequence[DirCandidate]) -> DirectoryId | None:
    """Return the directory with the most free space that is not promised; on a tie, the fewest
    replicas.

    Cordoned (KIP-1066, "only a log directory not currently cordoned will be selected") and impaired
    directories are never chosen. Returns None if no directory remains: the replica waits then.
    """
    able = [one for one in candidates if not one.is_impaired and not one.is_cordoned]
    if not able:
        return None
    best = min(
        able,
        key=lambda c: (c.promised_bytes - c.usable_bytes, c.replicas, c.directory_id),
    )
    return best.directory_id
