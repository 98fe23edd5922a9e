"""``EventQueue`` of the drivers."""

from __future__ import annotations

import asyncio
import time

import pytest

from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.loop.event_queue import EventQueue


class LoopClock:
    """The event loop's clock, in the form of the daemons' clock."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def queue(max_events: int = 10) -> EventQueue[str]:
    return EventQueue(name="test", max_events=max_events, clock=LoopClock())


async def drain(events: EventQueue[str]) -> list[str]:
    events.close()
    return [event async for event in events]


async def test_event_queue_yields_events_in_order() -> None:
    events = queue()
    events.append("a")
    events.append("b")
    assert await drain(events) == ["a", "b"]


async def test_event_queue_refuses_append_when_full_or_closed() -> None:
    events = queue(max_events=1)
    events.append("a")
    with pytest.raises(OverloadedError, match="holds 1 events"):
        events.append("b")
    assert await drain(events) == ["a"]
    with pytest.raises(OverloadedError, match="closed"):
        events.append("c")


async def test_event_queue_schedule_yields_event_at_deadline_and_replaces_same_tag() -> None:
    events = queue()
    now = LoopClock().now_ms()
    events.schedule("tag", now + 60_000, "late")
    events.schedule("other", now + 1, "other")
    events.schedule("tag", now + 2, "soon")
    seen = []
    async for event in events:
        seen.append(event)
        if len(seen) == 2:
            events.close()
    assert seen == ["other", "soon"]


async def test_event_queue_schedule_keeps_deadlines_of_different_tags() -> None:
    """Two disks that fail within the same window each keep their own deadline."""
    events = queue()
    now = LoopClock().now_ms()
    events.schedule(("dir", 1), now, "one")
    events.schedule(("dir", 2), now, "two")
    assert {await anext(aiter(events)), await anext(aiter(events))} == {"one", "two"}


async def test_event_queue_cancel_prevents_scheduled_event() -> None:
    events = queue()
    events.schedule("tag", LoopClock().now_ms(), "never")
    events.cancel("tag")
    events.cancel("unknown")
    await asyncio.sleep(0.01)
    assert await drain(events) == []


async def test_event_queue_close_drops_scheduled_events_and_ignores_new_ones() -> None:
    events = queue()
    events.schedule("tag", LoopClock().now_ms() + 60_000, "never")
    assert "timers=1" in repr(events)
    events.close()
    events.schedule("tag", LoopClock().now_ms(), "never")
    assert await drain(events) == []
    assert len(events) == 0
