"""LOOP. ``raise_task_error``: reports the error of a task that should never end.

The runner ends the process after an error in a callback of the event loop, except for an
``OSError``, which asyncio's transports raise there for broken connections. An ``OSError`` that ends
a task is a bug like any other error: the daemon would continue without the task. So it is raised as
:class:`TaskEndedError`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kraftjbod.core.errors import KraftJbodError


class TaskEndedError(KraftJbodError):
    """A task that should run as long as its daemon ended with an ``OSError``, which is the
    cause.
    """


def raise_task_error(task: asyncio.Task[Any]) -> None:
    """Raise the error of ``task`` in the event loop. Pass this function to
    ``Task.add_done_callback``.

    A task that was cancelled or returned has no error. An ``OSError`` is raised as the cause of a
    :class:`TaskEndedError`.
    """
    error = None if task.cancelled() else task.exception()
    if isinstance(error, OSError):
        raise TaskEndedError(f"task {task.get_name()} ended: {error!r}") from error
    if error is not None:
        raise error
