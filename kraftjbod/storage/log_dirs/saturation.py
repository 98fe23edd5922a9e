"""LOOP. ``Saturation``: what a log dir does about the free space on its disk (KIP-928).

* The first operation that finds none gives the reserve away, in the dir's thread and at once, and
  nothing that was queued after it takes that space for good.
* Each check of the disk that says how much is free asks ``FreeSpacePolicy`` for advice: the dir is
  full before its disk is, or the reserve can be rebuilt. With that whole there is space again.

Full is remembered through a stall, so that a dir that answers again is what it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from errno import ENOSPC
from typing import Any, Final, NamedTuple, Protocol

from kraftjbod.core.log_dir_state import LogDirEvent
from kraftjbod.storage.log_dirs.dir_condition import DirCondition
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.disk_check import holds_replicas
from kraftjbod.storage.log_dirs.free_space_policy import FreeSpacePolicy
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind, Verdict, judge, kind_of_failure
from kraftjbod.storage.log_dirs.reserve_file import ReserveFile
from kraftjbod.storage.vfs import Space, Vfs

_FULL_STORY: Final = "full_story"


class _FullStory(NamedTuple):
    """What the thread saw when an operation found no space."""

    space: Space
    had_reserve: bool


class Probing(Protocol):
    """Queues an operation that nobody waits for; its errors are judged, its result is settled."""

    def __call__(
        self, op: Callable[[], Any], settle: Callable[[Any], None]
    ) -> asyncio.Future[None]: ...


class Saturation:
    """Of one dir; ``report_change`` is called when its state has changed. For the loop, if not
    said otherwise."""

    def __init__(
        self,
        condition: DirCondition,
        *,
        vfs: Vfs,
        executor: LogDirExecutor,
        reserve: ReserveFile,
        plan: FreeSpacePolicy,
        probe: Probing,
        report_change: Callable[[], None],
    ) -> None:
        self._condition = condition
        self._vfs = vfs
        self._executor = executor
        self._reserve = reserve
        self._plan = plan
        self._probe = probe
        self._report_change = report_change
        self._rebuilding: asyncio.Future[None] | None = None
        #: Why it was found full; empty while it is not.
        self.full_reason = ""

    @property
    def reserve_bytes(self) -> int:
        """What the reserve file holds for the day when the disk is full; 0 once it is given up."""
        return self._reserve.size_bytes if self._reserve.is_held else 0

    @property
    def is_rebuilding(self) -> bool:
        return self._rebuilding is not None and not self._rebuilding.done()

    def secure_reserve(self, beat: Callable[[], None]) -> None:
        """In the dir's thread, at the start: have it whole and on the disk.

        A dir with replicas that has none gave it away when it was full. It is full still, unless
        there is as much space as would have healed it had it gone on.
        """
        if self._reserve.find() and self._reserve.size_bytes:
            return
        path = self._condition.path
        self._reserve.release()
        if holds_replicas(self._vfs, path):
            space = self._vfs.space(path)
            if not self._plan.is_enough(space, has_reserve=False):
                raise OSError(ENOSPC, f"{space.usable_bytes} free bytes are too few to go on")
        self._reserve.build(beat)

    def give_reserve_if_full(self, kind: OpKind, error: BaseException) -> None:
        """In the dir's thread, as soon as an operation has failed: free space if it lacked any."""
        if not isinstance(error, OSError):
            return
        if judge(error.errno, kind_of_failure(error, kind)) is Verdict.FULL:
            # What was queued while there seemed to be space shall not eat up the reserve.
            self._executor.hold_back(lambda: self._condition.saturated_error(f"{error}"))
            vars(error)[_FULL_STORY] = self._give_reserve()

    def _give_reserve(self) -> _FullStory:
        """In the dir's thread."""
        space = self._vfs.space(self._condition.path)
        return _FullStory(space, self._reserve.release())

    def fill_up(self, reason: str, error: OSError, *, is_attempt: bool) -> None:
        """There was no space for an operation, be it only an attempt to find out."""
        self.full_reason = reason
        story: _FullStory | None = vars(error).get(_FULL_STORY)
        if story is not None:
            self._note_full(story)
        elif not self._executor.is_full:
            # It was in a thread that is not the dir's.
            self._probe(self._give_reserve, self._note_full)
        is_news = self._condition.step(LogDirEvent.FILLED_UP, reason)
        if is_news or is_attempt:
            self._plan.filled_up(None if story is None else story.space)
        if is_news:
            self._report_change()

    def _note_full(self, story: _FullStory) -> None:
        condition = self._condition
        condition.space = story.space
        if story.had_reserve:
            condition.log.warning("log_dir_reserve_released", **condition.story(self.full_reason))

    def note_space(self, space: Space, beat: Callable[[], None]) -> None:
        """A check said how much is free; ``beat`` is for what may follow from it."""
        self._condition.space = space
        if self.full_reason:
            if self._plan.may_heal(space, has_reserve=self._reserve.is_held):
                self._rebuild(beat)
        elif self._plan.is_short(space):
            self.full_reason = f"{space.usable_bytes} bytes are free, which is too few"
            if self._condition.step(LogDirEvent.FILLED_UP, self.full_reason):
                self._report_change()

    def _rebuild(self, beat: Callable[[], None]) -> None:
        if self._executor.is_full:
            return  # The next check sees to it.
        was_held = self._reserve.is_held
        self._rebuilding = self._probe(
            lambda: self._reserve.build(beat), lambda _: self._end_full(was_held)
        )

    def _end_full(self, had_reserve: bool) -> None:
        condition = self._condition
        if not had_reserve and self._reserve.size_bytes:
            condition.log.info("log_dir_reserve_rebuilt", **condition.story(self.full_reason))
        self.full_reason = ""
        self._executor.let_go()
        if condition.step(LogDirEvent.HAS_SPACE, f"{condition.space.usable_bytes} bytes are free"):
            self._report_change()
