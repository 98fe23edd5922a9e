"""LOOP. ``is_followed``: checks by answers of the other voters that this replica is still the
leader.

An isolated leader still considers itself the leader for an election timeout, while another leader
may be elected and commit entries. The isolated leader commits nothing, but its answers may be old.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kraftjbod.raft.machine.core import RaftCore

#: Two heartbeat intervals and one lost heartbeat: a voter that answers none of them is absent.
_TICKS: Final = 6
_POLL_S: Final = 0.01


async def is_followed(core: RaftCore) -> bool:
    """Return whether a majority of the voters answers messages that this leader sends from now on.

    The check takes two or three ticks if the voters answer, and at most seven. If the voters were
    silent before, or this replica does not lead, the result is False at once.
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
