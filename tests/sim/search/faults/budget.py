"""``Budget``: the faults that the cluster's promise covers now.

The promise of several controllers: a majority of them runs and is connected. While fewer of them
vote, one may still be away, and then the remaining ones wait for it.
The promise of RF 3 with ``min.insync.replicas`` 2: acknowledged records are on two brokers. So one
broker at a time may lose records, or return without proof that it lost none. It counts until every
replica is in sync again. Faults that only cost time may strike at the same time, within
limits: enough brokers stay up for the cluster to recover.
"""

from __future__ import annotations

from typing import Final

from tests.sim.search.faults.schedule import (
    OF_A_DIR,
    OF_A_LINK,
    OF_ALL_BROKERS,
    OF_THE_CONTROLLER,
    OF_THE_VOTERS,
    UNCLEAN,
    Fault,
    Kind,
)

#: Limit of simultaneous faults.
_MOST: Final = 5
#: Kinds of which only one at a time is played, since the next would undo or hide it.
_ALONE: Final = frozenset(
    {
        Kind.CONFIG,
        Kind.CLOCK_JUMP,
        Kind.CLOCK_DRIFT,
        Kind.REASSIGN,
        Kind.DOWNGRADE,
        Kind.SETTINGS,
    }
)
#: Kinds that lower and raise the same level.
_OF_LEVELS: Final = frozenset({Kind.DOWNGRADE, Kind.LOSSY_DOWNGRADE})
#: Kinds that stop brokers, or need them to run.
_OF_A_PROCESS: Final = frozenset(
    {
        Kind.KILL,
        Kind.STOP,
        Kind.POWER_CUT,
        Kind.REMOVED,
        Kind.SWAPPED,
        Kind.UNREGISTER,
        *OF_ALL_BROKERS,
    }
)
#: Kinds during which a controller is away.
_CONTROLLER_AWAY: Final = (OF_THE_CONTROLLER | {Kind.UNREPORTED_EIO}) - {Kind.METADATA_ROT}


class Budget:
    """The active faults. Call ``why_not`` before a fault, ``begun`` and ``mended`` around it."""

    def __init__(self, *, keeps_promise: bool = True, controllers: int = 1) -> None:
        self._keeps_promise = keeps_promise
        minority = max(1, (controllers - 1) // 2)
        self._most_controllers = minority if keeps_promise else controllers
        self._active: list[Fault] = []
        #: The broker that may have lost records since all replicas were last in sync.
        self.unclean: int | None = None

    def __repr__(self) -> str:
        return f"<Budget unclean={self.unclean} active={[str(fault) for fault in self._active]}>"

    @property
    def active(self) -> tuple[Fault, ...]:
        return tuple(self._active)

    def why_not(self, fault: Fault) -> str:
        """Return the reason why ``fault`` may not begin now; empty if it may."""
        if len(self._active) >= _MOST:
            return f"{_MOST} faults are enough"
        if any(_clash(fault, one) for one in self._active):
            return "another fault has it"
        away = _away(fault)
        if away and self._controllers_away + away > self._most_controllers:
            return "no more controllers may be away"
        if not self._keeps_promise:
            return ""
        is_unclean = fault.kind in UNCLEAN
        if fault.kind is Kind.LOSSY_DOWNGRADE and self.unclean is not None:
            return f"broker {self.unclean} may have lost records"
        if is_unclean and any(one.kind is Kind.LOSSY_DOWNGRADE for one in self._active):
            return "eligible leader replicas are off"
        if is_unclean and self.unclean not in (None, fault.broker):
            return f"broker {self.unclean} may have lost records"
        if fault.kind is Kind.STOP and any(one.kind is Kind.STOP for one in self._active):
            return "another broker is stopped"
        return ""

    @property
    def _controllers_away(self) -> int:
        return sum(map(_away, self._active))

    def begun(self, fault: Fault) -> None:
        self._active.append(fault)
        if fault.kind in UNCLEAN:
            self.unclean = fault.broker

    def mended(self, fault: Fault) -> None:
        self._active.remove(fault)

    def all_in_sync(self) -> None:
        """Note that every replica is in sync, as a controller that knows of every loss reports."""
        if not any(fault.kind in UNCLEAN for fault in self._active):
            self.unclean = None


def _away(fault: Fault) -> int:
    """Return how many controllers are away during ``fault``."""
    if fault.kind is Kind.METADATA_HANG_OF_FOLLOWER:
        return 2  # The follower, and the leader of the moment.
    return int(fault.kind in _CONTROLLER_AWAY)


def _clash(a: Fault, b: Fault) -> bool:
    """Return whether the faults affect the same target and must not overlap."""
    if a.kind in _ALONE and a.kind is b.kind:
        return True
    if {a.kind, b.kind} <= _OF_LEVELS:
        return True
    changes_of_voters = {a.kind, b.kind} - {Kind.METADATA_LOST_END}
    if changes_of_voters and changes_of_voters <= OF_THE_VOTERS:
        # One of two voters may not lose its disk, or the end of its log.
        return True
    if a.kind in OF_A_LINK and b.kind in OF_A_LINK:
        return {a.broker, a.other} == {b.broker, b.other}
    if OF_ALL_BROKERS & {a.kind, b.kind}:
        return a.kind in _OF_A_PROCESS and b.kind in _OF_A_PROCESS
    if a.kind is Kind.WIPE and b.kind is Kind.WIPE:
        # A broker with only empty disks does not start until its operator formats them.
        return a.broker == b.broker
    if Kind.SWAPPED in (a.kind, b.kind) and (OF_A_DIR & {a.kind, b.kind}):
        return a.broker == b.broker
    if a.kind in OF_A_DIR and b.kind in OF_A_DIR:
        return (a.broker, a.dir) == (b.broker, b.dir)
    if a.kind in OF_THE_CONTROLLER:
        return False
    return a.kind is b.kind and a.broker == b.broker
