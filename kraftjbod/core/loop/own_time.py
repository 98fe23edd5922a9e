"""LOOP. ``wait_awake``: to wait for something for a time in which this process runs.

While it stands still (SIGSTOP, a virtual machine that is paused) the clocks go on, and so does
nothing that it does itself: who was asked for something in one of its threads is not late for it.
So the time is waited for in short parts, and one that takes longer than it should counts once.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

#: A time that is interrupted loses one of so many.
_PARTS: Final = 20


async def wait_awake(awaited: asyncio.Future[Any], timeout_ms: float) -> bool:
    """Whether ``awaited`` is done, after ``timeout_ms`` at the latest in which this process ran.

    It is neither cancelled nor asked for its result.
    """
    for _ in range(_PARTS):
        done, _ = await asyncio.wait({awaited}, timeout=timeout_ms / 1000 / _PARTS)
        if done:
            return True
    return False
