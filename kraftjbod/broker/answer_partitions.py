"""LOOP. Concurrent answers for the partitions of one request, so that a bad disk delays only its
own.

Each waiting partition costs a task. Tasks start in slices, and at most as many run at once as a
request may have items.
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
    """Return one answer per item of ``asked``, awaited concurrently.

    The result is in the order of ``asked``. Items beyond ``MAX_ITEMS_PER_REQUEST`` get the result
    of ``refuse``. If an ``answer`` raises an exception, it is raised here and the others are
    cancelled.
    """
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
