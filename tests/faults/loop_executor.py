"""An executor without a thread: its operations run on the loop, in order, one in each turn.

For whoever wants to know what runs when: a simulation, or a test that counts threads.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor


class LoopExecutor(LogDirExecutor):
    """In the place of a :class:`LogDirExecutor`, by ``Environment.make_executor``."""

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._job: Any = None
        waiting, self._jobs = self._jobs, self  # type: ignore[assignment] # One without a thread.
        while not waiting.empty():
            self.put(waiting.get())

    def put(self, job: Any) -> None:
        assert self._loop is not None
        self._loop.call_soon(self._turn, job)

    def get(self) -> Any:
        """Each turn is the life of a thread with one job."""
        job, self._job = self._job, None
        return job

    def _turn(self, job: Any) -> None:
        self._job = job
        self._work()
