"""LOOP. ``ElectionTicks``: the time of a replica's machine, and whether it can be relied on.

A leader may be voted out without a message reaching it. No other one can have been elected while a
majority has answered what it sent within the last election time-out, by this node's clock: ticks
may come late. Until then a leader decides and answers nothing. A disk that does not take writes is
none to lead with: a leader with company gives up.
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

#: Of an election time-out.
ELECTION_TICKS: Final = 20
#: Between two signs of a leader's life.
HEARTBEAT_TICKS: Final = 2


class ElectionTicks:
    """For the loop's thread."""

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
        """
        :param is_reading: the replica could not lead at once: its state is being read again.
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
        #: By tick of the leadership beside it: what that tick numbers was not sent before.
        self._began_ms: dict[int, int] = {}
        self._timed: Leadership | None = None

    @property
    def tick_ms(self) -> float:
        return self._election_timeout_ms / ELECTION_TICKS

    def is_lease_valid(self, core: RaftCore) -> bool:
        """Return whether ``core`` leads, and its clock proves that the voters which follow it wait.

        Each of a majority received a message of the last election time-out and waits as long
        before it votes for another candidate, unless its connection to the leader was closed.
        """
        leadership = core.leadership
        if leadership is None:
            return False
        # A leadership without a tick so far began after the last tick of this node.
        began_ms: int | None = self._ticked_ms
        if leadership is self._timed:
            began_ms = self._began_ms.get(leadership.followed_tick)
        return began_ms is not None and self._clock.now_ms() - began_ms < self._election_timeout_ms

    async def run(self, core: RaftCore) -> None:
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
                # Without a disk it could not lead, so it does not stand.
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
            # Ticks do not come early, so that one is an election time-out old.
            self._began_ms.pop(leadership.now - ELECTION_TICKS - 1, None)

    def _log_pause(self, core: RaftCore, pause_ms: int) -> None:
        if pause_ms >= self._election_timeout_ms and core.leadership is not None:
            self._log.warning("raft_leader_stood_still", pause_ms=pause_ms, term=core.term)


def no_draw(_bound: int) -> int:
    """One voter waits for nobody, so that its time-outs need no luck."""
    return 0
