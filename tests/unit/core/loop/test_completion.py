"""``Completion``: callbacks run at once and once, and their errors go to the event loop."""

from __future__ import annotations

import asyncio
import gc
from errno import EIO
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError, OverloadedError
from kraftjbod.core.loop.completion import Completion, to_its_end


def test_completion_calls_back_at_once_and_ignores_second_result() -> None:
    received: list[int] = []
    early: Completion[int] = Completion()
    early.add_done_callback(lambda done: received.append(done.result()))
    early.set_result(1)
    early.set_result(2)
    early.set_exception(OverloadedError("late"))
    Completion.of(3).add_done_callback(lambda done: received.append(done.result()))
    assert received == [1, 3] and early.exception() is None


def test_completion_map_turns_exception_of_function_into_error_and_keeps_errors() -> None:
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
def test_completion_after_calls_function_on_result_and_error(error: Exception | None) -> None:
    first: Completion[int] = Completion()
    done: list[str] = []
    passed = first.after(lambda: done.append("after"))
    passed.add_done_callback(lambda one: done.append(repr(one.exception())))
    first.set_result(1) if error is None else first.set_exception(error)
    assert done == ["after", repr(error)]


async def test_completion_exception_of_callback_goes_to_event_loop_handler() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    done: Completion[int] = Completion()
    done.add_done_callback(lambda one: print(1 // 0))
    done.set_result(1)
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]


async def test_await_completion_may_be_cancelled() -> None:
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


async def test_to_its_end_after_cancel_logs_unexpected_errors_only() -> None:
    """An exception that is never retrieved would stop the daemon when the collector finds it."""
    unheard = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, what: unheard.append(what))
    for error in (KafkaStorageError("gone"), OSError(EIO, "gone"), ValueError("a bug")):
        unheard.clear()
        may_end = asyncio.Event()

        async def work(error: Exception = error, may_end: asyncio.Event = may_end) -> None:
            await may_end.wait()
            raise error

        waiting = asyncio.create_task(to_its_end(work()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with capture_logs() as logs:
            may_end.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        gc.collect()
        assert not unheard
        assert len(logs) == isinstance(error, ValueError), logs


async def test_to_its_end_returns_result_or_raises() -> None:
    async def work(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    assert await to_its_end(work(None)) == 7
    with pytest.raises(KafkaStorageError):
        await to_its_end(work(KafkaStorageError("gone")))
