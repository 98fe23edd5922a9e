"""LOOP. ``CleaningPauses``: who keeps the cleaner away from which replica, and for how long.

* A pause belongs to whoever asked for it, and ends with the block that asked: nobody can forget to
  let the cleaner go on, and nobody can do so for somebody else.
* When the block begins no pass is under way for the replica, and none begins until it ends.
* What others know is no pause: that a directory is impaired, or that a replica has a future
  copy, forbids cleaning for exactly as long as it is so.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.ids import TopicPartition


class CleaningPauses:
    """All methods are for the loop's thread."""

    def __init__(self, forbids: Callable[[TopicPartition], str | None]) -> None:
        """``forbids`` says what, beside pauses, speaks against cleaning a replica now."""
        self._forbids = forbids
        #: By whom each replica is paused, and how often.
        self._pauses: defaultdict[TopicPartition, Counter[str]] = defaultdict(Counter)
        #: Passes under way; set when the pass has ended.
        self._passes: dict[TopicPartition, asyncio.Event] = {}

    @asynccontextmanager
    async def paused(self, tp: TopicPartition, *, by: str) -> AsyncIterator[None]:
        """No pass touches ``tp`` meanwhile; one that is under way is given up first."""
        self._pauses[tp][by] += 1
        try:
            if (under_way := self._passes.get(tp)) is not None:
                await under_way.wait()
            yield
        finally:
            self._pauses[tp][by] -= 1
            if not +self._pauses[tp]:
                del self._pauses[tp]

    @contextmanager
    def cleaning(self, tp: TopicPartition) -> Iterator[None]:
        """A pass over ``tp``; it calls :meth:`require_none` between its steps."""
        self.require_none(tp)
        assert tp not in self._passes, tp
        self._passes[tp] = ended = asyncio.Event()
        try:
            yield
        finally:
            del self._passes[tp]
            ended.set()

    def reason(self, tp: TopicPartition) -> str | None:
        """Why ``tp`` may not be cleaned now; None if it may."""
        if tp in self._pauses:
            return f"paused by {', '.join(sorted(+self._pauses[tp]))}"
        return self._forbids(tp)

    def require_none(self, tp: TopicPartition) -> None:
        """:raises OverloadedError: if ``tp`` may not be cleaned now."""
        if (reason := self.reason(tp)) is not None:
            raise OverloadedError(f"{tp} is not compacted now: {reason}")
