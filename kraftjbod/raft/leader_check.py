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
_POLL_S: Final = 0.01


async def is_followed(core: RaftCore) -> bool:
    """Whether a majority of the voters answers this replica as its leader, from now on.

    Takes two or three ticks where they do, and none where they were silent before.
    """
    leadership = core.leadership
    if leadership is None or not leadership.has_majority(within_ticks=_TICKS):
        return False
    asked_tick = leadership.now
    while leadership.now - asked_tick <= _TICKS:
        if core.leadership is not leadership:
            return False
        if leadership.followed_tick > asked_tick:
            return True
        await asyncio.sleep(_POLL_S)
    return False
