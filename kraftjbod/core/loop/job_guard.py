"""LOOP. ``JobGuard``: runs background jobs so that an unexpected error does not end the daemon.

* An unexpected error is logged with its traceback and counted. It ends this run of the job only.
* Use it for jobs that can restart at any time: chores of one directory, checks, files of one
  replica. A state machine that could be left in a half-changed state ends the daemon instead.
* The job handles expected errors (:class:`OperatingError`) itself. They are not logged here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kraftjbod.core.errors import OperatingError, OverloadedError
from kraftjbod.core.telemetry import get_logger

#: Delay before a failed job restarts. It doubles with each failure in a row.
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0


class JobGuard:
    """Runs the background jobs of one owner, such as a directory, so that an unexpected error is
    logged and does not end the daemon.

    ``context`` is added to the log events.
    """

    def __init__(self, *, first_wait_s: float = _FIRST_WAIT_S, **context: object) -> None:
        self._first_wait_s = first_wait_s
        self._log = get_logger(component="job_guard", **context)
        #: Number of unexpected errors since construction.
        self.failures = 0

    async def attempt(
        self, job: str, work: Callable[[], Awaitable[object]], **context: object
    ) -> Exception | None:
        """Run ``work`` once. Log an unexpected error and return it; None without one.

        :raises OperatingError: ``work`` raised it. It is not logged.
        """
        try:
            await work()
        except OperatingError:
            raise
        except Exception as e:
            self.log_failure(job, e, **context)
            return e
        return None

    async def keep(self, job: str, work: Callable[[], Awaitable[object]]) -> None:
        """Run ``work``, and restart it after each error, until it returns or is cancelled.

        An OverloadedError is logged as information; any other error, also another OperatingError,
        is logged and counted as a failure. The delay before a restart doubles from ``first_wait_s``
        to 60 s, and is ``first_wait_s`` again after a failed run of more than 60 s.
        """
        loop = asyncio.get_running_loop()
        wait_s = self._first_wait_s
        while True:
            began_s = loop.time()
            try:
                await work()
            except OverloadedError as e:
                # A temporary limit of this process, such as its file descriptors: not a bug.
                self._log.info(
                    "background_job_waits", job=job, reason=e.message, restart_after_s=wait_s
                )
            except Exception as e:
                if loop.time() - began_s > _LONGEST_WAIT_S:
                    wait_s = self._first_wait_s
                self.log_failure(job, e, restart_after_s=wait_s)
            else:
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def log_failure(self, job: str, error: BaseException, **context: object) -> None:
        """Log and count an unexpected error of ``job``."""
        self.failures += 1
        self._log.error("background_job_failed", job=job, exc_info=error, **context)
