"""PURE. The states of a log directory, and the table of transitions between them.

* ONLINE: all operations are accepted.
* SATURATED (KIP-928): no free space. Reads and operations that free space are accepted.
* STALLED: the disk does not respond at the moment. Its data is not known to be damaged
  (ADR 26).
* OFFLINE: the disk failed. The process does not use it until an operator reattaches it.

SATURATED and STALLED are *impaired*: the directory stays registered, but its replicas neither lead
nor count as in sync if other replicas can.
The table is complete: a pair of state and event that it does not name changes nothing.
``storage/log_dirs/log_dir_policy.py`` says which operations each state allows.
``storage/log_dirs/log_dir.py`` detects the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class LogDirState(Enum):
    """States of a log directory. The values appear in DescribeLogDirs, heartbeats and telemetry."""

    ONLINE = "online"
    SATURATED = "saturated"
    """The disk is full: appends and new replicas are refused (KIP-928)."""
    STALLED = "stalled"
    """An operation does not end: most others are refused until it ends."""
    OFFLINE = "offline"
    """Failed. The directory returns when it is reattached, or at a restart of the broker."""

    @property
    def is_impaired(self) -> bool:
        return self in IMPAIRED


IMPAIRED: Final = frozenset({LogDirState.SATURATED, LogDirState.STALLED})


class LogDirEvent(Enum):
    """Events that change the state of a log directory. The values label the diagram in the docs."""

    FILLED_UP = "no space left"
    """An operation got ENOSPC, or less is free than ``log.dir.min.free.bytes``."""
    HAS_SPACE = "space is free again, reserve rebuilt"
    SUSPECTED = "an operation does not end"
    """An operation has run for longer than ``log.dir.io.suspect.ms``."""
    ANSWERED = "the operation ended"
    ANSWERED_FULL = "the operation ended, no reserve"
    FAILED = "failed, or silent for too long"
    """An operation failed, or has run for longer than ``log.dir.io.timeout.ms``."""
    REATTACHED = "reattached"


_S, _E = LogDirState, LogDirEvent

TRANSITIONS: Final[Mapping[tuple[LogDirState, LogDirEvent], LogDirState]] = {
    (_S.ONLINE, _E.FILLED_UP): _S.SATURATED,
    (_S.ONLINE, _E.SUSPECTED): _S.STALLED,
    (_S.ONLINE, _E.FAILED): _S.OFFLINE,
    (_S.SATURATED, _E.HAS_SPACE): _S.ONLINE,
    (_S.SATURATED, _E.SUSPECTED): _S.STALLED,
    (_S.SATURATED, _E.FAILED): _S.OFFLINE,
    (_S.STALLED, _E.ANSWERED): _S.ONLINE,
    (_S.STALLED, _E.ANSWERED_FULL): _S.SATURATED,
    (_S.STALLED, _E.FAILED): _S.OFFLINE,
    (_S.OFFLINE, _E.REATTACHED): _S.ONLINE,
}


def next_state(state: LogDirState, event: LogDirEvent) -> LogDirState:
    """Return the state after ``event``; the same state if the table has no such transition."""
    return TRANSITIONS.get((state, event), state)
