"""``PartList``: start order and reverse close order of a daemon's parts, even after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kraftjbod.core.errors import KafkaStorageError
from kraftjbod.daemon.parts import Part, PartList

NAMES = ("disk", "log", "server")


class Diary:
    """Parts that record their steps; ``trouble`` maps a step to a function that disturbs it."""

    def __init__(self, **trouble: Callable[[], object]) -> None:
        self.notes: list[str] = []
        self.trouble = trouble
        self.ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parts = PartList(self.part(name) for name in NAMES)

    def part(self, name: str) -> Part:
        async def noted(step: str) -> None:
            await asyncio.sleep(0)
            self.notes.append(f"{step} {name}")
            result = self.trouble.get(f"{step}_{name}", lambda: None)()
            if isinstance(result, asyncio.Future):
                await result

        async def ended() -> None:
            await self.ending

        return Part(
            name=name,
            start=lambda: noted("start"),
            close=lambda: noted("close"),
            failed=ended if name == "log" else None,
        )


def fail() -> None:
    raise KafkaStorageError("gone")


async def test_parts_start_in_order_and_close_once_in_reverse() -> None:
    diary = Diary()
    diary.parts.add(Part(name="sign", start=lambda: diary.notes.append("start sign")))
    await diary.parts.start()
    starts = [f"start {name}" for name in (*NAMES, "sign")]
    assert diary.notes == starts
    await diary.parts.close()
    await diary.parts.close()
    assert diary.notes == [*starts, *(f"close {name}" for name in reversed(NAMES))]
    assert diary.parts.failure is None


async def test_failed_start_closes_parts_that_were_started() -> None:
    diary = Diary(start_log=fail)
    with pytest.raises(KafkaStorageError, match="gone"):
        await diary.parts.start()
    assert isinstance(diary.parts.failure, KafkaStorageError)
    await diary.parts.close()
    assert diary.notes == ["start disk", "start log", "close log", "close disk"]


async def test_cancelled_start_closes_parts_that_were_started() -> None:
    diary = Diary(start_log=lambda: asyncio.get_running_loop().create_future())
    starting = asyncio.create_task(diary.parts.start())
    while len(diary.notes) < 2:
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await diary.parts.close()
    assert diary.notes == ["start disk", "start log", "close log", "close disk"]


@pytest.mark.parametrize("is_error", [True, False], ids=["lost", "in order"])
async def test_part_that_ends_during_start_ends_the_start(is_error: bool) -> None:
    diary = Diary(start_server=lambda: asyncio.get_running_loop().create_future())
    starting = asyncio.create_task(diary.parts.start())
    while len(diary.notes) < 3:
        await asyncio.sleep(0)
    if is_error:
        diary.ending.set_exception(KafkaStorageError("gone"))
        with pytest.raises(KafkaStorageError, match="gone"):
            await starting
    else:
        diary.ending.set_result(None)
        await starting
    assert (diary.parts.failure is not None) == is_error
    await diary.parts.close()
    assert diary.notes[3:] == ["close server", "close log", "close disk"]


async def test_part_that_fails_while_serving_ends_wait_failed() -> None:
    diary = Diary()
    await diary.parts.start()
    waiting = asyncio.create_task(diary.parts.wait_failed())
    diary.ending.set_exception(KafkaStorageError("gone"))
    with pytest.raises(KafkaStorageError, match="gone"):
        await waiting
    await diary.parts.close()


async def test_close_continues_after_a_part_fails_to_close() -> None:
    diary = Diary(close_server=fail, close_log=fail)
    await diary.parts.start()
    with pytest.raises(KafkaStorageError, match="gone") as caught:
        await diary.parts.close()
    assert diary.notes[3:] == ["close server", "close log", "close disk"]
    assert caught.value.__notes__[0] == "while server was closed"
    assert "log" in caught.value.__notes__[1]


async def test_close_can_be_interrupted_by_the_callers_timeout() -> None:
    diary = Diary(close_log=lambda: asyncio.get_running_loop().create_future())
    await diary.parts.start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await diary.parts.close()
    assert diary.notes[3:] == ["close server", "close log"]
