"""LOOP. ``MoverPool``: the threads that copy replicas between log directories, one per move.

* The threads are separate from the directories' threads, so no append waits for a copy.
* If no thread is free, moves wait in the order of their requests.
* A thread that is still busy when a move returns it hangs on a failed disk. It is abandoned and
  replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.loop.timing import Clock
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor, MakeExecutor

#: A move submits one step at a time; a cancelled step may still run beside the next.
_MAX_OPS: Final = 4


class MoverPool:
    """Threads that copy replicas between log directories, ``num.replica.alter.log.dirs.threads`` of
    them. All methods run on the event loop.
    """

    def __init__(
        self, *, threads: int, clock: Clock, make_executor: MakeExecutor = LogDirExecutor
    ) -> None:
        assert threads > 0, threads
        self._clock = clock
        self._make_executor = make_executor
        self._made = 0
        self._free: asyncio.Queue[LogDirExecutor] = asyncio.Queue()
        for _ in range(threads):
            self._free.put_nowait(self._make())

    @asynccontextmanager
    async def executor(self) -> AsyncIterator[LogDirExecutor]:
        """Context with a thread for the caller's exclusive use.

        Entering waits for a free thread.
        """
        executor = await self._free.get()
        try:
            yield executor
        finally:
            if executor.is_idle:
                self._free.put_nowait(executor)
            else:
                executor.abandon(_abandoned)
                self._free.put_nowait(self._make())

    def close(self) -> None:
        """Let the free threads end. No caller may request a thread afterwards."""
        while not self._free.empty():
            self._free.get_nowait().shutdown(wait=False)

    def _make(self) -> LogDirExecutor:
        name = f"replica-alter-log-dirs-{self._made}"
        self._made += 1
        return self._make_executor(name=name, clock=self._clock, max_ops=_MAX_OPS)


def _abandoned() -> OverloadedError:
    return OverloadedError("the move that this thread worked for has ended")
