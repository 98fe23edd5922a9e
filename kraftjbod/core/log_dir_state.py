"""PURE. The states of a log directory, and the table of what leads from one to another.

* ONLINE: it takes everything.
* SATURATED (KIP-928): no free space. What is there can be read, and what frees space goes on.
* STALLED: it does not answer for the moment; nothing is known to be wrong with what it holds.
* OFFLINE: it failed, and the process trusts it no more until an operator brings it back.

SATURATED and STALLED are *impaired*: the directory stays registered, but its replicas neither lead
nor count as in sync wherever another one can.
The table is all there is: an event that it does not name changes nothing.
``storage/log_dirs/log_dir_policy.py`` says what each state allows.
``storage/log_dirs/log_dir.py`` finds
the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class LogDirState(Enum):
    """Values are what DescribeLogDirs, heartbeats and telemetry say."""

    ONLINE = "online"
    SATURATED = "saturated"
    STALLED = "stalled"
    OFFLINE = "offline"

    @property
    def is_impaired(self) -> bool:
        return self in IMPAIRED


IMPAIRED: Final = frozenset({LogDirState.SATURATED, LogDirState.STALLED})


class LogDirEvent(Enum):
    """What may happen to a directory, in the words of the diagram."""

    FILLED_UP = "no space left"
    """An operation found no free space, or less is free than ``log.dir.min.free.bytes``."""
    HAS_SPACE = "space again, reserve rebuilt"
    SUSPECTED = "an operation does not end"
    ANSWERED = "operations end again"
    ANSWERED_FULL = "operations end again, no reserve"
    FAILED = "failed, or silent for too long"
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
    """The state after ``event``; the same one if the table does not name it."""
    return TRANSITIONS.get((state, event), state)
