"""LOOP. ``ElectionTicks``: the time of a replica's machine, and whether it can be relied on.

A process that stood still may have been voted out without having heard of it: a leader decides and
answers nothing then until a majority has said that it still follows. A disk that does not take
writes is none to lead with: a leader with company gives up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

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
        :param is_reading: it could not lead at once: its state is being read anew.
        :param changed: hears of each tick.
        """
        self._clock = clock
        self._election_timeout_ms = election_timeout_ms
        self._log = log
        self._is_disk_stuck = is_disk_stuck
        self._is_alone = is_alone
        self._is_reading = is_reading
        self._changed = changed
        self._ticked_ms = clock.now_ms()
        #: Stood still while it led, and when by its ticks; None once a majority has answered since.
        self._doubted: tuple[Leadership, int] | None = None

    @property
    def tick_ms(self) -> float:
        return self._election_timeout_ms / ELECTION_TICKS

    @property
    def are_fresh(self) -> bool:
        """Nobody else can have been elected, as far as a clock proves it."""
        is_fresh = self._clock.now_ms() - self._ticked_ms < self._election_timeout_ms
        return is_fresh and self._doubted is None

    async def run(self, core: RaftCore) -> None:
        self._ticked_ms = self._clock.now_ms()
        while True:
            before_ms = self._ticked_ms
            await asyncio.sleep(self.tick_ms / 1000)
            self._ticked_ms = self._clock.now_ms()
            stood_still = self._ticked_ms - before_ms >= self._election_timeout_ms
            is_stuck = self._is_disk_stuck()
            core.hesitates = self._is_reading()
            leads_others = core.leadership is not None and not self._is_alone()
            if leads_others and is_stuck:
                self._log.warning("raft_leader_resigns", term=core.term)
                core.resign()
            elif not is_stuck:
                # Without a disk it could not lead, so it does not stand.
                core.tick()
            if leads_others and stood_still:
                self._doubt(core, self._ticked_ms - before_ms)
            self._settle(core)
            self._changed()

    def _doubt(self, core: RaftCore, pause_ms: int) -> None:
        if (leadership := core.leadership) is not None:
            self._doubted = leadership, leadership.now
            self._log.warning("raft_leader_stood_still", pause_ms=pause_ms, term=core.term)

    def _settle(self, core: RaftCore) -> None:
        """Who was voted out is told so by the first that answers, and leads no more."""
        if self._doubted is None:
            return
        leadership, since_tick = self._doubted
        # What comes before the next sign of life went out may be answers from before the pause.
        answered_within = leadership.now - since_tick - HEARTBEAT_TICKS
        is_over = core.leadership is not leadership
        if is_over or (answered_within >= 0 and leadership.has_majority(answered_within)):
            self._doubted = None


def no_draw(_bound: int) -> int:
    """One voter waits for nobody, so that its time-outs need no luck."""
    return 0
