"""PURE. The states of a replica on this broker (KIP-928) and the table of transitions.

* MAKING: the replica's log is being created.
* HELD_BACK: the replica has no log, and at present no directory accepts a new one.
* ONLINE: its log accepts all operations.
* SATURATED, STALLED: its log is in a directory in that state (``core/log_dir_state.py``). The log
  is kept but accepts no appends, the replica does not fetch, and it recovers automatically.
* OFFLINE: its log is, or may be, in an offline directory. No log is created in its place.
* GONE: this broker no longer hosts the replica.

The state says which operations the replica can do. Its role, leader or follower, is in
``partition.py``. An event that is missing in the table changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from kraftjbod.core.log_dir_state import LogDirState


class ReplicaState(Enum):
    """States of a replica on this broker, whether it leads or follows."""

    MAKING = "making"
    """The broker creates or opens the log."""
    HELD_BACK = "held_back"
    """The log cannot be created yet: each possible directory is full, hangs or is cordoned."""
    ONLINE = "online"
    SATURATED = "saturated"
    """The directory's disk is full."""
    STALLED = "stalled"
    """The directory's disk hangs."""
    OFFLINE = "offline"
    """The directory is offline, or the log is lost."""
    GONE = "gone"
    """The broker does not host the replica any more."""

    @property
    def is_impaired(self) -> bool:
        return self in (ReplicaState.SATURATED, ReplicaState.STALLED)


class ReplicaEvent(Enum):
    """The events of a replica; the values label the diagram."""

    WANTED = "its log is to be created"
    REFUSED = "no directory accepts a new log now"
    OPENED = "its log is open"
    FILLED_UP = "its directory is saturated"
    STALLED = "its directory is stalled"
    RECOVERED = "its directory is online again"
    LOST = "its directory is offline"
    LEFT = "removed from this broker"


_S, _E = ReplicaState, ReplicaEvent

TRANSITIONS: Final[Mapping[tuple[ReplicaState, ReplicaEvent], ReplicaState]] = {
    (_S.MAKING, _E.OPENED): _S.ONLINE,
    (_S.MAKING, _E.REFUSED): _S.HELD_BACK,
    (_S.MAKING, _E.LOST): _S.OFFLINE,
    (_S.MAKING, _E.LEFT): _S.GONE,
    (_S.HELD_BACK, _E.WANTED): _S.MAKING,
    (_S.HELD_BACK, _E.OPENED): _S.ONLINE,
    (_S.HELD_BACK, _E.LOST): _S.OFFLINE,
    (_S.HELD_BACK, _E.LEFT): _S.GONE,
    (_S.ONLINE, _E.FILLED_UP): _S.SATURATED,
    (_S.ONLINE, _E.STALLED): _S.STALLED,
    (_S.ONLINE, _E.LOST): _S.OFFLINE,
    (_S.ONLINE, _E.LEFT): _S.GONE,
    (_S.SATURATED, _E.RECOVERED): _S.ONLINE,
    (_S.SATURATED, _E.STALLED): _S.STALLED,
    (_S.SATURATED, _E.LOST): _S.OFFLINE,
    (_S.SATURATED, _E.LEFT): _S.GONE,
    (_S.STALLED, _E.RECOVERED): _S.ONLINE,
    (_S.STALLED, _E.FILLED_UP): _S.SATURATED,
    (_S.STALLED, _E.LOST): _S.OFFLINE,
    (_S.STALLED, _E.LEFT): _S.GONE,
    (_S.OFFLINE, _E.WANTED): _S.MAKING,
    (_S.OFFLINE, _E.OPENED): _S.ONLINE,
    (_S.OFFLINE, _E.LEFT): _S.GONE,
}

#: The event that each directory state causes for a replica.
EVENT_OF_DIR: Final[Mapping[LogDirState, ReplicaEvent]] = {
    LogDirState.ONLINE: _E.RECOVERED,
    LogDirState.SATURATED: _E.FILLED_UP,
    LogDirState.STALLED: _E.STALLED,
    LogDirState.OFFLINE: _E.LOST,
}


def next_state(state: ReplicaState, event: ReplicaEvent) -> ReplicaState:
    """Return the state after ``event``: the same state if the table has no such transition."""
    return TRANSITIONS.get((state, event), state)
