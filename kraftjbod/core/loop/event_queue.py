"""LOOP. ``EventQueue``: a bounded queue for one consumer, with timers that append events.

The driver of a state machine reads its events from such a queue. ``async for event in queue``
returns the events one at a time and in order.

``schedule`` appends an event later, and replaces the earlier schedule with the same tag. Each
subject (one log directory, for example) must use its own tags.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from typing import Generic, TypeVar

from kraftjbod.core import buggify
from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.loop.timing import Clock

E = TypeVar("E")


class EventQueue(Generic[E]):
    """Bounded queue of events for one consumer task (``async for``), with timers that append events
    later. Not thread-safe.
    """

    def __init__(self, *, name: str, max_events: int, clock: Clock) -> None:
        self._name = name
        self._max_events = max_events
        self._clock = clock
        self._events: deque[E] = deque()
        self._timers: dict[Hashable, asyncio.TimerHandle] = {}
        self._wakeup = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"<EventQueue {self._name} events={len(self._events)} timers={len(self._timers)}>"

    def append(self, event: E) -> None:
        """Append ``event`` at the end of the queue, for its consumer.

        :raises OverloadedError: the queue is full or closed.
        """
        self._require_capacity()
        self._events.append(event)
        self._wakeup.set()

    def schedule(self, tag: Hashable, at_ms: int, event: E) -> None:
        """Append ``event`` at ``at_ms`` (monotonic), in place of a pending schedule with the same
        tag.

        A closed queue drops the event. The limit of the queue does not apply to it.
        """
        self.cancel(tag)
        if self._closed:
            return
        delay_s = max(0, at_ms - self._clock.now_ms()) / 1000
        loop = asyncio.get_running_loop()
        self._timers[tag] = loop.call_later(delay_s, self._fire, tag, event)

    def cancel(self, tag: Hashable) -> None:
        """Cancel the schedule of ``tag``, if any. An event that is already in the queue stays."""
        timer = self._timers.pop(tag, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Reject further events, drop all schedules, and end the consumer's iteration after the
        events in the queue.
        """
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._wakeup.set()

    async def __aiter__(self) -> AsyncIterator[E]:
        while True:
            while self._events:
                if buggify.is_on and buggify.fires("core.late_event"):
                    await asyncio.sleep(0)
                yield self._events.popleft()
            if self._closed:
                return
            self._wakeup.clear()
            await self._wakeup.wait()

    def _fire(self, tag: Hashable, event: E) -> None:
        del self._timers[tag]
        # A timer event is never rejected: there is at most one timer per tag.
        self._events.append(event)
        self._wakeup.set()

    def _require_capacity(self) -> None:
        if self._closed:
            raise OverloadedError(f"{self._name} is closed")
        if len(self._events) >= self._max_events:
            raise OverloadedError(f"{self._name} holds {self._max_events} events already")
