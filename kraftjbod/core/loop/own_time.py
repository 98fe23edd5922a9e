"""LOOP. ``wait_awake``: a time-out that counts only the time in which this process runs.

While the process is paused (SIGSTOP, a paused virtual machine), the clocks continue but its threads
do no work. An operation in one of its threads must not count as late because of that. The time-out
is therefore split into short parts, and a part that takes too long counts once.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

#: A pause of the process costs at most one of this many parts.
_PARTS: Final = 20


async def wait_awake(awaited: asyncio.Future[Any], timeout_ms: float) -> bool:
    """Wait until ``awaited`` is done, or ``timeout_ms`` of running time have passed.

    A pause of the process counts as at most a twentieth of ``timeout_ms``.

    Return whether ``awaited`` is done. ``awaited`` is not cancelled, and its result is not
    retrieved.
    """
    for _ in range(_PARTS):
        done, _ = await asyncio.wait({awaited}, timeout=timeout_ms / 1000 / _PARTS)
        if done:
            return True
    return False
