"""raise_task_error: the loop receives the error of a task that should not end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftjbod.core.loop.task_end import TaskEndedError, raise_task_error


@pytest.mark.parametrize(
    ("error", "raised"), [(ValueError("bug"), ValueError), (OSError(5, "disk"), TaskEndedError)]
)
async def test_raise_task_error_reports_the_error_to_the_loop(
    error: Exception, raised: type[Exception]
) -> None:
    async def work() -> None:
        raise error

    seen: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.put_nowait(context))
    asyncio.create_task(work()).add_done_callback(raise_task_error)
    assert isinstance((await seen.get())["exception"], raised)


async def test_raise_task_error_ignores_cancelled_and_finished_tasks() -> None:
    returned = asyncio.create_task(asyncio.sleep(0))
    cancelled = asyncio.create_task(asyncio.sleep(60))
    cancelled.cancel()
    await asyncio.wait({returned, cancelled})
    for task in (returned, cancelled):
        raise_task_error(task)
