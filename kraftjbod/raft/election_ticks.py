"""LOOP. ``ElectionTicks``: drives a replica's state machine by ticks, and checks a leader's lease.

A leader may be voted out without receiving a message. But no other leader can have been elected if
a majority answered messages that this node sent within the last election timeout, less one tick, by
its own clock. That is the lease. Ticks are no substitute for the clock, because they may come late.

Without a valid lease a leader decides and answers nothing. A leader whose disk takes no writes
resigns if there are other voters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kraftjbod.core import buggify
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import Logger
from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.leadership import Leadership

#: Ticks per election timeout.
ELECTION_TICKS: Final = 20
#: Ticks between two heartbeats of a leader.
HEARTBEAT_TICKS: Final = 2


class ElectionTicks:
    """Ticks and lease of one replica. All methods must be called in the event loop's thread."""

    def __init__(
        self,
        *,
        clock: Clock,
        election_timeout_ms: int,
        log: Logger,
        is_disk_stuck: Callable[[], bool],
        is_alone: Callable[[], bool],
        is_reading: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        """Create without a running timer.

        :param is_disk_stuck: whether the metadata directory takes no writes.
        :param is_alone: whether this node is the only voter.
        :param is_reading: whether the listener's state is being reloaded, so that the replica could
            not lead at once.
        :param changed: called after each tick.
        """
        self._clock = clock
        self._election_timeout_ms = election_timeout_ms
        self._log = log
        self._is_disk_stuck = is_disk_stuck
        self._is_alone = is_alone
        self._is_reading = is_reading
        self._changed = changed
        self._ticked_ms = clock.now_ms()
        #: Time at which each recent tick of the leadership began: its messages were not sent
        #: earlier.
        self._began_ms: dict[int, int] = {}
        self._timed: Leadership | None = None

    @property
    def tick_ms(self) -> float:
        return self._election_timeout_ms / ELECTION_TICKS

    def is_lease_valid(self, core: RaftCore) -> bool:
        """Return whether ``core`` leads and, by the clock, no other leader can have been elected.

        Each voter of a majority answered a message sent within the last election timeout, less one
        tick. Such a voter waits that long before it votes for another candidate, unless its
        connection to the leader was closed. The voter's first tick after the message may come at
        once, which is why one tick is left out.
        """
        leadership = core.leadership
        if leadership is None:
            return False
        # Before the first tick of a leadership: it began after the last tick of this node.
        began_ms: int | None = self._ticked_ms
        if leadership is self._timed:
            began_ms = self._began_ms.get(leadership.followed_tick)
        lease_ms = self._election_timeout_ms - self.tick_ms
        return began_ms is not None and self._clock.now_ms() - began_ms < lease_ms

    async def run_ticks(self, core: RaftCore) -> None:
        self._ticked_ms = self._clock.now_ms()
        while True:
            before_ms = self._ticked_ms
            late = 4 if buggify.is_on and buggify.fires("raft.late_tick") else 1
            await asyncio.sleep(late * self.tick_ms / 1000)
            self._ticked_ms = self._clock.now_ms()
            is_stuck = self._is_disk_stuck()
            core.hesitates = self._is_reading()
            leads_others = core.leadership is not None and not self._is_alone()
            if leads_others and is_stuck:
                self._log.warning("raft_leader_resigns", term=core.term)
                core.resign()
            elif not is_stuck:
                # A replica without a working disk could not lead, so it does not stand for
                # election.
                core.tick()
            self._note_tick(core, before_ms)
            if leads_others:
                self._log_pause(core, self._ticked_ms - before_ms)
            self._changed()

    def _note_tick(self, core: RaftCore, before_ms: int) -> None:
        leadership = core.leadership
        if leadership is not self._timed:
            self._timed, self._began_ms = leadership, {0: before_ms}
        if leadership is not None:
            self._began_ms.setdefault(leadership.now, self._ticked_ms)
            # Ticks are never early, so this tick is at least an election timeout old.
            self._began_ms.pop(leadership.now - ELECTION_TICKS - 1, None)

    def _log_pause(self, core: RaftCore, pause_ms: int) -> None:
        if pause_ms >= self._election_timeout_ms and core.leadership is not None:
            self._log.warning("raft_leader_stood_still", pause_ms=pause_ms, term=core.term)


def no_draw(_bound: int) -> int:
    """Return 0: a single voter has no competitor, so its timeouts need no randomness."""
    return 0
