"""LOOP. ``PartList``: starts the parts of a daemon in order, and closes them in reverse.

* A part that cannot start ends the start. :meth:`PartList.close` then closes the started parts and
  the failed one.
* A part may end the daemon (``failed``). The list watches it from its start on, also while later
  parts start.
* A part that fails to close does not prevent the others from closing.
* The caller of :meth:`PartList.close` sets its deadline, and cancels it then.

``contextlib.AsyncExitStack`` is not used: a cancelled one continues to close, without a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

Step = Callable[[], Awaitable[object] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a daemon; a callable that is None does nothing. ``name`` is for error
    messages."""

    name: str
    start: Step | None = None
    close: Step | None = None
    """Must also close a partly started part: a start may be cancelled at any await."""
    failed: Callable[[], Coroutine[Any, Any, object]] | None = None
    """Returns when this part requests an orderly stop; raises when it failed."""


class PartList:
    """The parts of a daemon, which start once and close once. ``add`` may be called during the
    start."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self._parts = list(parts)
        self._begun: list[Part] = []
        self._watches: set[asyncio.Task[object]] = set()
        self._ending: asyncio.Future[None] | None = None
        #: The error that ended the start, or the daemon after it.
        self.failure: Exception | None = None

    def add(self, *parts: Part) -> None:
        """Add parts, which start after the present parts and close before them."""
        self._parts.extend(parts)

    async def start(self) -> None:
        """Start all parts in order; return early if a part requests an orderly stop.

        :raises Exception: a part could not start, or a started part failed.
        """
        await self._unless_ended(self._start_all())

    async def wait_failed(self) -> None:
        """Wait until a part requests an orderly stop.

        :raises Exception: a part failed.
        """
        await self._unless_ended(asyncio.Event().wait())

    async def close(self) -> None:
        """Close the started parts and the one whose start failed, the last one first.

        :raises Exception: the first error of a part. The errors of other parts are its notes.
        """
        await _cancelled(self._watches)
        if self._ending is not None and self._ending.done():
            self._ending.exception()  # Mark it as retrieved, for no caller waits for it.
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
    """Cancel all tasks, and wait until they end; their errors are ignored."""
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
