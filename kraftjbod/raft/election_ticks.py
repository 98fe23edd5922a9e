"""LOOP. ``ElectionTicks``: the time of a replica's machine, and whether it can be relied on.

A process that stood still may have been voted out without having heard of it, and a disk that does
not take writes is none to lead with: a leader with company gives up then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import Logger
from kraftjbod.raft.machine.core import RaftCore

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
        changed: Callable[[], None],
    ) -> None:
        """:param changed: hears of each tick."""
        self._clock = clock
        self._election_timeout_ms = election_timeout_ms
        self._log = log
        self._is_disk_stuck = is_disk_stuck
        self._is_alone = is_alone
        self._changed = changed
        self._ticked_ms = clock.now_ms()

    @property
    def tick_ms(self) -> float:
        return self._election_timeout_ms / ELECTION_TICKS

    @property
    def are_fresh(self) -> bool:
        """Nobody else can have been elected, as far as a clock proves it."""
        return self._clock.now_ms() - self._ticked_ms < self._election_timeout_ms

    async def run(self, core: RaftCore) -> None:
        self._ticked_ms = self._clock.now_ms()
        while True:
            before_ms = self._ticked_ms
            await asyncio.sleep(self.tick_ms / 1000)
            self._ticked_ms = self._clock.now_ms()
            stood_still = self._ticked_ms - before_ms >= self._election_timeout_ms
            is_stuck = self._is_disk_stuck()
            leads_others = core.leadership is not None and not self._is_alone()
            if leads_others and (stood_still or is_stuck):
                reason = "disk" if is_stuck else "pause"
                self._log.warning("raft_leader_resigns", reason=reason, term=core.term)
                core.resign()
            elif not is_stuck:
                # Without a disk it could not lead, so it does not stand.
                core.tick()
            self._changed()


def no_draw(_bound: int) -> int:
    """One voter waits for nobody, so that its time-outs need no luck."""
    return 0
