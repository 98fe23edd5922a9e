"""LOOP. ``BackgroundTasks``: background coroutines whose failures are never lost.

* An unexpected exception of a *started* task is a bug that affects the whole broker. It is raised
  on the event loop, where the runner ends the process.
* *Kept* and *attempted* work concerns one directory, one replica or one leader, or can restart at
  any time: a failure affects that work only (core/loop/job_guard.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.loop.job_guard import JobGuard
from kraftjbod.core.loop.task_end import raise_task_error


class BackgroundTasks:
    """Starts background coroutines, and keeps their tasks so that :meth:`idle` and :meth:`close`
    can wait for them.

    An unexpected error of a task from ``start`` ends the process. Errors of work passed to
    :meth:`keep` and :meth:`attempt` are handled by ``jobs``, by default a new guard.
    """

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
        """Run ``work`` in a task until it returns. After an error it is restarted, with growing
        pauses.
        """
        return self.start(self.jobs.keep(name, work), name)

    def attempt(self, work: Callable[[], Awaitable[object]], name: str) -> asyncio.Task[Any]:
        """Run ``work`` once in a task, and log an error that it does not handle."""
        return self.start(self._attempt(work, name), name)

    async def _attempt(self, work: Callable[[], Awaitable[object]], name: str) -> None:
        try:
            await self.jobs.attempt(name, work)
        except OperatingError as e:
            self.jobs.log_failure(name, e)

    async def idle(self) -> None:
        """Wait until all tasks that exist now have ended."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Cancel all tasks and wait for their end."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        raise_task_error(task)
