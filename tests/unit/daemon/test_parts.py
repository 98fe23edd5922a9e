"""The list of a daemon's parts: the order of its starts and closings, whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kraftjbod.core.errors import KafkaStorageError
from kraftjbod.daemon.parts import Part, PartList

NAMES = ("disk", "log", "door")


class Diary:
    """Parts that note what happens to them; one of them may be ``trouble``."""

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


async def test_parts_start_in_order_and_close_backwards_once() -> None:
    diary = Diary()
    diary.parts.add(Part(name="sign", start=lambda: diary.notes.append("start sign")))
    await diary.parts.start()
    starts = [f"start {name}" for name in (*NAMES, "sign")]
    assert diary.notes == starts
    await diary.parts.close()
    await diary.parts.close()
    assert diary.notes == [*starts, *(f"close {name}" for name in reversed(NAMES))]
    assert diary.parts.failure is None


async def test_what_had_begun_before_a_failed_start_is_closed() -> None:
    diary = Diary(start_log=fail)
    with pytest.raises(KafkaStorageError, match="gone"):
        await diary.parts.start()
    assert isinstance(diary.parts.failure, KafkaStorageError)
    await diary.parts.close()
    assert diary.notes == ["start disk", "start log", "close log", "close disk"]


async def test_a_start_that_is_given_up_closes_what_had_begun() -> None:
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
async def test_a_part_may_end_the_start_of_those_after_it(is_error: bool) -> None:
    diary = Diary(start_door=lambda: asyncio.get_running_loop().create_future())
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
    assert diary.notes[3:] == ["close door", "close log", "close disk"]


async def test_a_part_may_end_the_daemon_while_it_serves() -> None:
    diary = Diary()
    await diary.parts.start()
    waiting = asyncio.create_task(diary.parts.wait_failed())
    diary.ending.set_exception(KafkaStorageError("gone"))
    with pytest.raises(KafkaStorageError, match="gone"):
        await waiting
    await diary.parts.close()


async def test_a_part_that_cannot_close_keeps_no_other_from_it() -> None:
    diary = Diary(close_door=fail, close_log=fail)
    await diary.parts.start()
    with pytest.raises(KafkaStorageError, match="gone") as caught:
        await diary.parts.close()
    assert diary.notes[3:] == ["close door", "close log", "close disk"]
    assert caught.value.__notes__[0] == "while door was closed"
    assert "log" in caught.value.__notes__[1]


async def test_the_deadline_of_stopping_is_the_callers() -> None:
    diary = Diary(close_log=lambda: asyncio.get_running_loop().create_future())
    await diary.parts.start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await diary.parts.close()
    assert diary.notes[3:] == ["close door", "close log"]
