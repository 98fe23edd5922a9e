"""LOOP. The partitions of one request answered side by side, so that a sick disk holds up its own
only.

Each that has to wait costs a task, so they are begun in slices of work, and not more at once than
a request may be about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


async def answer_partitions(
    asked: Iterable[Asked],
    answer: Callable[[Asked], Awaitable[Answer]],
    *,
    refuse: Callable[[Asked], Answer],
) -> list[Answer]:
    """The answers in the order of what is asked; what is beyond the limit is refused."""
    tasks: list[asyncio.Future[Answer]] = []
    refused: list[Answer] = []
    try:
        async for one in in_slices(asked):
            if len(tasks) < MAX_ITEMS_PER_REQUEST:
                tasks.append(asyncio.ensure_future(answer(one)))
            else:
                refused.append(refuse(one))
        return [*await asyncio.gather(*tasks), *refused]
    finally:
        for task in tasks:
            task.cancel()
