"""Pauses of the cleaner: their scope, and waiting for a running pass."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.core.errors import OverloadedError
from kraftjbod.storage.cleaning.cleaning_pause import CleaningPauses
from tests.faults.rig import TP


def pauses(reason: str | None = None) -> CleaningPauses:
    return CleaningPauses(lambda tp: reason)


async def test_cleaning_pause_ends_with_its_block() -> None:
    one = pauses()
    async with one.paused(TP, by="a move"):
        assert one.reason(TP) == "paused by a move"
        with pytest.raises(OverloadedError, match="paused by a move"), one.cleaning(TP):
            raise AssertionError
        assert one.reason(TP._replace(partition=1)) is None
    assert one.reason(TP) is None
    with one.cleaning(TP):
        pass


async def test_cleaning_pause_ends_when_its_block_fails_or_is_cancelled() -> None:
    """KAFKA-16709, KAFKA-19458, KAFKA-15082: cleaning stayed paused after a move had ended."""
    one = pauses()
    with pytest.raises(ValueError, match="move failed"):
        async with one.paused(TP, by="a move"):
            raise ValueError("move failed")
    assert one.reason(TP) is None

    async def move() -> None:
        async with one.paused(TP, by="a move"):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(move())
    await asyncio.sleep(0)
    assert one.reason(TP) is not None
    task.cancel()
    await asyncio.wait({task})
    assert one.reason(TP) is None


async def test_cleaning_pause_lasts_until_each_of_its_requests_ends() -> None:
    one = pauses()
    async with one.paused(TP, by="a move"):
        async with one.paused(TP, by="a removal"), one.paused(TP, by="a move"):
            assert one.reason(TP) == "paused by a move, a removal"
        assert one.reason(TP) == "paused by a move"
    assert one.reason(TP) is None


async def test_cleaning_pause_starts_after_the_running_pass() -> None:
    one, story = pauses(), list[str]()
    may_end = asyncio.Event()

    async def clean() -> None:
        with one.cleaning(TP):
            await may_end.wait()
            with pytest.raises(OverloadedError):
                one.require_no_pause(TP)
            story.append("the pass has ended")

    async def pause() -> None:
        async with one.paused(TP, by="a move"):
            story.append("paused")

    cleaning, pausing = asyncio.ensure_future(clean()), asyncio.ensure_future(pause())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert story == []
    may_end.set()
    await asyncio.gather(cleaning, pausing)
    assert story == ["the pass has ended", "paused"]


async def test_cleaning_pause_cancelled_while_waiting_does_not_take_effect() -> None:
    one = pauses()
    with one.cleaning(TP):
        waiting = asyncio.ensure_future(one.paused(TP, by="a move").__aenter__())
        await asyncio.sleep(0)
        assert one.reason(TP) == "paused by a move"
        waiting.cancel()
        await asyncio.wait({waiting})
        assert one.reason(TP) is None


async def test_cleaning_pause_reason_is_looked_up_on_each_call() -> None:
    reasons = ["its log dir is saturated"]
    one = CleaningPauses(lambda tp: reasons[0] if reasons else None)
    assert one.reason(TP) == "its log dir is saturated"
    reasons.clear()
    assert one.reason(TP) is None
