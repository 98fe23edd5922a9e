"""LOOP. ``PublishedLog``: runs operations on a log in its directory's thread, and publishes views.

* After each successful operation a new :class:`LogView` is published on the event loop, even if the
  caller stopped waiting. A failed operation publishes none, even if it changed a part of the log.
* Segments that left the log are passed to ``on_retired`` together with the first view without
  them.
* A removed log accepts no operations. A log that was replaced by its copy in another directory can
  still be read.

log_handle.py decides about the operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from kraftjbod.core.errors import NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log.log_view import LogView, Truncation, lower_truncation
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.segments.segment import LogSegment

T = TypeVar("T")


class PublishedLog:
    """Runs operations on one log in the directory's thread, and publishes a new view after each
    success.

    Methods run on the event loop.
    """

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
        #: The last published view.
        self.view: LogView = log.view()
        #: The lowest truncation since the last :meth:`take_truncation`.
        self._truncation: Truncation | None = None
        #: The copy in another directory replaced this log, which may still be read for a while.
        self.is_replaced = False
        self.is_closed = False
        if self.view.damages:
            self._report_damage(self.view._replace(damages=()), self.view)

    def __repr__(self) -> str:
        return f"<PublishedLog {self.log!r}>"

    def submit_operation(
        self, kind: OpKind, op: Callable[[UnifiedLog], T], *, size_bytes: int = 0
    ) -> Completion[T]:
        """Queue ``op`` for the directory's thread. The new view is published before the completion
        is answered, in the same event loop iteration.

        Raises the errors of :meth:`LogDir.submit_operation`, and:

        :raises NotLeaderOrFollowerError: at once, if the log was replaced by its copy.
        :raises UnknownTopicOrPartitionError: at once, if the log was removed.
        """
        if self.is_replaced:
            raise self._moved_error()
        return self._begin(kind, op, size_bytes)

    def submit(self, kind: OpKind, op: Callable[[UnifiedLog], T]) -> asyncio.Future[T]:
        """Queue ``op`` for the directory's thread, with the errors of :meth:`submit_operation`, and
        return a future of the result. Cancelling the future does not cancel ``op``.
        """
        return self.submit_operation(kind, op).future()

    def ask(self, kind: OpKind, op: Callable[[UnifiedLog], T]) -> asyncio.Future[T]:
        """Queue ``op``, which changes no records, as :meth:`submit` does, and return a future of
        the result.

        Allowed until the log is closed, even if its copy has replaced it.
        """
        return self._begin(kind, op, 0).future()

    def _begin(self, kind: OpKind, op: Callable[[UnifiedLog], T], size_bytes: int) -> Completion[T]:
        if self.is_closed:
            self.require_open()
        return self._begin_any(kind, op, size_bytes)

    def submit_last(self, op: Callable[[UnifiedLog], T]) -> asyncio.Future[T]:
        """Queue a part of the closing of the log, as a CLOSE operation. Allowed after the log was
        closed to other operations.
        """
        return self._begin_any(OpKind.CLOSE, op, 0).future()

    def _begin_any(
        self, kind: OpKind, op: Callable[[UnifiedLog], T], size_bytes: int
    ) -> Completion[T]:
        log = self.log
        return self._log_dir.submit_operation(
            kind,
            lambda: (op(log), log.view(), log.segments.take_retired(), log.take_truncation()),
            settle=self._publish,
            size_bytes=size_bytes,
            replica=log.topic_partition,
        )

    async def run_operation(self, kind: OpKind, op: Callable[[UnifiedLog], T]) -> T:
        """Run ``op`` as :meth:`submit` does and return its result. The operation continues if the
        caller is cancelled.
        """
        return await self.submit(kind, op)

    def require_open(self) -> None:
        """Raise an error if the log accepts no operations.

        :raises NotLeaderOrFollowerError: the log was replaced by its copy, and its files are
            closed.
        :raises UnknownTopicOrPartitionError: the log was removed.
        """
        if self.is_closed and self.is_replaced:
            raise self._moved_error()
        if self.is_closed:
            raise UnknownTopicOrPartitionError(f"{self.log.topic_partition} was removed from here")

    # -- truncations ------------------------------------------------------------------------

    @property
    def has_truncation(self) -> bool:
        """Whether the log was truncated since the last :meth:`take_truncation`."""
        return self._truncation is not None

    def take_truncation(self) -> Truncation | None:
        """Return the lowest truncation since the last call; None without one.

        :attr:`view` includes it.
        """
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
