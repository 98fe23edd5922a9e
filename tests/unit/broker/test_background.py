"""``BackgroundTasks`` waits for its tasks and reports their failures."""

from __future__ import annotations

import asyncio
from typing import Any

from structlog.testing import capture_logs

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.loop.job_guard import JobGuard


async def test_background_tasks_idle_waits_for_every_running_task() -> None:
    tasks, ended = BackgroundTasks(), []

    async def work(name: str) -> None:
        await asyncio.sleep(0)
        ended.append(name)

    tasks.start(work("a"), "a")
    tasks.start(work("b"), "b")
    await tasks.idle()
    assert sorted(ended) == ["a", "b"]


async def test_background_tasks_close_cancels_tasks_and_waits_for_their_end() -> None:
    tasks, cleaned = BackgroundTasks(), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    tasks.start(work(), "endless")
    await asyncio.sleep(0)
    await tasks.close()
    assert cleaned == [True]
    assert len(tasks) == 0


async def test_background_task_unexpected_exception_reaches_the_event_loop() -> None:
    """The runner of the daemon treats such an exception as a bug and ends the daemon."""
    seen: list[BaseException | None] = []

    def note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        seen.append(context.get("exception"))

    asyncio.get_running_loop().set_exception_handler(note)
    tasks, bug = BackgroundTasks(), ValueError("a bug")

    async def work() -> None:
        raise bug

    tasks.start(work(), "buggy")
    await tasks.idle()
    await asyncio.sleep(0)
    assert seen == [bug]


async def test_background_job_failure_is_logged_and_keeps_the_broker_running() -> None:
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    tasks, turns = BackgroundTasks(JobGuard(first_wait_s=0.0)), 0

    async def work(error: Exception) -> None:
        nonlocal turns
        turns += 1
        if turns != 4:
            raise error

    with capture_logs() as logged:
        tasks.attempt(lambda: work(KeyError("a bug")), "create-t-0")
        tasks.attempt(lambda: work(OverloadedError("unhandled")), "create-t-1")
        await tasks.idle()
        tasks.keep(lambda: work(KeyError("a bug")), "fetcher")
        await tasks.idle()
    await asyncio.sleep(0)
    assert (turns, seen, tasks.jobs.failures, len(tasks)) == (4, [], 3, 0)
    assert [(e["event"], e["job"]) for e in logged] == [
        ("background_job_failed", job) for job in ("create-t-0", "create-t-1", "fetcher")
    ]
