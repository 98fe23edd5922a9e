"""LOOP. ``LogHandle``: access of the event loop to one replica's log.

* The log itself belongs to its directory's thread. The event loop knows the last :class:`LogView`,
  which published_log.py publishes.
* The event loop first tries to read from the page cache. It returns only trusted bytes
  (trusted_bytes.py). Other reads run in the directory's thread, which checks the bytes.
* Files that a view may still show are closed only after a newer view was published, and while no
  flush is running. The directory is renamed only between flushes.
* A replica that was replaced by its copy in another directory can be read until its files are
  purged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from kraftjbod.core import buggify
from kraftjbod.core.errors import CorruptRecordError, LogDirImpairedError, OverloadedError
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.control_records import TransactionMarker
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.storage.log.leader_epochs import UNDEFINED_EPOCH, end_offset_for
from kraftjbod.storage.log.log_replay import LogReplay, ReplayNeededError
from kraftjbod.storage.log.log_values import (
    AppendResult,
    CarriedState,
    FlushPlan,
    FoundTimestamp,
    carry_out,
)
from kraftjbod.storage.log.log_view import LogView, Truncation, damage_error, read_view
from kraftjbod.storage.log.producer_state import KeptBatches, KnownProducer
from kraftjbod.storage.log.published_log import PublishedLog
from kraftjbod.storage.log.time_search import LogTimeSearch, MaxTimestampSearch
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log.unsettled_changes import UnsettledChanges
from kraftjbod.storage.log.verification_guards import ORDINARY_TERMS, ProducerTerms
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.segments.batch_walk import ReadAt
from kraftjbod.storage.segments.index_rebuild import IndexRebuild
from kraftjbod.storage.segments.segment import LogSegment, SegmentUnreadError
from kraftjbod.storage.segments.segment_cache import SegmentCache
from kraftjbod.storage.segments.segment_limits import EXPENDABLE_PER_STEP
from kraftjbod.storage.segments.segment_scrub import SegmentScrub
from kraftjbod.storage.segments.segment_swap import CleaningFiles
from kraftjbod.storage.segments.transaction_index import AbortedTransaction
from kraftjbod.storage.vfs import REMOVAL_BYTES, VfsFile, shrink

T = TypeVar("T")
#: Searches for a largest timestamp that a record has. The second one is rare.
_MAX_TIMESTAMP_SEARCHES: Final = 8
#: Not later than the timestamp of any record.
_EARLIEST: Final = -(2**63)
#: An operation that may raise SegmentUnreadError; it gets the segment that was surveyed for it.
ByIndex = Callable[[UnifiedLog, LogSegment | None], T]


class ReadResult(NamedTuple):
    """Complete batches, possibly none, and the bounds of the log.

    The first batch may start before the requested offset.
    """

    records: memoryview
    log_start_offset: int
    log_end_offset: int


class LogHost(Protocol):
    """Requests of a ``LogHandle`` to the log manager: flushes, delayed removals, checkpoints and
    the cache of segments.
    """

    def request_flush(self, handle: LogHandle) -> None:
        """Request a flush of the log soon, because a segment was rolled."""
        ...

    def retire(self, handle: LogHandle, segments: Sequence[LogSegment]) -> None:
        """Purge segments that left the log, after the topic's ``file.delete.delay.ms``."""
        ...

    async def lower_claims(self, handle: LogHandle) -> None:
        """Lower the checkpoints, so that no recovery point or log start in them is above the
        handle's. Returns when that is durable.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is full or stalled, or its queue is full.
        """
        ...

    def segment_cache(self, log_dir: LogDir) -> SegmentCache[LogSegment]:
        """Return the cache that limits open files and indexes in memory for ``log_dir``."""
        ...

    async def keep_log_start(self, handle: LogHandle) -> None:
        """Make the log start of the handle durable, as :meth:`LogHandle.keep_log_start` does."""
        ...


class LogHandle:
    """Event loop's interface to the log of one current replica: reads, appends, truncations and
    file operations. All methods run on the event loop.

    Methods that wait for the directory's thread raise KafkaStorageError if the directory is or goes
    offline, OverloadedError if it is full or stalled, or its queue is full,
    NotLeaderOrFollowerError if the log was replaced by its copy, and UnknownTopicOrPartitionError
    if the log was removed.
    """

    def __init__(
        self,
        *,
        log: UnifiedLog,
        log_dir: LogDir,
        host: LogHost,
        clock: Clock,
        checkpointed_high_watermark: int = 0,
        checkpointed_recovery_point: int = 0,
        checkpointed_log_start: int = 0,
    ) -> None:
        self._published = PublishedLog(
            log=log,
            log_dir=log_dir,
            on_retired=lambda segments: host.retire(self, segments),
            on_rolled=lambda: host.request_flush(self),
        )
        self._host = host
        self._clock = clock
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id: TopicId = log.topic_id
        self.log_dir = log_dir
        #: From the checkpoint of the last stop, limited to the log.
        self.checkpointed_high_watermark = min(
            max(checkpointed_high_watermark, self.log_start_offset), self.log_end_offset
        )
        self._high_watermark = self.checkpointed_high_watermark
        log.high_watermark, log.beat = self._high_watermark, log_dir.beat
        log.segments.join(host.segment_cache(log_dir))
        #: The largest value that the checkpoint file may hold for this log; set by the host.
        self.checkpointed_recovery_point = checkpointed_recovery_point
        #: The lowest value that the checkpoint file holds for this log; set by the host.
        self.checkpointed_log_start = checkpointed_log_start
        self.last_flush_ms = clock.now_ms()
        #: From ``config``; an attribute, because it is read for every log each second.
        self.flush_ms = log.config.flush_ms
        self.unsettled = UnsettledChanges()
        #: The copy is about to replace this replica, so retention must not change the log.
        self._is_held_still = False
        #: Held while an index is rebuilt.
        self._rebuilding = asyncio.Lock()
        #: The rebuild that is not complete yet.
        self._rebuild: IndexRebuild | LogReplay | None = None
        #: Number of surveys, and the last segment surveyed.
        self._surveys = 0
        self._surveyed: LogSegment | None = None
        #: Held while other threads use files, and while files are closed.
        self._files = asyncio.Lock()

    def __repr__(self) -> str:
        span = f"[{self.log_start_offset}, {self.log_end_offset})"
        return f"<LogHandle {self.topic_partition} {span} in {self.log_dir.path}>"

    @property
    def log_start_offset(self) -> int:
        return self._published.view.log_start_offset

    @property
    def durable_log_start(self) -> int:
        """Lower bound of the log start after a loss of the process and of the disk's cache."""
        return min(self.log_start_offset, self.checkpointed_log_start)

    @property
    def claimable_log_start(self) -> int:
        """Largest log start offset that a checkpoint may contain now, in view of pending
        truncations.
        """
        return self.unsettled.certain_start(self.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        return self._published.view.log_end_offset

    @property
    def high_watermark(self) -> int:
        """High watermark, set by the partition's owner. Retention stays below it."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        # An int is replaced atomically, so the thread sees the old or the new one.
        self._published.log.high_watermark = offset

    @property
    def last_stable_offset(self) -> int:
        """Last stable offset (LSO): ``read_committed`` consumers read below it (KIP-98)."""
        return self._published.view.last_stable_offset(self._high_watermark)

    @property
    def latest_epoch(self) -> int:
        """Leader epoch of the last batch; -1 if the log has no epochs."""
        epochs = self._published.view.epochs
        return epochs[-1].epoch if epochs else UNDEFINED_EPOCH

    @property
    def size_bytes(self) -> int:
        return self._published.view.size_bytes

    @property
    def first_segment_offset(self) -> int:
        return self._published.view.segments[0].base_offset

    @property
    def recovery_point(self) -> int:
        """Offset below which everything is durable, and stays so after pending truncations."""
        return self.unsettled.certain_end(self._published.view.recovery_point)

    @property
    def damaged_from(self) -> int | None:
        """First offset that is known to be damaged; None without damage."""
        damages = self._published.view.damages
        return damages[0].offset if damages else None

    @property
    def view(self) -> LogView:
        """The view that was published last."""
        return self._published.view

    @property
    def directory(self) -> str:
        return self._published.log.directory

    @property
    def config(self) -> TopicConfig:
        return self._published.log.config

    def set_config(self, config: TopicConfig) -> None:
        # A reference is replaced atomically, so the thread sees the old or the new one.
        self._published.log.config = config
        self.flush_ms = config.flush_ms

    # -- append -----------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer,
        headers: Sequence[BatchHeader],
        leader_epoch: int,
        terms: ProducerTerms = ORDINARY_TERMS,
    ) -> Completion[AppendResult]:
        """Append validated batches. Offsets are assigned when the write happens.

        :param terms: the checks of sequence numbers and transactions that apply.

        The completion is answered when the batches are written; they need not be durable. It can
        also get an OperatingError of :meth:`UnifiedLog.append_as_leader`, a KafkaStorageError, or a
        LogDirImpairedError if the disk is full or stalls.

        :raises KafkaStorageError: at once, if the directory is offline.
        :raises OverloadedError: at once, if the directory is full or stalled, or its queue is full.
        :raises NotLeaderOrFollowerError: at once, if the log was replaced by its copy.
        :raises UnknownTopicOrPartitionError: at once, if the replica was removed.
        """
        now_ms = self._clock.wall_ms()
        return self._published.submit_operation(
            OpKind.APPEND,
            lambda log: log.append_as_leader(records, headers, leader_epoch, now_ms, terms),
            size_bytes=len(records),
        )

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: TransactionMarker,
        *,
        transaction_version: int,
        leader_epoch: int,
    ) -> Completion[AppendResult]:
        """Append the transaction coordinator's marker for the producer, even if no transaction is
        open here.

        :param transaction_version: as in :meth:`UnifiedLog.append_marker`.
        :raises OperatingError: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED, in the
            completion. Other errors are those of :meth:`append_as_leader`.
        """
        now_ms = self._clock.wall_ms()
        return self._published.submit_operation(
            OpKind.APPEND,
            lambda log: log.append_marker(
                producer_id,
                producer_epoch,
                marker,
                transaction_version=transaction_version,
                leader_epoch=leader_epoch,
                now_ms=now_ms,
            ),
        )

    def append_as_follower(
        self, records: Buffer, *, may_have_gaps: bool = False
    ) -> Completion[AppendResult]:
        """Append batches with the offsets that the leader assigned. An incomplete last batch of
        ``records`` is omitted.

        The completion is answered when the batches are written; they need not be durable. It can
        also get a CorruptRecordError (wrong CRC, or offsets that do not continue the log), a
        KafkaStorageError or a LogDirImpairedError. Errors at once are those of
        :meth:`append_as_leader`.

        :param may_have_gaps: whether the leader reports that compaction removed offsets.
        """
        now_ms = self._clock.wall_ms()
        append = self._published.submit_operation(
            OpKind.APPEND,
            lambda log: log.append_as_follower(records, now_ms, may_have_gaps=may_have_gaps),
            size_bytes=len(records),
        )
        self.unsettled.begin_append()
        return append.after(self.unsettled.end_append)

    # -- read -------------------------------------------------------------------------------

    def read_cached(
        self, start_offset: int, max_bytes: int, max_offset: int, min_one: bool
    ) -> ReadResult | None:
        """Read complete batches below ``max_offset`` from memory, starting with the one of
        ``start_offset``.

        Returns at most ``max_bytes`` of one segment; ``min_one`` allows a larger first batch. The
        bytes were checked before, or were written by this process. Returns None if the disk or an
        index must be read, or while a truncation is pending: call :meth:`read_checked` then.

        :raises OffsetOutOfRangeError: the log does not contain ``start_offset``.
        :raises CorruptRecordError: ``start_offset`` is in known damage.
        :raises KafkaStorageError: the directory is or goes offline.
        :raises LogDirImpairedError: the directory is stalled.
        :raises NotLeaderOrFollowerError: the log was replaced by its copy, and is closed.
        :raises UnknownTopicOrPartitionError: the replica was removed.
        """
        if self.unsettled.has_truncations:
            return None
        self._published.require_open()
        if buggify.is_on and buggify.fires("storage.not_in_memory"):
            return None
        try:
            records = read_view(
                self.view,
                self._cached_reader,
                start_offset=start_offset,
                max_bytes=max_bytes,
                max_offset=max_offset,
                min_one=min_one,
            )
        except CorruptRecordError as e:
            if e.offset is not None:
                raise
            return None  # The thread finds out whether the index or the log is wrong.
        return None if records is None else self._result(records)

    async def read_checked(
        self, start_offset: int, max_bytes: int, max_offset: int, min_one: bool
    ) -> ReadResult:
        """Read as :meth:`read_cached`, in the directory's thread, and check every batch and CRC.

        Missing or wrong indexes are rebuilt first. Errors are those of :meth:`known_producers`,
        and:

        :raises OffsetOutOfRangeError: the log does not contain ``start_offset``.
        :raises CorruptRecordError: the batch of ``start_offset`` is damaged.
        """
        records = await self._ask_by_index(
            lambda log, surveyed: log.read(start_offset, max_bytes, max_offset, min_one, surveyed)
        )
        damage = self.view.damage_from(start_offset)
        if not records and damage is not None and damage.offset <= start_offset:
            raise damage_error(damage)
        return self._result(records)

    async def _ask_by_index(self, op: ByIndex[T]) -> T:
        """Run ``op`` in the directory's thread. After a required index rebuild, run it again."""
        surveyed: LogSegment | None = None
        while True:
            try:
                asked = self._published.ask(OpKind.READ, _with_survey(op, surveyed))
                return await asyncio.shield(asked)
            except SegmentUnreadError as unread:
                surveyed = await self._read_segment(unread)

    async def _read_segment(self, unread: SegmentUnreadError) -> LogSegment | None:
        """Rebuild indexes in steps. Return the segment if it was surveyed, else None.

        Callers wait for one another. After a caller was cancelled, the next one continues its
        rebuild.
        """
        surveys = self._surveys
        async with self._rebuilding:
            segment, is_survey = unread.segment, unread.survey_end is not None
            if is_survey and self._surveys > surveys and self._surveyed is segment:
                return segment
            if unread.is_settled:
                return None
            rebuild = self._rebuild
            if rebuild is None or not rebuild.is_for(unread):
                rebuild = self._rebuild = _rebuild_for(unread)
            made = rebuild
            while not await asyncio.shield(
                self._published.ask(OpKind.READ, lambda log: log.rebuild_step(made))
            ):
                pass
            self._rebuild = None
            is_written = self.log_dir.state is LogDirState.ONLINE
            is_taken = await asyncio.shield(
                self._published.ask(
                    OpKind.INDEX, lambda log: log.take_rebuilt(made, is_written=is_written)
                )
            )
            if not is_taken or not is_survey:
                return None
            self._surveys, self._surveyed = self._surveys + 1, segment
            return segment

    def aborted_cached(self, first_offset: int, end_offset: int) -> list[AbortedTransaction] | None:
        """Return the aborted transactions that overlap ``[first_offset, end_offset)``, below the
        LSO.

        Returns None if the disk has to be read: call :meth:`aborted_between` then.
        """
        return self.view.aborted_between(first_offset, end_offset)

    async def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the same as :meth:`aborted_cached`, in the directory's thread and from the disk if
        necessary. Transaction indexes that are damaged are rebuilt first.

        Raises the errors of :meth:`known_producers`.
        """
        return await self._ask_by_index(
            lambda log, _: log.aborted_between(first_offset, end_offset)
        )

    async def known_producers(self) -> list[KnownProducer]:
        """Return the state of all remembered producers of this log.

        :raises KafkaStorageError: the directory is offline or goes offline meanwhile.
        :raises LogDirImpairedError: the directory is stalled.
        :raises OverloadedError: the directory's queue is full.
        :raises NotLeaderOrFollowerError: the log was replaced by its copy, and is closed.
        :raises UnknownTopicOrPartitionError: the replica was removed.
        """
        return await asyncio.shield(
            self._published.ask(OpKind.READ, lambda log: log.known_producers())
        )

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch of the log that is not above ``epoch``, and its end offset,
        which is exclusive. See :func:`end_offset_for` for the cases without such an epoch.
        """
        return end_offset_for(self.view.epochs, epoch, self.view.log_end_offset)

    async def offset_for_timestamp(self, timestamp: int) -> FoundTimestamp | None:
        """Return the first record not older than ``timestamp`` (wall ms), up to the log end; None
        if there is none.

        For a batch that cannot be decompressed within limits, the answer is its first offset.
        Errors are those of :meth:`known_producers`, and:

        :raises OverloadedError: too many searches are waiting.
        :raises CorruptRecordError: a batch cannot be read, though a survey found no damage.
        """
        return await self._search(LogTimeSearch(timestamp))

    async def _search(self, search: LogTimeSearch) -> FoundTimestamp | None:
        while not search.is_over:
            await self._ask_by_index(lambda log, surveyed: log.search(search, surveyed))
            if unopened_bytes := search.unopened_bytes:
                await self.log_dir.compute(search.open, size_bytes=unopened_bytes)
        return search.answer

    async def offset_of_max_timestamp(self) -> FoundTimestamp | None:
        """Return the first record with the largest timestamp of the log; None if the log is empty.

        Limits and errors are those of :meth:`offset_for_timestamp`. The answer is the first record
        of the log if ``_MAX_TIMESTAMP_SEARCHES`` searches found timestamps that no record has:
        records are deleted all the time, or a client wrote batches with wrong timestamps.
        """
        doubtful_segments, unmatched_batches = set[int](), set[int]()
        for _ in range(_MAX_TIMESTAMP_SEARCHES):
            largest = await self._largest_timestamp(
                MaxTimestampSearch(doubtful_segments, unmatched_batches)
            )
            if largest.largest is None:
                break
            search = LogTimeSearch(largest.largest, largest.base_offset)
            if (found := await self._search(search)) is not None:
                return found
            # The record was deleted meanwhile, or is hidden in a batch in which the log starts, or
            # compaction removed it and left the batch.
            doubtful_segments.add(largest.base_offset)
            unmatched_batches |= search.unmatched
        return await self._search(LogTimeSearch(_EARLIEST))

    async def _largest_timestamp(self, search: MaxTimestampSearch) -> MaxTimestampSearch:
        while not search.is_over:
            await self._ask_by_index(lambda log, surveyed: log.search(search, surveyed))
        return search

    def _cached_reader(self, segment: LogSegment) -> ReadAt | None:
        file = segment.file
        if file is None:
            return None
        log_dir, replica, trusted = self.log_dir, self.topic_partition, segment.trusted

        def read_trusted(position: int, size: int) -> memoryview | None:
            size = min(size, trusted.end_from(position) - position)
            if size == 0:
                return None
            found = log_dir.read_cached(file, position, size, replica=replica)
            if found is None or len(found) < size:
                # The kernel now reads these bytes, and more, from the disk, without a check.
                trusted.doubt(position, size, segment.size_bytes)
                return None
            # Another thread may have read ahead since the first check.
            return found if trusted.end_from(position) >= position + size else None

        return read_trusted

    def _result(self, records: memoryview) -> ReadResult:
        return ReadResult(records, self.view.log_start_offset, self.view.log_end_offset)

    # -- change -----------------------------------------------------------------------------

    async def truncate_to(self, offset: int) -> None:
        """Remove every batch that ends at or after ``offset``.

        The checkpoints of the recovery point and of the log start are lowered first. At or above
        the log end, nothing changes. At or below the base of the first segment, the log is emptied
        and continues at ``offset``. A log start above the new end is lowered to that end.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is STALLED or has no space, or its queue is full.
        """
        if offset < self.log_end_offset:
            await self._truncate(offset, lambda log, seen: log.truncate_to(offset, seen))

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all batches and continue at ``offset``, after lowering the checkpoints.

        Errors are those of :meth:`truncate_to`.
        """
        await self._truncate(offset, lambda log, _: log.truncate_fully_and_start_at(offset))

    async def _truncate(self, offset: int, op: ByIndex[None]) -> None:
        # First lower the claims of the checkpoints: the recovery point must not cover batches that
        # are appended after the truncation and are not durable. The log start must not be above
        # them.
        self._published.require_open()
        # The log is truncated at the start of a batch, which is not below the segment's base.
        segment = self.view.segments[self.view.segment_index(offset)]
        truncation = self.unsettled.begin_truncation(min(offset, segment.base_offset), offset)
        done: asyncio.Future[None] | None = None
        surveyed: LogSegment | None = None
        try:
            await self._host.lower_claims(self)
            while True:
                done = self._published.submit(OpKind.TRUNCATE, _with_survey(op, surveyed))
                try:
                    return await asyncio.shield(done)
                except SegmentUnreadError as unread:
                    surveyed = await self._read_segment(unread)
        finally:
            # The caller may be cancelled, but the truncation stays pending until the operation ends
            # in the thread. Meanwhile :meth:`read_cached` returns None.
            if done is None or done.done():
                self.unsettled.end_truncation(truncation)
            else:
                done.add_done_callback(lambda _: self.unsettled.end_truncation(truncation))

    async def flush(self) -> None:
        """Make everything that was appended so far durable, and advance the recovery point.

        A truncation meanwhile leaves the recovery point unchanged.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is full or stalled, or its queue is full.
        """
        async with self._files:
            plan = await self._published.run_operation(
                OpKind.CHECKPOINT, lambda log: log.flush_plan()
            )
            log_dir, replica = self.log_dir, self.topic_partition
            await log_dir.run_operation(
                OpKind.FLUSH,
                lambda: carry_out(log_dir.vfs, [plan], log_dir.flush_beat),
                replica=replica,
            )
            await self._published.run_operation(OpKind.CHECKPOINT, lambda log: log.flushed(plan))
            self.last_flush_ms = self._clock.now_ms()

    async def apply_retention(self) -> int:
        """Remove segments that exceed the retention limits or end below the log start. Return how
        many were removed; 0 during :meth:`retention_paused`.

        Segments are renamed first, and removing all of them creates a new one. If a full disk has
        no space for that, not even after the reserve was released, files are unlinked instead.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is stalled or still has no space, or its queue is
            full. Some segments may be removed already.
        """
        was_saturated = self.log_dir.state is LogDirState.SATURATED
        try:
            return await self._retain(without_free_space=False)
        except LogDirImpairedError:
            if not was_saturated or self.log_dir.state is not LogDirState.SATURATED:
                raise
        return await self._retain(without_free_space=True)

    async def _retain(self, *, without_free_space: bool) -> int:
        """Remove expired segments, a few per operation. Return how many were removed.

        Other operations of the directory run in between.
        """
        gone = 0
        while not self._is_held_still:
            step = await self._retain_step(without_free_space=without_free_space)
            gone += step
            if step < EXPENDABLE_PER_STEP:
                break
        return gone

    async def _retain_step(self, *, without_free_space: bool) -> int:
        now_ms = self._clock.possible_now().earliest_ms
        high_watermark = self.high_watermark
        while True:
            try:
                return await self._published.run_operation(
                    OpKind.RETENTION,
                    lambda log: log.delete_old_segments(
                        now_ms, high_watermark, without_free_space=without_free_space
                    ),
                )
            except SegmentUnreadError as unread:
                await self._read_segment(unread)
            except LogDirImpairedError:
                # Segments may have left the log before the error. Publishing the view lets them be
                # purged.
                await self.refresh()
                raise

    async def start_at(self, offset: int) -> None:
        """Raise the log start to ``offset``, at most the high watermark (KIP-107). No effect if it
        is not lower.

        Needs no free space. Retention removes the files later. A crash may undo the change until
        :meth:`keep_log_start` has succeeded.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: a copy in another directory is about to replace this replica, the
            directory is stalled, or its queue is full: try again.
        """
        assert offset <= self.high_watermark, (offset, self.high_watermark)
        if self._is_held_still:
            raise OverloadedError(f"{self.topic_partition} is moving just now, try again")
        await self._published.run_operation(OpKind.RETENTION, lambda log: log.start_at(offset))

    async def keep_log_start(self) -> None:
        """Make the log start durable. Afterwards :attr:`durable_log_start` is not lower.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is full or stalled, or its queue is full.
        """
        await self._host.keep_log_start(self)

    async def take_scrubbed(self, scrub: SegmentScrub) -> bool:
        """Record the findings of a scrub, and rewrite wrong index files of an undamaged segment.
        Return False if the segment was replaced or truncated meanwhile.
        """
        try:
            return await self._published.run_operation(
                OpKind.INDEX, lambda log: log.take_scrubbed(scrub)
            )
        except ReplayNeededError as unread:
            await self._read_segment(unread)
            return True

    # -- for the cleaner --------------------------------------------------------------------

    async def with_view(self, op: Callable[[LogView], T]) -> T:
        """Run ``op`` in the directory's thread with the present view, and return its result.

        If ``op`` raises SegmentUnreadError, the indexes are rebuilt and ``op`` runs again.
        """
        return await self._ask_by_index(lambda log, _: op(log.view()))

    async def kept_producer_batches(self) -> KeptBatches:
        """Return the batches that compaction has to keep, so that producers are known after a
        crash.
        """
        return await self._published.run_operation(
            OpKind.READ, lambda log: log.kept_producer_batches
        )

    async def open_beside(self, segment: LogSegment) -> VfsFile | None:
        """Return another open file of ``segment`` for a reader in another thread, which closes it;
        None if the segment left the log.
        """
        return await self._published.run_operation(
            OpKind.READ, lambda log: log.segments.open_beside(segment)
        )

    async def open_sealed(self, segments: Sequence[LogSegment]) -> tuple[VfsFile, ...]:
        """Open the files of adjacent closed segments once more, for a cleaner, which closes them.

        :raises OverloadedError: also if some of them left the log.
        """
        return await self._published.run_operation(
            OpKind.READ, lambda log: log.segments.open_sealed(segments)
        )

    async def open_group(self, segments: Sequence[LogSegment]) -> CleaningFiles:
        """Open the files of adjacent closed segments and the new, empty file into which they are
        compacted. The log counts as possibly having gaps from now on.

        :raises OverloadedError: also if some of the segments left the log.
        """
        return await self._published.run_operation(
            OpKind.CREATE,
            lambda log: log.segments.open_group(segments, log.config.index_interval_bytes),
        )

    async def put_in_place(self, segments: Sequence[LogSegment], files: CleaningFiles) -> None:
        """Replace ``segments`` by the target of ``files``, which must be complete and synced.
        :meth:`name_compacted` has to follow.

        :raises OverloadedError: also if the segments left the log or are damaged, or the log was
            truncated since :meth:`open_group`. The caller still owns the files then.
        """
        await self._published.run_operation(
            OpKind.RENAME, lambda log: log.put_in_place(segments, files)
        )

    async def name_compacted(self) -> None:
        """Give the files of compacted segments their final names, after :meth:`put_in_place`. No
        effect without such files. May be repeated after a failure.
        """
        await self._published.run_operation(
            OpKind.RENAME, lambda log: log.segments.name_compacted()
        )

    async def roll(self) -> None:
        """Close the active segment and start a new one at the log end. Its file is created in the
        directory's thread.
        """
        await self._published.run_operation(OpKind.APPEND, lambda log: log.roll())

    # -- for moves to another directory -----------------------------------------------------

    @property
    def has_truncation(self) -> bool:
        """Whether the log was truncated since the last :meth:`take_truncation`."""
        return self._published.has_truncation

    def take_truncation(self) -> Truncation | None:
        """Return the lowest truncation since the last call; None without one.

        :attr:`view` includes it.
        """
        return self._published.take_truncation()

    async def carried_state(self) -> CarriedState:
        """Return the state that a copy needs besides the segments.

        The state includes all earlier operations on the log.
        """
        return await self._ask_by_index(lambda log, _: log.carried_state())

    async def refresh(self) -> None:
        """Wait until all operations queued before have ended, so that :attr:`view` includes their
        changes.
        """
        await self._published.run_operation(OpKind.READ, lambda log: None)

    @contextmanager
    def retention_paused(self) -> Iterator[None]:
        """Context in which retention does not change the log and :meth:`start_at` is refused.

        The caller prevents other changes.
        """
        self._is_held_still = True
        try:
            yield
        finally:
            self._is_held_still = False

    async def give_way(self, directory: str) -> None:
        """Rename the replica's directory to ``directory``, because a copy replaces this replica.
        Reads are still possible; changes raise NotLeaderOrFollowerError.

        After a failure call :meth:`come_back`.
        """
        async with self._files:
            renamed = self._rename(directory)
            self._published.is_replaced = True
            await asyncio.shield(renamed)

    async def come_back(self, directory: str) -> None:
        """Rename the replica's directory to ``directory`` after a failed swap, and accept appends
        again.

        Appends are accepted even if the rename fails. The call works in an impaired directory, too.
        """
        self._published.is_replaced = False
        async with self._files:
            await asyncio.shield(self._rename(directory, OpKind.UNDO))

    # -- for the LogManager -----------------------------------------------------------------

    async def move_aside(self, directory: str) -> None:
        """Rename the replica's directory to ``directory``. The handle accepts no more requests.

        :raises OverloadedError: the directory is stalled or full, or its queue is full; the replica
            is unchanged.
        :raises KafkaStorageError: the directory is or goes offline.
        """
        # A running flush would use the old name of the directory.
        async with self._files:
            renamed = self._rename(directory)
            self._published.is_closed = True
            try:
                await asyncio.shield(renamed)
            except OverloadedError:
                # The rename failed, so the replica is unchanged.
                self._published.is_closed = False
                raise

    def _rename(self, directory: str, kind: OpKind = OpKind.RENAME) -> asyncio.Future[None]:
        return self._published.submit(kind, lambda log: log.segments.move_to(directory))

    async def purge(self, segments: Sequence[LogSegment]) -> None:
        """Close and unlink ``segments`` that were retired. A large one takes several operations,
        which truncate it first. After an error the call may be repeated.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is stalled, or its queue is full.
        """
        log_dir, replica = self.log_dir, self.topic_partition
        for segment in segments:
            async with self._files:
                step = partial(shrink, log_dir.vfs, segment.retired_path)
                is_large = segment.size_bytes > REMOVAL_BYTES
                while is_large and await log_dir.run_operation(
                    OpKind.DELETE, step, replica=replica
                ):
                    pass
                await log_dir.run_operation(OpKind.DELETE, segment.purge, replica=replica)

    async def close_idle(self, segments: Sequence[LogSegment]) -> None:
        """Close the files of ``segments``, which a later access opens again. Files with bytes that
        are not durable stay open.

        The directory's thread first detaches the files. Afterwards the event loop cannot be reading
        from a detached file, because each of its reads ends within one callback. No flush uses a
        file while ``_files`` is held.
        """
        async with self._files:
            await self._published.run_operation(OpKind.READ, lambda log: log.detach_files(segments))
            close = self._published.log.segments.close_detached
            await self.log_dir.run_operation(OpKind.READ, close, replica=self.topic_partition)

    async def close_files(self) -> None:
        """Close the files of a replica whose directory was renamed by :meth:`move_aside`. No
        operation is accepted afterwards.
        """
        self._published.is_closed = True
        async with self._files:
            close = self._published.log.segments.close
            await self.log_dir.run_operation(OpKind.DELETE, close, replica=self.topic_partition)

    async def close_plan(self) -> FlushPlan:
        """Write the files that the next load needs. Return the plan with the files that have to be
        synced.

        The handle accepts only :meth:`close` afterwards. Call :meth:`close` also after an error.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises LogDirImpairedError: the disk is full, also at the second attempt.
        """
        # A running flush or purge uses files.
        async with self._files:
            planned = self._published.submit(OpKind.CLOSE, lambda log: log.close_plan())
            self._published.is_closed = True
            try:
                return await asyncio.shield(planned)
            except LogDirImpairedError:
                # The operation that found no space released the reserve for this attempt.
                again = self._published.submit_last(lambda log: log.close_plan(is_repeated=True))
                return await asyncio.shield(again)

    async def close(self, done: FlushPlan | None) -> None:
        """Close all files of the log.

        :param done: the plan of :meth:`close_plan` if it was carried out, so that the next load
            needs no scan; else None.
        """
        await self._published.submit_last(lambda log: log.close(done))


def _rebuild_for(unread: SegmentUnreadError) -> IndexRebuild | LogReplay:
    if isinstance(unread, ReplayNeededError):
        return unread.replay
    return IndexRebuild(unread)


def _with_survey(op: ByIndex[T], surveyed: LogSegment | None) -> Callable[[UnifiedLog], T]:
    return lambda log: op(log, surveyed)
