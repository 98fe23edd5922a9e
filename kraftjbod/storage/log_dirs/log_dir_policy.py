"""PURE. What a failed operation says about its log dir, and which dir a new replica gets.

``judge`` is the one place that reads an errno; everybody else sees verdicts.
``is_allowed`` is the table of what an impaired dir still takes (KIP-928 for a saturated one).
``error_class`` says by which class whoever asked for the operation hears of it (KIP-18).
The states themselves are in ``core/log_dir_state.py``.
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
    """What an operation is for; named in telemetry, and part of the verdict on its failure."""

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
    FAILED = "failed"
    """The disk is broken, gone, read-only or closed to us: the dir goes OFFLINE."""
    FULL = "full"
    """No space for the operation (ENOSPC, EDQUOT): the dir is SATURATED until there is some."""
    CALLER_BUG = "caller bug"
    """The request itself made no sense; the dir is to be probed before it is blamed."""
    PROCESS_LIMIT = "process limit"
    """This process or machine ran out of something that is not the disk's."""


_FULL: Final = frozenset({ENOSPC, EDQUOT})
#: EFBIG is RLIMIT_FSIZE, or a file that no file system would take: the disk may be empty.
_PROCESS_LIMIT: Final = frozenset({ENOMEM, EFBIG})
_CALLER_BUG: Final = frozenset(
    {ENOENT, EBADF, EINVAL, EEXIST, ENOTDIR, EISDIR, ENAMETOOLONG, ENOTEMPTY}
)


def judge(errno: int | None, kind: OpKind) -> Verdict:
    """What ``errno``, raised by an operation of ``kind``, says about the dir."""
    if errno in OUT_OF_DESCRIPTORS:
        # A file could not be opened, so no flush or probe of the disk was attempted.
        return Verdict.PROCESS_LIMIT
    if kind is OpKind.FLUSH:
        # After a failed fsync the kernel may drop the dirty pages and report success next time,
        # so the first failure is final whatever its number.
        return Verdict.FAILED
    if errno in _FULL:
        return Verdict.FULL
    if kind is OpKind.PROBE:
        return Verdict.FAILED  # A probe only asks one question.
    if errno in _PROCESS_LIMIT:
        return Verdict.PROCESS_LIMIT
    if errno in _CALLER_BUG:
        return Verdict.CALLER_BUG
    return Verdict.FAILED


#: What a SATURATED dir refuses: all that takes space for good.
TAKES_SPACE: Final = frozenset({OpKind.APPEND, OpKind.CREATE})
#: What makes files or directories right below the log dir.
MAKES_NAMES: Final = frozenset({OpKind.CREATE, OpKind.CHECKPOINT})
#: What a STALLED dir takes: what begins or ends its use, finds out whether it answers, or undoes
#: what was begun, after whatever does not end.
_ALWAYS: Final = frozenset({OpKind.CLOSE, OpKind.START, OpKind.LOAD, OpKind.PROBE, OpKind.UNDO})


def is_allowed(state: LogDirState, kind: OpKind) -> bool:
    """Whether a dir in ``state`` takes operations of ``kind``."""
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
    """What an operation of ``kind`` fails with, for whoever asked for it."""
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
    """``with FailsAs(OpKind.INDEX):`` what fails inside is judged as that, whatever the whole is.

    An append may have to flush, or to write an index. The error passes through, marked.
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
    """In which part of an operation ``error`` was raised, if the part has a kind of its own."""
    kind: OpKind = vars(error).get(_KIND_OF_PART, whole)
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class DirCandidate:
    """A dir that could take one more replica.

    ``promised_bytes`` is what its replicas may still write before each has filled a segment,
    so that a hundred empty new replicas do not all go to the dir that was emptiest once.
    """

    directory_id: DirectoryId
    usable_bytes: int
    promised_bytes: int
    replicas: int
    is_cordoned: bool = False
    """It takes no new replicas (KIP-1066)."""
    is_impaired: bool = False
    """It is saturated or stalled, and can take none (KIP-928)."""


def choose_dir(candidates: Sequence[DirCandidate]) -> DirectoryId | None:
    """The dir with most free space after its promises, then with fewest replicas; None of none.

    Never one that is cordoned (KIP-1066, "only a log directory not currently cordoned will be
    selected") or impaired: the replica waits until one takes it.
    """
    able = [one for one in candidates if not one.is_impaired and not one.is_cordoned]
    if not able:
        return None
    best = min(
        able,
        key=lambda c: (c.promised_bytes - c.usable_bytes, c.replicas, c.directory_id),
    )
    return best.directory_id
