"""LOOP. ``ElectionTicks``: drives a replica's state machine by ticks, and checks a leader's lease.

A leader may be voted out without receiving a message. But no other leader can have been elected if
a majority answered messages that this node sent within the last election timeout, less one tick, by
its own clock. That is the lease. Ticks are no substitute for the clock, because they may come late.

Without a valid lease a leader decides and answers nothing. A leader whose disk takes no writes
resigns if there are other voters.

While there is a leader, several ticks are counted at one wakeup, because waking an idle process
costs more than a tick. Ticks that have passed are counted before each message, so a message does
not restart a timeout that later receives ticks from before the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kraftjbod.core import buggify
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import Logger
from kraftjbod.raft.machine.core import RaftCore, Role
from kraftjbod.raft.machine.leadership import Leadership

#: Ticks per election timeout.
ELECTION_TICKS: Final = 20
#: Ticks between two heartbeats of a leader: five per election timeout, so four may be late.
HEARTBEAT_TICKS: Final = 4
#: Ticks per wakeup while there is a leader. Heartbeats are due at wakeups.
_STEADY_TICKS: Final = HEARTBEAT_TICKS


class ElectionTicks:
    """Passes the ticks of the clock to one replica's state machine, and tells whether its lease as
    the leader is valid.

    All methods must be called in the event loop's thread.
    """

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
        #: Ticks of the present sleep that are not counted yet, and the time when the first of them
        #: began.
        self._uncounted = 0
        self._counted_ms = float(self._ticked_ms)
        self._woken = asyncio.Event()
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
            await self._sleep(core)
            leads_others = core.leadership is not None and not self._is_alone()
            self._count_ticks(core, self._uncounted)
            if leads_others:
                self._log_pause(core, self._ticked_ms - before_ms)
            self._changed()

    async def _sleep(self, core: RaftCore) -> None:
        """Sleep until the next tick, or the next ticks while there is a leader.

        :meth:`note_change` ends the sleep, if ticks are needed one by one.
        """
        self._uncounted = _STEADY_TICKS if _is_steady(core) else 1
        self._counted_ms = self._clock.now_ms()
        late = 4 if buggify.is_on and buggify.fires("raft.late_tick") else 1
        self._woken.clear()
        timer = asyncio.get_running_loop().call_later(
            late * self._uncounted * self.tick_ms / 1000, self._woken.set
        )
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    def count_passed_ticks(self, core: RaftCore) -> None:
        """Count the ticks of the present sleep that have passed.

        Call this before an input that may restart the election timeout of ``core``.
        """
        passed = int((self._clock.now_ms() - self._counted_ms) / self.tick_ms)
        # The last tick of a sleep is counted at its end.
        passed = min(passed, self._uncounted - 1)
        if passed > 0:
            self._count_ticks(core, passed)

    def note_change(self, core: RaftCore) -> None:
        """End a sleep of several ticks if there is no leader any more, because an election may be
        due at each tick.
        """
        if self._uncounted > 1 and not _is_steady(core):
            self.count_passed_ticks(core)
            self._uncounted = 0
            self._woken.set()

    def _count_ticks(self, core: RaftCore, count: int) -> None:
        before_ms, self._ticked_ms = self._ticked_ms, self._clock.now_ms()
        self._uncounted -= count
        self._counted_ms += count * self.tick_ms
        was_steady = _is_steady(core)
        is_stuck = self._is_disk_stuck()
        core.hesitates = self._is_reading()
        if core.leadership is not None and not self._is_alone() and is_stuck:
            self._log.warning("raft_leader_resigns", term=core.term)
            core.resign()
        for _ in range(count):
            # A replica without a working disk could not lead, so it does not stand for election.
            if not is_stuck:
                core.tick()
            self._note_tick(core, before_ms)
            if _is_steady(core) != was_steady:
                break  # The later ticks are from before the change.

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


def _is_steady(core: RaftCore) -> bool:
    """Return whether ``core`` leads, or follows a known leader."""
    return core.role is Role.LEADER or (core.role is Role.FOLLOWER and core.leader is not None)


def no_draw(_bound: int) -> int:
    """Return 0: a single voter has no competitor, so its timeouts need no randomness."""
    return 0
