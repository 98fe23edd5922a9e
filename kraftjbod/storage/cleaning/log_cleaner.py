"""LOOP. ``LogCleaner``: compaction of this node's logs (KIP-58), per directory.

* One coroutine per directory repeatedly cleans its dirtiest log. At most ``log.cleaner.threads``
  passes run at once on the node.
* Reads and writes run in small steps in a second thread of the directory. All passes together are
  limited by ``log.cleaner.io.max.bytes.per.second``.
* Only committed, durable records in closed segments are cleaned. Otherwise a record could be
  removed because of a later record that is lost afterwards.
* A pass that is paused, fails or finds no space leaves no files.
* A log that cannot be cleaned, because of damage or an unexpected error, is logged once. It is
  skipped until it is truncated or recreated, or the broker restarts. Other logs are still cleaned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from kraftjbod.core.errors import (
    CorruptRecordError,
    ErrorCode,
    OperatingError,
    OverloadedError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import Clock, TokenBucket
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.cleaning.cleaned_transactions import CleanedTransactions
from kraftjbod.storage.cleaning.cleaner_map import CleanerMap
from kraftjbod.storage.cleaning.cleaner_offsets import CleanerOffsets
from kraftjbod.storage.cleaning.cleaning_pause import CleaningPauses
from kraftjbod.storage.cleaning.cleaning_steps import (
    STEP_BYTES,
    Cleanable,
    GroupRewriting,
    KeyReading,
    NoSpaceToCleanError,
    Stepped,
    find_cleanable,
)
from kraftjbod.storage.cleaning.compaction import BatchFilter, group_segments
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.log_dirs.outside_operations import run_copy
from kraftjbod.storage.segments.batch_walk import LARGEST_RELATIVE_OFFSET
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_swap import CleaningFiles, discard_target

T = TypeVar("T")

#: Most files that one group may have open.
_MAX_GROUP_SEGMENTS: Final = 100
#: A pass submits one step at a time; a cancelled step may still run beside the next.
_MAX_OPS: Final = 4
#: Longest sleep between checks whether the pass may continue.
_LONGEST_SLEEP_MS: Final = 100
#: How long a log is skipped after a pass that found no space.
_NO_SPACE_BACKOFF_MS: Final = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerLimits:
    """Limits of compaction on the whole node, from the configuration of the broker.

    ``threads`` is the number of passes that run at once. ``backoff_ms`` is the wait of a
    directory's coroutine after it found no log to clean.
    """

    is_enabled: bool = True
    threads: int = 1
    max_bytes_per_second: int = 2**63 - 1
    """Bytes read and written by all passes together."""
    map_bytes: int = 128 * 1024 * 1024
    """Memory for the key maps of all passes together."""
    backoff_ms: int = 15_000
    reserve_bytes: int = 0
    """Bytes that stay free on each disk."""
    step_bytes: int = STEP_BYTES
    """Bytes read per step, at least one batch. Other operations run between two steps."""


class _Work(NamedTuple):
    """One pass: a log and the part of it to clean."""

    handle: LogHandle
    cleanable: Cleanable


def _urgency(work: _Work) -> tuple[bool, float]:
    """Return the sort key of a pass: overdue logs come first, then the dirty ratio decides."""
    dirt = work.cleanable.dirt
    return dirt.is_overdue, dirt.ratio


class LogCleaner:
    """Compacts all logs of the node with ``cleanup.policy=compact``, one log at a time per
    directory. All methods run on the event loop.
    """

    def __init__(
        self,
        *,
        limits: CleanerLimits,
        clock: Clock,
        pauses: CleaningPauses,
        offsets: CleanerOffsets,
        handles_in: Callable[[LogDir], Sequence[LogHandle]],
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._pauses = pauses
        self._offsets = offsets
        self._handles_in = handles_in
        self._slots = asyncio.Semaphore(limits.threads)
        self._bucket = TokenBucket(limits.max_bytes_per_second, clock.now_ms())
        self._executors: dict[LogDir, LogDirExecutor] = {}
        #: Directories whose pass has to end after its current step.
        self._stopping: set[LogDir] = set()
        #: Targets that could not be removed yet, because their directory did not respond.
        self._leftovers: dict[LogDir, list[CleaningFiles]] = {}
        self._uncleanable: dict[TopicPartition, LogHandle] = {}
        self._no_space_until_ms: dict[TopicPartition, int] = {}
        #: Largest dirty ratio of each directory, as of its last examination.
        self._dirtiest: dict[LogDir, float] = {}
        self._read_bytes = 0
        self._written_bytes = 0
        self._log = get_logger(component="log_cleaner")

    # -- figures ----------------------------------------------------------------------------

    def uncleanable_in(self, log_dir: LogDir) -> list[LogHandle]:
        """Return the logs in ``log_dir`` that cannot be cleaned because of damage or an unexpected
        error.
        """
        return [one for one in self._uncleanable.values() if one.log_dir is log_dir]

    @property
    def max_dirty_percent(self) -> float:
        """Largest dirty ratio of any log in percent, as of the last examination of each directory;
        0 before the first.
        """
        return 100 * max(self._dirtiest.values(), default=0.0)

    @property
    def recopy_percent(self) -> float:
        """Bytes written by all passes since the start, in percent of the bytes read; 0 before the
        first pass.
        """
        return 100 * self._written_bytes / self._read_bytes if self._read_bytes else 0.0

    # -- passes -----------------------------------------------------------------------------

    async def run_cleaner(self, log_dir: LogDir) -> None:
        """Clean the logs in ``log_dir`` until cancelled. At the end, stop the cleaner's thread of
        the directory. Returns at once if the cleaner is disabled.
        """
        if not self._limits.is_enabled:
            return
        try:
            while True:
                await asyncio.sleep(self._limits.backoff_ms / 1000)
                while await self.clean_dirtiest(log_dir):
                    pass
        finally:
            # A directory that comes back is a new object.
            self._dirtiest.pop(log_dir, None)
            if (executor := self._executors.pop(log_dir, None)) is not None:
                executor.shutdown(wait=False)

    async def clean_dirtiest(self, log_dir: LogDir) -> bool:
        """Run one pass over the dirtiest log. Return False if no log is due, or cleaning must wait.

        Damage, missing space and unexpected errors of a log are logged, and the log is skipped for
        a while or permanently. Cancelling the call waits until the pass has stopped.
        """
        passing = asyncio.ensure_future(self._run_pass(log_dir))
        try:
            return await asyncio.shield(passing)
        except asyncio.CancelledError:
            self._stopping.add(log_dir)
            await asyncio.wait({passing})
            self._stopping.discard(log_dir)
            if not passing.cancelled() and (bug := passing.exception()) is not None:
                log_dir.jobs.log_failure("log_cleaner", bug)
            raise

    async def _run_pass(self, log_dir: LogDir) -> bool:
        try:
            await self._offsets.load(log_dir)
            await self._discard_leftovers(log_dir)
            work = await self._choose(log_dir)
            if work is None:
                return False
            async with self._slots:
                await self._guarded(work.handle, partial(self._clean_unless_paused, work))
                return True
        except OperatingError as e:
            self._log.info("compaction_put_off", log_dir=log_dir.path, reason=e.message)
            return False

    async def _guarded(self, handle: LogHandle, work: Callable[[], Awaitable[object]]) -> None:
        """Run ``work``.

        After an unexpected error, log it and skip the log of ``handle`` in later passes.
        """
        jobs, tp = handle.log_dir.jobs, handle.topic_partition
        if (bug := await jobs.attempt("log_cleaner", work, partition=str(tp))) is not None:
            self._mark_uncleanable(handle, handle.log_start_offset, repr(bug))

    async def _clean_unless_paused(self, work: _Work) -> None:
        tp, log_dir = work.handle.topic_partition, work.handle.log_dir
        try:
            with self._pauses.cleaning(tp):
                await self._clean(work)
        except CorruptRecordError as e:
            await self._give_up(work.handle, e)
        except NoSpaceToCleanError as e:
            self._no_space_until_ms[tp] = self._clock.now_ms() + _NO_SPACE_BACKOFF_MS
            self._log.warning(
                "no_space_to_compact", partition=str(tp), log_dir=log_dir.path, reason=e.message
            )
        except OperatingError as e:
            if e.code is not ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
                raise
            await self._give_up(work.handle, CorruptRecordError(e.message))

    def truncated(self, tp: TopicPartition) -> None:
        """Clean the log of ``tp`` again if it was skipped because of damage or an error: a
        truncation may have removed the cause.
        """
        self._uncleanable.pop(tp, None)

    async def _choose(self, log_dir: LogDir) -> _Work | None:
        """Return the most urgent log: overdue, or with the largest dirty ratio; None if none is
        due.
        """
        self._dirtiest[log_dir] = 0.0
        if log_dir.state is not LogDirState.ONLINE:
            return None
        due: list[_Work] = []
        for handle in self._handles_in(log_dir):
            if not self._may_be_cleaned(handle):
                continue
            await self._guarded(handle, partial(self._find_dirt, handle, due))
        return max(due, key=_urgency, default=None)

    async def _find_dirt(self, handle: LogHandle, due: list[_Work]) -> None:
        """Examine the log, and append it to ``due`` if a pass over it is due."""
        try:
            cleanable = await self._examine(handle)
        except CorruptRecordError as e:
            await self._give_up(handle, e)
            return
        except UnknownTopicOrPartitionError:
            return  # The replica was removed meanwhile.
        if cleanable is None:
            return
        dirtiest = self._dirtiest[handle.log_dir]
        self._dirtiest[handle.log_dir] = max(dirtiest, cleanable.dirt.ratio)
        if cleanable.dirt.is_due(handle.config.min_cleanable_dirty_ratio):
            due.append(_Work(handle, cleanable))

    def _may_be_cleaned(self, handle: LogHandle) -> bool:
        tp = handle.topic_partition
        bad = self._uncleanable.get(tp)
        if bad is not None and bad is not handle:
            del self._uncleanable[tp]  # A new replica of the same name.
            bad = None
        return (
            bad is None
            and handle.config.cleanup_policy.is_compact
            and self._no_space_until_ms.get(tp, 0) <= self._clock.now_ms()
            and self._pauses.reason(tp) is None
        )

    async def _examine(self, handle: LogHandle) -> Cleanable | None:
        first_dirty = self._offsets.first_dirty(handle)
        limit = handle.last_stable_offset
        closed = [s.base_offset for s in handle.view.segments[1:] if s.base_offset <= limit]
        if not closed or closed[-1] <= first_dirty:
            return None  # No closed segment is dirty, so the thread has nothing to examine.
        if closed[-1] > handle.recovery_point:
            # Records that were read back after a crash may not be durable yet.
            await handle.flush()
        limit = min(limit, handle.recovery_point)
        config, wall_ms = handle.config, self._clock.possible_now().earliest_ms
        return await handle.with_view(
            lambda view: find_cleanable(view, first_dirty, limit, config, wall_ms)
        )

    async def _clean(self, work: _Work) -> None:
        handle, cleanable = work
        config, began_ms = handle.config, self._clock.now_ms()
        read_bytes, written_bytes = self._read_bytes, self._written_bytes
        latest = CleanerMap(
            max_bytes=self._limits.map_bytes // self._limits.threads,
            expected_keys=cleanable.end_offset - cleanable.first_dirty,
        )
        aborted = await handle.aborted_between(
            cleanable.segments[0].base_offset, cleanable.end_offset
        )
        await self._read_keys(work, latest, CleanedTransactions(aborted))
        now = self._clock.possible_now()
        keeps = BatchFilter(
            latest,
            now_ms=now.earliest_ms,
            delete_retention_ms=config.delete_retention_ms + now.doubt_ms,
            kept_batches=await handle.kept_producer_batches(),
            beat=self._executor_of(handle.log_dir).beat,
            aborted=aborted,
        )
        ends = [*(s.base_offset for s in cleanable.segments[1:]), cleanable.end_offset]
        known = [s for s in cleanable.segments if s.base_offset <= latest.latest_offset]
        groups = group_segments(
            known,
            ends[len(known) - 1],
            max_bytes=config.segment_bytes,
            max_span=LARGEST_RELATIVE_OFFSET,
            max_segments=_MAX_GROUP_SEGMENTS,
        )
        before = handle.size_bytes
        for group in groups:
            end_offset = ends[cleanable.segments.index(group[-1])]
            await self._rewrite(handle, group, end_offset, keeps)
        await self._offsets.advance(handle, latest.latest_offset + 1)
        self._log.info(
            "log_compacted",
            partition=str(handle.topic_partition),
            log_dir=handle.log_dir.path,
            keys=latest.entries,
            clean_to=latest.latest_offset + 1,
            freed_bytes=before - handle.size_bytes,
            read_bytes=self._read_bytes - read_bytes,
            written_bytes=self._written_bytes - written_bytes,
            took_ms=self._clock.now_ms() - began_ms,
        )

    async def _read_keys(
        self, work: _Work, latest: CleanerMap, transactions: CleanedTransactions
    ) -> None:
        handle, cleanable = work
        ends = [*(s.base_offset for s in cleanable.segments[1:]), cleanable.end_offset]
        for segment, end_offset in zip(cleanable.segments, ends, strict=True):
            if end_offset <= cleanable.first_dirty:
                continue
            (file,) = await handle.open_sealed([segment])
            reading = KeyReading(
                latest,
                segment,
                file,
                end_offset,
                cleanable.first_dirty,
                self._limits.step_bytes,
                self._executor_of(handle.log_dir).beat,
                transactions,
            )
            try:
                await self._step_through(handle, reading.step)
            finally:
                await self._finish(handle.log_dir, file.close)
            if reading.is_map_full:
                return

    async def _rewrite(
        self, handle: LogHandle, group: list[LogSegment], end_offset: int, keeps: BatchFilter
    ) -> None:
        log_dir = handle.log_dir
        files = await handle.open_group(group)
        is_in_place = False
        try:
            rewriting = GroupRewriting(
                log_dir.vfs,
                files,
                group,
                end_offset,
                keeps,
                self._limits.reserve_bytes,
                self._limits.step_bytes,
            )
            await self._step_through(handle, rewriting.step)
            if rewriting.is_changed:
                await self._in_thread(handle, rewriting.sync)
                self._require_continuation(handle)
                await handle.put_in_place(group, files)
                is_in_place = True
                await handle.name_compacted()
        finally:
            if is_in_place:
                await self._finish(log_dir, files.close_sources)
            else:
                await self._discard(log_dir, files)

    async def _step_through(self, handle: LogHandle, step: Callable[[], Stepped]) -> None:
        while True:
            self._require_continuation(handle)
            stepped = await self._in_thread(handle, step)
            self._read_bytes += stepped.read_bytes
            self._written_bytes += stepped.written_bytes
            self._bucket.spend(stepped.read_bytes + stepped.written_bytes, self._clock.now_ms())
            if stepped.is_done:
                return
            while (wait_ms := self._bucket.wait_ms(self._clock.now_ms())) > 0:
                await asyncio.sleep(min(wait_ms, _LONGEST_SLEEP_MS) / 1000)
                self._require_continuation(handle)

    def _require_continuation(self, handle: LogHandle) -> None:
        """Raise an error if the pass has to end, because of a pause or because its directory's
        cleaner stops.

        :raises OverloadedError: the pass has to end.
        """
        if handle.log_dir in self._stopping:
            raise OverloadedError("the cleaner is stopping")
        self._pauses.require_no_pause(handle.topic_partition)

    async def _in_thread(self, handle: LogHandle, op: Callable[[], T]) -> T:
        """Run ``op`` in the cleaner's thread of the log's directory.

        The directory judges the errors of ``op``.
        """
        log_dir = handle.log_dir
        return await run_copy(
            log_dir,
            log_dir,
            self._executor_of(log_dir),
            lambda by_kernel: op(),
            read_again=lambda: None,
            settle=lambda done: done,
            replica=handle.topic_partition,
        )

    def _executor_of(self, log_dir: LogDir) -> LogDirExecutor:
        executor = self._executors.get(log_dir)
        if executor is not None and not executor.is_idle:
            # The thread hung when the directory went offline, and the directory was reattached.
            executor.abandon(lambda: OverloadedError("the cleaner has another thread now"))
            executor = None
        if executor is None:
            name = f"log-cleaner:{log_dir.path}"
            executor = log_dir.make_executor(name=name, clock=self._clock, max_ops=_MAX_OPS)
            self._executors[log_dir] = executor
        return executor

    # -- when it goes wrong -----------------------------------------------------------------

    async def _give_up(self, handle: LogHandle, error: CorruptRecordError) -> None:
        """Skip an unreadable log from now on, and let a read of ``error.offset`` record the damage
        in the log.
        """
        offset = handle.log_start_offset if error.offset is None else error.offset
        self._mark_uncleanable(handle, offset, error.message)
        try:
            await handle.read_checked(offset, 1, handle.log_end_offset, True)
        except OperatingError as e:
            partition = str(handle.topic_partition)
            self._log.info("uncleanable_log_read", partition=partition, reason=e.message)

    def _mark_uncleanable(self, handle: LogHandle, offset: int, reason: str) -> None:
        self._uncleanable[handle.topic_partition] = handle
        self._log.error(
            "log_uncleanable",
            partition=str(handle.topic_partition),
            log_dir=handle.log_dir.path,
            offset=offset,
            reason=reason,
        )

    async def _discard(self, log_dir: LogDir, files: CleaningFiles) -> None:
        self._leftovers.setdefault(log_dir, []).append(files)
        try:
            await self._discard_leftovers(log_dir)
        except OperatingError as e:
            # The target stays on the list. The caller reports why the pass ended.
            self._log.info("compaction_leftover_kept", log_dir=log_dir.path, reason=e.message)

    async def _discard_leftovers(self, log_dir: LogDir) -> None:
        leftovers = self._leftovers.get(log_dir, [])
        while leftovers and log_dir.is_online:
            discard = partial(discard_target, log_dir.vfs, leftovers[-1])
            await log_dir.run_operation(OpKind.DELETE, discard)
            leftovers.pop()
        self._leftovers.pop(log_dir, None)

    async def _finish(self, log_dir: LogDir, close: Callable[[], None]) -> None:
        """Close files that a pass has read. Files stay open if the directory does not respond."""
        try:
            await log_dir.run_operation(OpKind.DELETE, close)
        except OperatingError as e:
            self._log.info("compaction_files_kept_open", log_dir=log_dir.path, reason=e.message)

    def close(self) -> None:
        """Tell the cleaner's threads to end; do not wait for them. No pass may be running."""
        for executor in self._executors.values():
            executor.shutdown(wait=False)
        self._executors = {}
