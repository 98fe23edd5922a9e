"""An executor without a thread: each operation runs in a separate event loop iteration.

It is used by simulations, and by tests that count threads.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor


class LoopExecutor(LogDirExecutor):
    """Replacement of :class:`LogDirExecutor`, used through ``Environment.make_executor``."""

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._job: Any = None
        waiting, self._jobs = self._jobs, self  # type: ignore[assignment] # A queue without a thread.
        while not waiting.empty():
            self.put(waiting.get())

    def put(self, job: Any) -> None:
        assert self._loop is not None
        self._loop.call_soon(self._turn, job)

    def get(self) -> Any:
        """Return the current job, and then None, as for a thread that ends after one job."""
        job, self._job = self._job, None
        return job

    def _turn(self, job: Any) -> None:
        self._job = job
        self._work()
