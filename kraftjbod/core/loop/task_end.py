"""LOOP. ``raise_task_error``: an owner for the end of tasks that run as long as the daemon.

The runner ends the process over an error in a callback of the loop, but for an ``OSError``, which
asyncio's transports report that way for connections that break. Out of a task it is a bug like any
other: the task's work is over, and the daemon would go on without it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kraftjbod.core.errors import KraftJbodError


class TaskEndedError(KraftJbodError):
    """A task that runs as long as its daemon ended with an ``OSError``, which is its cause."""


def raise_task_error(task: asyncio.Task[Any]) -> None:
    """Raise what ended ``task``, on the loop; for ``Task.add_done_callback``.

    A task that was cancelled, or returned, is no error.
    """
    error = None if task.cancelled() else task.exception()
    if isinstance(error, OSError):
        raise TaskEndedError(f"task {task.get_name()} ended: {error!r}") from error
    if error is not None:
        raise error
