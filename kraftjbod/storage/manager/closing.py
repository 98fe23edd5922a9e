"""LOOP. ``close_logs``: closes the logs of a directory for a clean stop, many at a time.

The files of many logs are written before the first of them is synced: see ``carry_out`` for the
reason. The first operation that finds no space releases the reserve, and is repeated. If the files
of one log cannot be written even then, the other logs are still closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from kraftjbod.core.errors import LogDirImpairedError, OperatingError
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log.log_values import carry_out
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind

T = TypeVar("T")

#: Logs with bytes that are not durable keep a file open until all logs of their group are synced.
_CLOSED_TOGETHER: Final = 256


async def close_logs(log_dir: LogDir, handles: Sequence[LogHandle]) -> OperatingError | None:
    """Make all logs durable and close their files. Return the first error; None if there was none.

    The files of all logs are closed even after an error. If all are closed without one, no log
    needs a scan when it is loaded.
    """
    failed: OperatingError | None = None
    for begin in range(0, len(handles), _CLOSED_TOGETHER):
        error = await _close_group(log_dir, handles[begin : begin + _CLOSED_TOGETHER])
        failed = failed or error
    return failed


async def _close_group(log_dir: LogDir, handles: Sequence[LogHandle]) -> OperatingError | None:
    planned = await _outcomes(handle.close_plan() for handle in handles)
    errors = [one for one in planned if isinstance(one, OperatingError)]
    plans = [one for one in planned if not isinstance(one, OperatingError)]
    is_durable, renamed = True, set[str]()
    try:
        await with_reserve(
            lambda: log_dir.run_operation(
                OpKind.CLOSE, lambda: carry_out(log_dir.vfs, plans, log_dir.beat, renamed=renamed)
            )
        )
    except OperatingError as e:
        errors.append(e)
        is_durable = False
    closed = await _outcomes(
        handle.close(None if isinstance(plan, OperatingError) or not is_durable else plan)
        for handle, plan in zip(handles, planned, strict=True)
    )
    errors += [one for one in closed if isinstance(one, OperatingError)]
    return errors[0] if errors else None


async def with_reserve(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``attempt``, repeated once after a LogDirImpairedError.

    An operation that found no space has released the reserve for the second attempt.
    """
    try:
        return await attempt()
    except LogDirImpairedError:
        return await attempt()


async def _outcomes(work: Iterable[Awaitable[T]]) -> list[T | OperatingError]:
    outcomes: list[T | OperatingError] = []
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, OperatingError):
            raise outcome
        outcomes.append(outcome)
    return outcomes
