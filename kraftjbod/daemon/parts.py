"""LOOP. ``PartList``: the parts of a daemon in the order in which they start; they close backwards.

* A part that cannot start ends the start. What had begun before, the failed one included, closes
  with :meth:`PartList.close`, as after an orderly end.
* A part may end the daemon (``failed``): that is watched from its own start on, also while the
  parts after it are starting.
* A part that fails to close does not keep the others from closing.
* Stopping has one deadline, that of whoever calls :meth:`PartList.close` and cancels it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

Step = Callable[[], Awaitable[object] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What starts, closes or ends the daemon together; ``name`` is for error messages."""

    name: str
    start: Step | None = None
    close: Step | None = None
    """Closes also what has started by half: a start may be cancelled wherever it waits."""
    failed: Callable[[], Coroutine[Any, Any, object]] | None = None
    """Returns, or raises, when this part ends the daemon."""


class PartList:
    """Started once, closed once; ``add`` also while it is starting."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self._parts = list(parts)
        self._begun: list[Part] = []
        self._watches: set[asyncio.Task[object]] = set()
        self._ending: asyncio.Future[None] | None = None
        #: What ended the start or the life after it, if an error did.
        self.failure: Exception | None = None

    def add(self, *parts: Part) -> None:
        """They start after those that are there, and close before them."""
        self._parts.extend(parts)

    async def start(self) -> None:
        """Start all in order; also return if a part wants an orderly end before that.

        :raises Exception: what a part raised, by its start or by its ``failed``.
        """
        await self._unless_ended(self._start_all())

    async def wait_failed(self) -> None:
        """Return when a part wants an orderly end, or raise what ended it; otherwise never."""
        await self._unless_ended(asyncio.Event().wait())

    async def close(self) -> None:
        """Close what has begun, the last one first.

        :raises Exception: the first error of a part; the others are notes on it.
        """
        await _cancelled(self._watches)
        if self._ending is not None and self._ending.done():
            self._ending.exception()  # Nobody waited for it any more.
        first: Exception | None = None
        while self._begun:
            part = self._begun.pop()
            try:
                await _take(part.close)
            except Exception as e:
                if first is None:
                    first = e
                    first.add_note(f"while {part.name} was closed")
                else:
                    first.add_note(f"then, while {part.name} was closed: {e!r}")
        if first is not None:
            raise first

    async def _start_all(self) -> None:
        for part in self._parts:
            self._begun.append(part)
            await _take(part.start)
            if part.failed is not None:
                watch = asyncio.create_task(part.failed(), name=f"{part.name}-failed")
                self._watches.add(watch)
                watch.add_done_callback(self._end)

    async def _unless_ended(self, work: Coroutine[Any, Any, object]) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(work)
        try:
            waited: set[asyncio.Future[Any]] = {task, self._ending}
            done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        except Exception as e:
            self.failure = e
            raise
        finally:
            await _cancelled({task})

    def _end(self, watch: asyncio.Task[object]) -> None:
        if watch.cancelled() or self._ending is None or self._ending.done():
            return
        error = watch.exception()
        if error is None:
            self._ending.set_result(None)
        else:
            self._ending.set_exception(error)


async def _take(step: Step | None) -> None:
    awaitable = None if step is None else step()
    if awaitable is not None:
        await awaitable


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel all, and wait until they are gone; what they raise then is nobody's any more."""
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
