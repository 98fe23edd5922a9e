"""LOOP. ``JobGuard``: background work whose unexpected errors cost that work, never the daemon.

* An error that nobody expected is logged with its traceback, counted, and ends the turn of the job
  that met it: nothing else. It is never silent, and never taken for success.
* For work that may begin anew at any time: chores of one directory, checks, files
  of one replica. A machine whose state would be half changed ends the daemon instead.
* What is expected (:class:`OperatingError`) is the job's own business and passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kraftjbod.core.errors import OperatingError, OverloadedError
from kraftjbod.core.telemetry import get_logger

#: A job that failed begins anew after this, doubled with each failure in a row up to the longest.
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0


class JobGuard:
    """The jobs of one owner, a directory for instance; ``context`` is logged with each failure."""

    def __init__(self, *, first_wait_s: float = _FIRST_WAIT_S, **context: object) -> None:
        self._first_wait_s = first_wait_s
        self._log = get_logger(component="job_guard", **context)
        #: Errors that nobody expected, since the owner was made.
        self.failures = 0

    async def attempt(
        self, job: str, work: Callable[[], Awaitable[object]], **context: object
    ) -> Exception | None:
        """Do ``work`` once; the error that nobody expected, if there was one.

        :raises OperatingError: what ``work`` raises of that kind.
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
        """Do ``work``, and again after each failure, until it ends by itself or is cancelled."""
        loop = asyncio.get_running_loop()
        wait_s = self._first_wait_s
        while True:
            began_s = loop.time()
            try:
                await work()
            except OverloadedError as e:
                # A limit of this process, such as its file descriptors: no bug, and it passes.
                self._log.info(
                    "background_job_waits", job=job, reason=e.message, begins_anew_s=wait_s
                )
            except Exception as e:
                if loop.time() - began_s > _LONGEST_WAIT_S:
                    wait_s = self._first_wait_s
                self.log_failure(job, e, begins_anew_s=wait_s)
            else:
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def log_failure(self, job: str, error: BaseException, **context: object) -> None:
        """``job`` met an error that nobody expected, and its turn is over."""
        self.failures += 1
        self._log.error("background_job_failed", job=job, exc_info=error, **context)
