"""DISK. ``LogReplay``: recomputes from batches what a log derives from them, in steps.

* A step reads about :data:`_STEP_BYTES`, so that other operations of the directory run between two
  steps.
* unified_log.py chooses the segments to replay and uses the result: the transaction index of a
  segment, or the producers at the offset of a truncation.
* A segment without a transaction index is not appended to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kraftjbod.core import buggify
from kraftjbod.storage.segments.segment import LogSegment, SegmentUnreadError
from kraftjbod.storage.segments.steps import Steps, take_step

#: A step of this size takes some milliseconds of disk and interpreter time, with small batches too.
_STEP_BYTES: Final = 1024 * 1024

UseReplayed = Callable[[bool], None]
"""Uses the result of a replay. The argument says whether files may be written."""


class ReplayNeededError(SegmentUnreadError):
    """An operation needs the result of ``replay`` first. It has changed nothing."""

    def __init__(self, replay: LogReplay) -> None:
        super().__init__(replay.segment)
        self.replay = replay

    @property
    def is_settled(self) -> bool:
        return self.replay.is_settled()


class LogReplay:
    """Recomputes values that a log derives from its batches: a transaction index, or the producer
    state at an offset.

    Call :meth:`step` in the directory's thread until it returns True, then :meth:`use`.
    """

    is_survey: Final = False

    def __init__(
        self,
        segments: Sequence[LogSegment],
        truncations: int,
        work: Steps[UseReplayed],
        *,
        target: object,
        is_settled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create a replay that has not begun.

        :param segments: the segments of the log up to the last that is replayed.
        :param truncations: number of truncations of the log, see :class:`LogSegments`.
        :param work: returns the function that uses the result.
        :param target: equal for replays with the same result.
        :param is_settled: returns whether another replay produced the result meanwhile. Called in
            the event loop's thread.
        """
        self.segment = segments[-1]
        self.target = target
        self.is_settled = is_settled
        self._segments = self._log = tuple(segments)
        self._truncations = truncations
        self._work = work
        self._use: UseReplayed | None = None
        #: True during a step, and after a step that failed: its work cannot be continued.
        self._is_stepping = False

    def is_for(self, unread: SegmentUnreadError) -> bool:
        """Return whether the result of this replay is the one that ``unread`` asks for."""
        return isinstance(unread, ReplayNeededError) and unread.replay.target == self.target

    def is_valid(self, log: tuple[LogSegment, ...], truncations: int) -> bool:
        """Return whether no step failed, and the log still begins with the same segments.

        Cost: O(1), and a comparison of the segments after each change of ``log``.

        :param log: all segments of the log; the same object as before if none was added, removed or
            replaced.
        :param truncations: as in the constructor.
        """
        if log is not self._log:
            if log[: len(self._segments)] != self._segments:
                return False
            self._log = log
        return not self._is_stepping and truncations == self._truncations

    def step(self) -> bool:
        """Read about 1 MiB. Return whether the replay is complete."""
        if self._use is None:
            self._is_stepping = True
            is_small = buggify.is_on and buggify.fires("storage.small_replay_step")
            for use in take_step(self._work, 1 if is_small else _STEP_BYTES):
                self._use = use
            self._is_stepping = False
        return self._use is not None

    def use(self, *, is_written: bool) -> bool:
        """Store the result in the log or its segment. Return False, without an effect, if the
        replay is not complete.

        :param is_written: whether files may be written.
        """
        if self._use is None:
            return False
        self._use(is_written)
        return True
