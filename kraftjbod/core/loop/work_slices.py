"""LOOP. Splits long work in the event loop into slices, with a pause after each slice.

::

    async for topic in in_slices(request.topics):
        ...

* A slice of :data:`WORK_SLICE_MS` is shared by all coroutines of a loop. A hundred requests at
  once therefore delay a heartbeat no longer than one request does.
* A coroutine waits in line for the next slice when the current one is used up. Short work does not
  wait.
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
    """Time slices in which the coroutines of one event loop do long work, at most one slice per
    loop iteration.

    The object does not refer to the loop, because ``_by_loop`` would then keep both alive.
    """

    def __init__(self, slice_ms: int = WORK_SLICE_MS) -> None:
        self._slice_s = slice_ms / 1000
        #: Loop time at which the slice of this iteration ends; None before its first use.
        self._over_at: float | None = None
        self._is_renewing = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @classmethod
    def of_loop(cls) -> WorkSlices:
        """Return the slices of the running loop, created at the first call."""
        loop = asyncio.get_running_loop()
        slices = _by_loop.get(loop)
        if slices is None:
            slices = _by_loop[loop] = cls()
        return slices

    async def turn(self) -> None:
        """Return at once if the slice of this loop iteration has time left. Otherwise wait in line
        for a new slice.
        """
        # The check is repeated after waking up, because a new coroutine may have used up the slice.
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
        """Begin the slice of a new loop iteration, and wake up one waiting coroutine."""
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
    """Yield ``items`` in order. When the time slice of the event loop iteration is used up, let
    other tasks run before the next item.
    """
    slices = WorkSlices.of_loop()
    for item in items:
        await slices.turn()
        yield item


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, WorkSlices] = WeakKeyDictionary()
