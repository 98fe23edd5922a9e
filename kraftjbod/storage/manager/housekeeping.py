"""LOOP. ``Housekeeping``: background tasks of one log directory: retention, flushes, removals.

* Each directory has its own tasks, so that a hung disk does not delay the tasks of another.
* Each job has one coroutine, and cancelling :meth:`Housekeeping.run_jobs` ends all. After an
  unexpected error a job skips the current replica, or waits for its next turn
  (core/loop/job_guard.py).
* In an offline directory the jobs do nothing. The directory itself has logged its failure.
* In a saturated directory (KIP-928), retention runs at once and often, and delayed removals run
  now. These operations need no free space.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from kraftjbod.core.errors import OperatingError, OverloadedError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.log_dirs.stepwise_removal import remove_replica_dir
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_cache import (
    DEFAULT_CACHE_LIMITS,
    CacheLimits,
    SegmentCache,
)

_PURGE_CHECK_MS: Final = 500
_FILES_CHECK_MS: Final = 500
_RETENTION_INITIAL_DELAY_MS: Final = 30_000
#: Interval of retention while the disk is full, in ms.
_RELIEF_INTERVAL_MS: Final = 3_000


class _Purge(NamedTuple):
    """A removal that is due at ``due_ms``. ``order`` makes entries with equal times comparable."""

    due_ms: int
    order: int
    work: Callable[[], Awaitable[object]]


class Housekeeping:
    """Background tasks of one log directory: retention, checkpoints, flushes, delayed removals,
    closing idle files, and compaction. All methods run on the event loop.

    :param handles: returns the replicas in the directory.
    """

    def __init__(
        self,
        log_dir: LogDir,
        *,
        clock: Clock,
        handles: Callable[[], list[LogHandle]],
        checkpoint: Callable[[], Awaitable[None]],
        clean: Callable[[], Coroutine[Any, Any, None]],
        retention_check_interval_ms: int,
        checkpoint_interval_ms: int,
        flush_check_interval_ms: int,
        cache_limits: CacheLimits = DEFAULT_CACHE_LIMITS,
    ) -> None:
        self._log_dir = log_dir
        self._clock = clock
        self._handles = handles
        self._checkpoint = checkpoint
        self._clean = clean
        self._retention_check_interval_ms = retention_check_interval_ms
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._flush_check_interval_ms = flush_check_interval_ms
        self._log = get_logger(log_dir=log_dir.path)
        self._cache_limits = cache_limits
        self.segment_cache: SegmentCache[LogSegment] = SegmentCache(cache_limits)
        self._purges: list[_Purge] = []
        self._order = count()
        #: When retention runs next if the directory is saturated.
        self._relief_due_ms = 0
        #: Handles that rolled a segment, oldest request first, without duplicates.
        self._wants_flush: dict[LogHandle, None] = {}
        self._flush_wanted = asyncio.Event()

    async def run_jobs(self) -> None:
        """Run all background tasks of the directory at their intervals until cancelled. An
        unexpected error of one task is logged, and does not end the others.
        """
        retain_ms = self._retention_check_interval_ms
        first_retention_ms = min(_RETENTION_INITIAL_DELAY_MS, retain_ms)
        checkpoint_ms, flush_ms = self._checkpoint_interval_ms, self._flush_check_interval_ms
        async with asyncio.TaskGroup() as jobs:
            for name, job in (
                ("retention", lambda: self._every(retain_ms, self.retain, first_retention_ms)),
                ("checkpoints", lambda: self._every(checkpoint_ms, self._checkpoint_now)),
                ("flushes", lambda: self._every(flush_ms, self.flush_overdue)),
                ("purges", lambda: self._every(_PURGE_CHECK_MS, self.reclaim_space)),
                ("open_files", lambda: self._every(_FILES_CHECK_MS, self._close_idle_files)),
                ("flushes_of_rolled", self._flush_rolled),
                ("cleaner", self._clean),
            ):
                jobs.create_task(self._log_dir.jobs.keep(name, job))

    # -- requests ---------------------------------------------------------------------------

    def request_flush(self, handle: LogHandle) -> None:
        self._wants_flush[handle] = None
        self._flush_wanted.set()

    def purge_segments(
        self, handle: LogHandle, segments: Sequence[LogSegment], delay_ms: int
    ) -> None:
        self._purge_at(delay_ms, lambda: handle.purge(segments))

    def purge_replica(self, path: str, handle: LogHandle | None, delay_ms: int) -> None:
        """Queue a removal: after ``delay_ms``, close the files of ``handle`` and remove the
        directory ``path``. On a full disk it runs earlier.

        :param handle: None if the replica was not loaded.
        """
        log_dir = self._log_dir

        async def purge() -> None:
            if handle is not None:
                await handle.close_files()
            await remove_replica_dir(log_dir, path)

        self._purge_at(delay_ms, purge)

    def try_again(self, removal: Callable[[], Awaitable[object]]) -> None:
        """Queue a removal that the directory refused, to be retried until it succeeds, fails with
        an error other than OverloadedError, or the directory goes offline.
        """
        self._purge_at(0, removal)

    def retain_soon(self) -> None:
        """Let retention run soon if the directory is saturated.

        Called after a change of the configuration.
        """
        self._relief_due_ms = 0

    def forget(self) -> None:
        """Drop all pending removals and flushes, and replace the segment cache by an empty one.
        Used for a directory that is OFFLINE.
        """
        self._purges = []
        self._wants_flush = {}
        self.segment_cache = SegmentCache(self._cache_limits)

    def _purge_at(self, delay_ms: int, work: Callable[[], Awaitable[object]]) -> None:
        due_ms = self._clock.now_ms() + delay_ms
        heapq.heappush(self._purges, _Purge(due_ms, next(self._order), work))

    # -- jobs -------------------------------------------------------------------------------

    async def retain(self) -> None:
        """Apply retention to every log of the directory. Errors are logged, and the next log
        follows.
        """
        for handle in self._handles():
            await self._unless_offline(handle.apply_retention)

    async def flush_overdue(self) -> None:
        """Flush logs whose ``flush.ms`` has passed, and request flushes that were refused once
        more.
        """
        if self._wants_flush:
            self._flush_wanted.set()
        now_ms = self._clock.now_ms()
        for handle in self._handles():
            # Check the time first: with the default flush.ms it never passes.
            is_due = now_ms - handle.last_flush_ms >= handle.flush_ms
            if is_due and handle.recovery_point < handle.log_end_offset:
                await self._unless_offline(handle.flush)

    async def close_idle_files(self) -> None:
        """Close segment files that were not read lately, while more than the limit are open."""
        cache, log_dir = self.segment_cache, self._log_dir
        while cache.has_too_many_open and log_dir.is_online:
            before = cache.open_segments
            by_directory: defaultdict[str, list[LogSegment]] = defaultdict(list)
            for segment in await log_dir.run_operation(OpKind.READ, cache.choose_idle):
                by_directory[segment.directory].append(segment)
            for handle in self._handles():
                if segments := by_directory.pop(handle.directory, None):
                    await self._unless_offline(partial(handle.close_idle, segments))
            if cache.open_segments >= before:
                return  # The remaining open segments hold bytes that are not flushed yet.

    async def reclaim_space(self) -> None:
        """Run the removals that are due.

        In a saturated directory, apply retention and run all removals.
        """
        if not self._is_saturated:
            self._relief_due_ms = 0
        elif self._clock.now_ms() >= self._relief_due_ms:
            self._relief_due_ms = self._clock.now_ms() + _RELIEF_INTERVAL_MS
            await self.retain()
        await self.purge_due()

    @property
    def _is_saturated(self) -> bool:
        return self._log_dir.state is LogDirState.SATURATED

    async def purge_due(self) -> None:
        """Run the removals that are due, or all if the disk is full.

        Removals that the directory refuses now stay queued.
        """
        while self._purges and (
            self._is_saturated or self._purges[0].due_ms <= self._clock.now_ms()
        ):
            purge = heapq.heappop(self._purges)
            if isinstance(await self._unless_offline(purge.work), OverloadedError):
                heapq.heappush(self._purges, purge)
                return

    async def _close_idle_files(self) -> None:
        await self._unless_offline(self.close_idle_files)

    async def _checkpoint_now(self) -> None:
        await self._unless_offline(self._checkpoint)

    async def _flush_rolled(self) -> None:
        while True:
            await self._flush_wanted.wait()
            self._flush_wanted.clear()
            wanted, self._wants_flush = list(self._wants_flush), {}
            for handle in wanted:
                if isinstance(await self._unless_offline(handle.flush), OverloadedError):
                    self._wants_flush[handle] = None

    async def _every(
        self, interval_ms: int, job: Callable[[], Awaitable[None]], first_ms: int | None = None
    ) -> None:
        await asyncio.sleep((interval_ms if first_ms is None else first_ms) / 1000)
        while True:
            await job()
            await asyncio.sleep(interval_ms / 1000)

    async def _unless_offline(self, work: Callable[[], Awaitable[object]]) -> OperatingError | None:
        """Run ``work`` unless the directory is OFFLINE. Errors are logged and do not affect other
        work.

        Returns the error if ``work`` was refused or failed with one that is expected, else None.
        """
        if not self._log_dir.is_online:
            return None
        try:
            await self._log_dir.jobs.attempt("housekeeping", work)
        except OperatingError as e:
            self._log.info("housekeeping_skipped", reason=e.message)
            return e
        return None
