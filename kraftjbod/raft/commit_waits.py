"""LOOP. ``CommitWaits``: callers that wait until an entry is committed.

An awaited entry may never be committed: this node may lose the leadership, and the next leader may
replace the entry, or this node stops. Such waits end early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kraftjbod.core.loop.timing import Clock


class CommitWaits:
    """Lets callers wait until an offset of the metadata log is committed. The waits end early if
    this node loses the leadership or stops.

    All methods must be called in the event loop's thread.
    """

    def __init__(self, *, clock: Clock, committed_offset: Callable[[], int]) -> None:
        self._clock = clock
        self._committed_offset = committed_offset
        #: How often this node has lost the leadership.
        self._terms_lost = 0
        self._is_over = False
        self._progress = asyncio.Event()

    def wake_all(self) -> None:
        """Wake all waiters. Called when more entries are committed."""
        self._progress.set()
        self._progress = asyncio.Event()

    def lose_term(self) -> None:
        """Record that this node lost the leadership, so that its uncommitted entries may be
        replaced."""
        self._terms_lost += 1
        self.wake_all()

    def end(self) -> None:
        """End all present and later waits at once, because no further entry will be committed."""
        self._is_over = True
        self._progress.set()

    async def wait_for(self, offset: int, timeout_ms: int) -> None:
        """Wait until ``offset`` is committed, at most ``timeout_ms``.

        Returns earlier if this node loses the leadership or stops. The caller compares the
        committed offset.
        """
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
        """Wait until ``offset`` is committed, and return True.

        Returns False if this node lost the leadership or stops: then another entry may be at
        ``offset``.
        """
        terms_lost = self._terms_lost
        while self._committed_offset() < offset:
            if self._is_over or self._terms_lost != terms_lost:
                return False
            await self._progress.wait()
        return True
