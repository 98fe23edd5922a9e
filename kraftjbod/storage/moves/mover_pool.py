"""LOOP. ``MoverPool``: the threads that copy replicas between log dirs, one to a move at a time.

* They are not the dirs' own threads, so no append waits for a copy.
* Whoever finds no thread free waits; the first to come is the first to go.
* A thread that is still busy when it is given back hangs on a disk that is dead: it is abandoned,
  and another takes its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.loop.timing import Clock
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor, MakeExecutor

#: A move asks for one step after the other; what was cancelled may still run beside the next.
_MAX_OPS: Final = 4


class MoverPool:
    """As many threads as ``num.replica.alter.log.dirs.threads``. For the loop's thread."""

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
        """A thread of one's own for as long as the block lasts."""
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
        """Let the threads that are free end; nobody may ask for one any more."""
        while not self._free.empty():
            self._free.get_nowait().shutdown(wait=False)

    def _make(self) -> LogDirExecutor:
        name = f"replica-alter-log-dirs-{self._made}"
        self._made += 1
        return self._make_executor(name=name, clock=self._clock, max_ops=_MAX_OPS)


def _abandoned() -> OverloadedError:
    return OverloadedError("the move that this thread worked for has ended")
