"""LOOP. ``CleaningPauses``: pauses of compaction for single replicas, while a caller changes them.

* A pause lasts for the caller's ``async with`` block, so no caller can forget to end it or end the
  pause of another caller.
* When the block starts, no pass is running for the replica, and none starts until the block ends.
* Other conditions that forbid cleaning are not pauses: an impaired directory, or a future copy of
  the replica.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.ids import TopicPartition


class CleaningPauses:
    """Keeps compaction passes away from single replicas while a caller changes them.

    Records which replicas are paused, and for which a pass is running. All methods run on the event
    loop.
    """

    def __init__(self, forbids: Callable[[TopicPartition], str | None]) -> None:
        """Create without pauses.

        :param forbids: returns another reason not to clean a replica now, or None.
        """
        self._forbids = forbids
        #: Callers that pause each replica, with the number of their pauses.
        self._pauses: defaultdict[TopicPartition, Counter[str]] = defaultdict(Counter)
        #: Running passes. The event is set when the pass has ended.
        self._passes: dict[TopicPartition, asyncio.Event] = {}

    @asynccontextmanager
    async def paused(self, tp: TopicPartition, *, by: str) -> AsyncIterator[None]:
        """Context in which no pass touches ``tp``. Entering waits until a running pass has stopped.

        :param by: name of the caller, for messages.
        """
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
        """Context of a pass over ``tp``. The pass calls :meth:`require_no_pause` between its steps,
        and ends if that raises. No other pass over ``tp`` may be running.

        :raises OverloadedError: ``tp`` may not be cleaned now.
        """
        self.require_no_pause(tp)
        assert tp not in self._passes, tp
        self._passes[tp] = ended = asyncio.Event()
        try:
            yield
        finally:
            del self._passes[tp]
            ended.set()

    def reason(self, tp: TopicPartition) -> str | None:
        """Return why ``tp`` may not be cleaned now; None if it may."""
        if tp in self._pauses:
            return f"paused by {', '.join(sorted(+self._pauses[tp]))}"
        return self._forbids(tp)

    def require_no_pause(self, tp: TopicPartition) -> None:
        """Raise an error if ``tp`` may not be cleaned now.

        :raises OverloadedError: it may not; the message says why.
        """
        if (reason := self.reason(tp)) is not None:
            raise OverloadedError(f"{tp} is not compacted now: {reason}")
