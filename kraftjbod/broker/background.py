"""LOOP. ``BackgroundTasks``: coroutines that run beside everything else, none of them forgotten.

* A task that is *started* and ends with an exception nobody expected is a bug in what the whole
  broker stands on: it is raised on the loop, where the runner sees it and ends the process.
* Work that is *kept* or *attempted* is about one directory, one replica or one leader, or may begin
  anew at any time: there it costs that work alone (core/loop/job_guard.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.loop.job_guard import JobGuard
from kraftjbod.core.loop.task_end import raise_task_error


class BackgroundTasks:
    """``jobs`` hears of the failures of what is kept and attempted; one of its own if not given."""

    def __init__(self, jobs: JobGuard | None = None) -> None:
        self.jobs = jobs or JobGuard()
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(self, work: Callable[[], Awaitable[object]], name: str) -> asyncio.Task[Any]:
        """Do ``work``, which begins anew after an error that nobody expected."""
        return self.start(self.jobs.keep(name, work), name)

    def attempt(self, work: Callable[[], Awaitable[object]], name: str) -> asyncio.Task[Any]:
        """Do ``work`` once; an error that it does not handle itself is logged."""
        return self.start(self._attempt(work, name), name)

    async def _attempt(self, work: Callable[[], Awaitable[object]], name: str) -> None:
        try:
            await self.jobs.attempt(name, work)
        except OperatingError as e:
            self.jobs.log_failure(name, e)

    async def idle(self) -> None:
        """Wait until every task that runs now has ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Cancel all and wait until they are gone."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        raise_task_error(task)
