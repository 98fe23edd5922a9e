"""Tasks whose end somebody has to notice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftjbod.core.loop.task_end import TaskEndedError, raise_task_error


@pytest.mark.parametrize(
    ("error", "raised"), [(ValueError("bug"), ValueError), (OSError(5, "disk"), TaskEndedError)]
)
async def test_raise_task_error_reports_what_ended_the_task_to_the_loop(
    error: Exception, raised: type[Exception]
) -> None:
    async def work() -> None:
        raise error

    seen: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.put_nowait(context))
    asyncio.create_task(work()).add_done_callback(raise_task_error)
    assert isinstance((await seen.get())["exception"], raised)


async def test_raise_task_error_passes_over_tasks_that_were_cancelled_or_returned() -> None:
    returned = asyncio.create_task(asyncio.sleep(0))
    cancelled = asyncio.create_task(asyncio.sleep(60))
    cancelled.cancel()
    await asyncio.wait({returned, cancelled})
    for task in (returned, cancelled):
        raise_task_error(task)
