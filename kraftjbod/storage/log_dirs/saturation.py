"""LOOP. ``Saturation``: how a log directory reacts to the free space on its disk (KIP-928).

* The first operation that finds no space releases the reserve at once, in the directory's thread.
  Appends and creations that were queued after it fail, so that they cannot take that space.
* Each check passes the free space to ``FreeSpacePolicy``. The policy can declare the directory full
  before its disk is, or allow the reserve to be rebuilt. Once the reserve is complete, the
  directory has space again (ADR 24).

The full state survives a stall: a directory that responds again is still full.
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

_FULL_STATE: Final = "full_state"


class _FullState(NamedTuple):
    """Free space, and whether the reserve was complete, when an operation found no space."""

    space: Space
    had_reserve: bool


class Probing(Protocol):
    """Function that queues ``op`` in the directory's thread and does not wait. An error changes the
    state of the directory. ``settle`` gets the result.
    """

    def __call__(
        self, op: Callable[[], Any], settle: Callable[[Any], None]
    ) -> asyncio.Future[None]: ...


class Saturation:
    """Reaction of one log directory to a full disk: releases the reserve file, keeps the reason,
    and rebuilds the reserve later. Methods run on the event loop, except as documented.

    :param report_change: called when the directory's state has changed.
    """

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
        #: Why the directory is full; empty while it is not.
        self.full_reason = ""

    @property
    def reserve_bytes(self) -> int:
        """Size of the complete reserve file; 0 after its release."""
        return self._reserve.size_bytes if self._reserve.is_held else 0

    @property
    def is_rebuilding(self) -> bool:
        return self._rebuilding is not None and not self._rebuilding.done()

    def secure_reserve(self, beat: Callable[[], None]) -> None:
        """Make the reserve complete and durable at the start, in the directory's thread.

        A directory with replicas and without a reserve was full when it stopped. It is still full
        unless the free space is enough by :meth:`FreeSpacePolicy.is_enough`.

        :raises OSError: ENOSPC: the directory is still full, or the reserve does not fit.
        """
        if self._reserve.find() and self._reserve.size_bytes:
            return
        path = self._condition.path
        self._reserve.release()
        if holds_replicas(self._vfs, path):
            space = self._vfs.space(path)
            if not self._plan.is_enough(space, has_reserve=False):
                raise OSError(ENOSPC, f"{space.usable_bytes} free bytes are too few for replicas")
        self._reserve.build(beat)

    def give_reserve_if_full(self, kind: OpKind, error: BaseException) -> None:
        """If ``error`` means a full disk, release the reserve and fail the queued appends and
        creations.

        Runs in the directory's thread, before the next operation starts.
        """
        if not isinstance(error, OSError):
            return
        if judge(error.errno, kind_of_failure(error, kind)) is Verdict.FULL:
            # Operations queued before this failure must not use up the reserve.
            self._executor.hold_back(lambda: self._condition.saturated_error(f"{error}"))
            vars(error)[_FULL_STATE] = self._give_reserve()

    def _give_reserve(self) -> _FullState:
        """Unlink the reserve, in the directory's thread.

        Returns the free space before that, and whether the reserve was complete.
        """
        space = self._vfs.space(self._condition.path)
        return _FullState(space, self._reserve.release())

    def fill_up(self, reason: str, error: OSError, *, is_attempt: bool) -> None:
        """Set the state to SATURATED after an operation failed with ENOSPC or EDQUOT.

        :param is_attempt: whether the operation was a probe. For a directory that is already full,
            its failure lets :class:`FreeSpacePolicy` wait for more checks.
        """
        self.full_reason = reason
        found: _FullState | None = vars(error).get(_FULL_STATE)
        if found is not None:
            self._note_full(found)
        elif not self._executor.is_full:
            # The error came from a thread other than the directory's.
            self._probe(self._give_reserve, self._note_full)
        is_news = self._condition.step(LogDirEvent.FILLED_UP, reason)
        if is_news or is_attempt:
            self._plan.filled_up(None if found is None else found.space)
        if is_news:
            self._report_change()

    def _note_full(self, found: _FullState) -> None:
        condition = self._condition
        condition.space = found.space
        if found.had_reserve:
            condition.log.warning(
                "log_dir_reserve_released", **condition.event_fields(self.full_reason)
            )

    def note_space(self, space: Space, beat: Callable[[], None]) -> None:
        """Handle the free space that a check found: set the state to SATURATED, or start to rebuild
        the reserve.

        :param beat: reports progress of a rebuild of the reserve, in the directory's thread.
        """
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
            return  # The next check tries again.
        was_held = self._reserve.is_held
        self._rebuilding = self._probe(
            lambda: self._reserve.build(beat), lambda _: self._end_full(was_held)
        )

    def _end_full(self, had_reserve: bool) -> None:
        condition = self._condition
        if not had_reserve and self._reserve.size_bytes:
            condition.log.info(
                "log_dir_reserve_rebuilt", **condition.event_fields(self.full_reason)
            )
        self.full_reason = ""
        self._executor.let_go()
        if condition.step(LogDirEvent.HAS_SPACE, f"{condition.space.usable_bytes} bytes are free"):
            self._report_change()
