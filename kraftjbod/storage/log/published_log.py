"""LOOP. ``PublishedLog``: a log in its dir's thread, and what the loop may know of it meanwhile.

* Whatever is done to the log, a :class:`LogView` of what is so then is published on the loop when
  it is done, even if nobody waits any more.
* Segments that left the log are handed over with the view that does not show them any more.
* A log that was removed takes nothing; one whose copy in another dir took its place can be read.

What is done, and why, is log_handle.py's part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from kraftjbod.core.errors import NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log.log_values import FlushPlan
from kraftjbod.storage.log.log_view import LogView, Truncation, lower_truncation
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.segments.segment import LogSegment

T = TypeVar("T")


class PublishedLog:
    """All methods are for the loop's thread; what is given to them runs in the dir's."""

    def __init__(
        self,
        *,
        log: UnifiedLog,
        log_dir: LogDir,
        on_retired: Callable[[Sequence[LogSegment]], None],
        on_rolled: Callable[[], None],
    ) -> None:
        self.log = log
        self._log_dir = log_dir
        self._on_retired = on_retired
        self._on_rolled = on_rolled
        #: The last published one.
        self.view: LogView = log.view()
        #: The lowest truncation that nobody has taken.
        self._truncation: Truncation | None = None
        #: Its copy took its place: what is here may be read, for a while.
        self.is_replaced = False
        self.is_closed = False
        if self.view.damages:
            self._report_damage(self.view._replace(damages=()), self.view)

    def __repr__(self) -> str:
        return f"<PublishedLog {self.log!r}>"

    def begin(
        self, kind: OpKind, op: Callable[[UnifiedLog], T], *, size_bytes: int = 0
    ) -> Completion[T]:
        """Have ``op`` done, and publish what is so then; who waits hears of it in the same turn.

        :raises NotLeaderOrFollowerError: at once, if the log's copy took its place.
        :raises UnknownTopicOrPartitionError: at once, if it was removed.
        """
        if self.is_replaced:
            raise self._moved_error()
        return self._begin(kind, op, size_bytes)

    def submit(self, kind: OpKind, op: Callable[[UnifiedLog], T]) -> asyncio.Future[T]:
        """:meth:`begin` for who waits in a task."""
        return self.begin(kind, op).future()

    def ask(self, kind: OpKind, op: Callable[[UnifiedLog], T]) -> asyncio.Future[T]:
        """:meth:`submit` for what changes nothing: a log whose copy took its place does it too."""
        return self._begin(kind, op, 0).future()

    def _begin(self, kind: OpKind, op: Callable[[UnifiedLog], T], size_bytes: int) -> Completion[T]:
        if self.is_closed:
            self.require_open()
        return self._begin_any(kind, op, size_bytes)

    async def close(self, done: FlushPlan | None) -> None:
        """Carry out :meth:`UnifiedLog.close`, after which nothing else may be asked."""
        closing: Completion[None] = self._begin_any(OpKind.CLOSE, lambda log: log.close(done), 0)
        await closing.future()

    def _begin_any(
        self, kind: OpKind, op: Callable[[UnifiedLog], T], size_bytes: int
    ) -> Completion[T]:
        log = self.log
        return self._log_dir.begin(
            kind,
            lambda: (op(log), log.view(), log.segments.take_retired(), log.take_truncation()),
            settle=self._publish,
            size_bytes=size_bytes,
            replica=log.topic_partition,
        )

    async def run(self, kind: OpKind, op: Callable[[UnifiedLog], T]) -> T:
        """:meth:`submit`, and wait for it; it goes on if whoever waits gives up."""
        return await self.submit(kind, op)

    def require_open(self) -> None:
        """:raises OperatingError: as :meth:`submit`, if nothing may be asked of it any more."""
        if self.is_closed and self.is_replaced:
            raise self._moved_error()
        if self.is_closed:
            raise UnknownTopicOrPartitionError(f"{self.log.topic_partition} was removed from here")

    # -- truncations ------------------------------------------------------------------------

    @property
    def has_truncation(self) -> bool:
        """There was a truncation since the last :meth:`take_truncation`."""
        return self._truncation is not None

    def take_truncation(self) -> Truncation | None:
        """The lowest truncation since the last call; :attr:`view` is not older than it."""
        truncation, self._truncation = self._truncation, None
        return truncation

    # -- publish ----------------------------------------------------------------------------

    def _publish(self, done: tuple[T, LogView, list[LogSegment], Truncation | None]) -> T:
        result, view, retired, truncation = done
        before, self.view = self.view, view
        rolled = view.segments[-1] is not before.segments[-1]
        if view.damages != before.damages or view.indexes_mended != before.indexes_mended:
            self._report_damage(before, view)
        if truncation is not None:
            self._truncation = lower_truncation(self._truncation, truncation)
        if retired:
            self._on_retired(retired)
        if rolled:
            self._on_rolled()
        return result

    def _report_damage(self, before: LogView, now: LogView) -> None:
        telemetry = get_logger(component="published_log")
        where = {"partition": str(self.log.topic_partition), "log_dir": self._log_dir.path}
        if now.indexes_mended > before.indexes_mended:
            telemetry.warning("log_index_mended", **where)
        for damage in now.damages:
            if damage not in before.damages:
                telemetry.error(
                    "log_damaged", **where, offset=damage.offset, next_offset=damage.next_offset
                )

    def _moved_error(self) -> NotLeaderOrFollowerError:
        # Retriable, and true of this copy: the client comes back and finds the other one.
        tp = self.log.topic_partition
        return NotLeaderOrFollowerError(f"{tp} moved to another log directory, try again")
