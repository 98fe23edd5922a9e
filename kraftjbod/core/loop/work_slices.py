"""LOOP. Long work on the loop, in slices: everybody else has a turn after each.

::

    async for topic in in_slices(request.topics):
        ...

* A slice is :data:`WORK_SLICE_MS` long and belongs to the loop, not to who works: a hundred
  requests that come together share it, and so hold up a heartbeat no longer than one.
* Who has used up a slice waits in line for the next; who works a little never waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar
from weakref import WeakKeyDictionary

from kraftjbod.core import buggify
from kraftjbod.core.request_limits import WORK_SLICE_MS

T = TypeVar("T")


class WorkSlices:
    """The slices of one loop, one per round of it.

    It does not hold the loop: who knows it by the loop would keep both for ever.
    """

    def __init__(self, slice_ms: int = WORK_SLICE_MS) -> None:
        self._slice_s = slice_ms / 1000
        #: Loop time when the slice of this round is used up; None before somebody began it.
        self._over_at: float | None = None
        self._is_renewing = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @classmethod
    def of_loop(cls) -> WorkSlices:
        """Those of the running loop."""
        loop = asyncio.get_running_loop()
        slices = _by_loop.get(loop)
        if slices is None:
            slices = _by_loop[loop] = cls()
        return slices

    async def turn(self) -> None:
        """Return while there is time left to work in this round; wait for the next if not."""
        # Who comes new must not overtake who waits.
        loop = asyncio.get_running_loop()
        if buggify.is_on and buggify.fires("core.short_slice"):
            self._over_at = loop.time()
            if not self._is_renewing:
                self._is_renewing = True
                loop.call_soon(self._renew)
        while self._is_used_up(loop):
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn

    def _is_used_up(self, loop: asyncio.AbstractEventLoop) -> bool:
        now = loop.time()
        if self._over_at is not None:
            return now >= self._over_at
        self._over_at = now + self._slice_s
        if not self._is_renewing:
            self._is_renewing = True
            loop.call_soon(self._renew)
        return False

    def _renew(self) -> None:
        """A new round of the loop: one of those that wait goes on."""
        self._over_at = None
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        self._is_renewing = bool(self._waiting)
        if self._is_renewing:
            asyncio.get_running_loop().call_soon(self._renew)


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """``items`` one by one, with a pause for everybody else after each slice of work."""
    slices = WorkSlices.of_loop()
    for item in items:
        await slices.turn()
        yield item


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, WorkSlices] = WeakKeyDictionary()
