"""LOOP. Does this leader still lead? What it cannot know by itself, the others' answers show.

A leader that is cut off goes on believing in itself for an election time-out, in which another one
may be elected and commit. What it commits meanwhile is nothing, but what it says may be old.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kraftjbod.raft.machine.core import RaftCore

#: Two signs of a leader's life, and one that is lost: who answers none of them is not heard.
_TICKS: Final = 6
#: In which a sign of life goes out; answers that come before may be older than the question.
_SENT_AFTER_TICKS: Final = 2
_POLL_S: Final = 0.01


async def is_followed(core: RaftCore) -> bool:
    """Whether a majority of the voters answers this replica as its leader, from now on.

    Takes two or three ticks where they do, and none where they were silent before.
    """
    leadership = core.leadership
    if leadership is None or not leadership.has_majority(within_ticks=_TICKS):
        return False
    asked_tick = leadership.now
    while (passed := leadership.now - asked_tick) <= _TICKS:
        if core.leadership is not leadership:
            return False
        answered_within = passed - _SENT_AFTER_TICKS
        if answered_within >= 0 and leadership.has_majority(within_ticks=answered_within):
            return True
        await asyncio.sleep(_POLL_S)
    return False
