"""``JobGuard``: unexpected failures of background jobs are logged and counted, and the job
restarted."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.loop.job_guard import JobGuard


async def test_job_guard_keep_restarts_job_until_it_ends_and_logs_each_failure() -> None:
    guard, turns = JobGuard(first_wait_s=0.0, log_dir="/d1"), 0

    async def work() -> None:
        nonlocal turns
        turns += 1
        if turns < 4:
            raise ZeroDivisionError(turns)

    with capture_logs() as logged:
        await guard.keep("scrub", work)
    assert (turns, guard.failures) == (4, 3)
    assert [(e["event"], e["job"], e["log_dir"], str(e["exc_info"])) for e in logged] == [
        ("background_job_failed", "scrub", "/d1", str(turn)) for turn in (1, 2, 3)
    ]


async def test_job_guard_keep_waits_for_a_lacking_resource_without_counting_a_failure() -> None:
    guard, turns = JobGuard(first_wait_s=0.0), 0

    async def work() -> None:
        nonlocal turns
        turns += 1
        if turns == 1:
            raise OverloadedError("too many open files")

    with capture_logs() as logged:
        await guard.keep("scrub", work)
    assert (turns, guard.failures) == (2, 0)
    assert [(e["event"], e["reason"]) for e in logged] == [
        ("background_job_waits", "too many open files")
    ]


async def test_job_guard_keep_ends_on_cancel_while_working_and_while_waiting() -> None:
    guard, works = JobGuard(first_wait_s=3600.0), asyncio.Event()

    async def work(fails: bool) -> None:
        works.set()
        assert not fails
        await asyncio.Event().wait()

    for fails in (False, True):
        works.clear()
        task = asyncio.create_task(guard.keep("chore", lambda fails=fails: work(fails)))
        await works.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert guard.failures == 1


async def test_job_guard_attempt_returns_unexpected_errors_and_raises_expected_ones() -> None:
    guard, bug = JobGuard(), KeyError("a bug")

    async def work(error: Exception | None) -> None:
        if error is not None:
            raise error

    assert await guard.attempt("retain", lambda: work(None)) is None
    assert guard.failures == 0
    assert await guard.attempt("retain", lambda: work(bug), partition="t-0") is bug
    assert guard.failures == 1
    with pytest.raises(OverloadedError):
        await guard.attempt("retain", lambda: work(OverloadedError("later")))
    assert guard.failures == 1
