"""LOOP. ``CommitWaits``: who waits until an entry is committed, and what else lets them go.

An entry that is waited for may never come: the leadership of this node went, and others decide what
stands in its place, or this node stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kraftjbod.core.loop.timing import Clock


class CommitWaits:
    """For the loop's thread."""

    def __init__(self, *, clock: Clock, committed_offset: Callable[[], int]) -> None:
        self._clock = clock
        self._committed_offset = committed_offset
        #: Terms of leading that are over.
        self._terms_lost = 0
        self._is_over = False
        self._progress = asyncio.Event()

    def stir(self) -> None:
        """More is committed: whoever waits has another look."""
        self._progress.set()
        self._progress = asyncio.Event()

    def lose_term(self) -> None:
        """What this node proposed as a leader may not be so."""
        self._terms_lost += 1
        self.stir()

    def end(self) -> None:
        """Nothing more comes; whoever waits now or later is let go at once."""
        self._is_over = True
        self._progress.set()

    async def wait_for(self, offset: int, timeout_ms: int) -> None:
        """Return when ``offset`` is committed, when this node leads no more, or after
        ``timeout_ms`` at the latest."""
        terms_lost = self._terms_lost
        deadline_ms = self._clock.now_ms() + timeout_ms
        while self._committed_offset() < offset and not self._is_over:
            left_ms = deadline_ms - self._clock.now_ms()
            if left_ms <= 0 or self._terms_lost != terms_lost:
                return
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._progress.wait()
            except TimeoutError:
                return

    async def until(self, offset: int) -> bool:
        """False if nobody can say any more that what is there is what was meant."""
        terms_lost = self._terms_lost
        while self._committed_offset() < offset:
            if self._is_over or self._terms_lost != terms_lost:
                return False
            await self._progress.wait()
        return True
