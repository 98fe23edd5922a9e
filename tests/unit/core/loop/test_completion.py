"""Completions hand on at once, once, and what a callback breaks is not theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.loop.completion import Completion


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
