"""Completions hand on at once, once, and what a callback breaks is not theirs."""

from __future__ import annotations

import asyncio
import gc
from errno import EIO
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError, OverloadedError
from kraftjbod.core.loop.completion import Completion, to_its_end


def test_the_first_word_is_handed_on_at_once_and_the_second_is_not_heard() -> None:
    heard: list[int] = []
    early: Completion[int] = Completion()
    early.add_done_callback(lambda done: heard.append(done.result()))
    early.set_result(1)
    early.set_result(2)
    early.set_exception(OverloadedError("late"))
    Completion.of(3).add_done_callback(lambda done: heard.append(done.result()))
    assert heard == [1, 3] and early.exception() is None


def test_what_is_made_of_a_value_may_be_an_error_and_an_error_stays_one() -> None:
    value: Completion[int] = Completion()
    made = value.map(lambda n: 6 // n)
    value.set_result(0)
    assert isinstance(made.exception(), ZeroDivisionError)
    failed: Completion[int] = Completion()
    made = failed.map(lambda n: n)
    failed.set_exception(OverloadedError("no"))
    with pytest.raises(OverloadedError):
        made.result()


@pytest.mark.parametrize("error", [None, OverloadedError("no")])
def test_what_is_to_be_done_after_it_is_done_however_it_ends(error: Exception | None) -> None:
    first: Completion[int] = Completion()
    done: list[str] = []
    passed = first.after(lambda: done.append("after"))
    passed.add_done_callback(lambda one: done.append(repr(one.exception())))
    first.set_result(1) if error is None else first.set_exception(error)
    assert done == ["after", repr(error)]


async def test_what_a_callback_raises_goes_to_the_loop_and_not_to_who_completed_it() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    done: Completion[int] = Completion()
    done.add_done_callback(lambda one: print(1 // 0))
    done.set_result(1)
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]


async def test_who_waits_in_a_task_may_give_up() -> None:
    done: Completion[int] = Completion()
    waiting = asyncio.ensure_future(done)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    done.set_result(1)
    assert done.result() == 1
    for late in (Completion.of(2), await_soon(2)):
        assert await late == 2


def await_soon(value: int) -> Completion[int]:
    done: Completion[int] = Completion()
    asyncio.get_running_loop().call_soon(done.set_result, value)
    return done


async def test_what_goes_on_without_its_waiter_ends_unheard_but_for_a_bug() -> None:
    """A collector that finds an error nobody asked for ends the daemon: so nobody may leave one."""
    unheard = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, what: unheard.append(what))
    for error in (KafkaStorageError("gone"), OSError(EIO, "gone"), ValueError("a bug")):
        unheard.clear()
        goes_on = asyncio.Event()

        async def work(error: Exception = error, goes_on: asyncio.Event = goes_on) -> None:
            await goes_on.wait()
            raise error

        waiting = asyncio.create_task(to_its_end(work()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with capture_logs() as logs:
            goes_on.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        gc.collect()
        assert not unheard
        assert len(logs) == isinstance(error, ValueError), logs


async def test_who_waits_hears_how_it_ended() -> None:
    async def work(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    assert await to_its_end(work(None)) == 7
    with pytest.raises(KafkaStorageError):
        await to_its_end(work(KafkaStorageError("gone")))
