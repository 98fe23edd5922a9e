"""LOOP. ``LogHandle``: access of the event loop to one replica's log.

* The log itself belongs to its dir's thread. The event loop knows the last :class:`LogView`, which
  published_log.py publishes.
* The event loop first tries to read from the page cache; other reads run in the dir's thread. The
  event loop returns only trusted bytes (trusted_bytes.py); the thread checks the bytes it reads.
* Files that a view may still show are closed only after a newer view was published and no
  flush is under way; the directory is renamed only between flushes.
* A replica whose copy in another dir took its place can be read until its files are purged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

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
from kraftjbod.storage.dir_names import DELETED_SUFFIX
from kraftjbod.storage.log.leader_epochs import UNDEFINED_EPOCH, end_offset_for
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
from kraftjbod.storage.log_dirs.stepwise_removal import STEP_BYTES, shrink
from kraftjbod.storage.segments.batch_walk import ReadAt
from kraftjbod.storage.segments.index_rebuild import IndexRebuild
from kraftjbod.storage.segments.segment import LogSegment, SegmentUnreadError
from kraftjbod.storage.segments.segment_cache import SegmentCache
from kraftjbod.storage.segments.segment_limits import EXPENDABLE_PER_STEP
from kraftjbod.storage.segments.segment_scrub import SegmentScrub
from kraftjbod.storage.segments.segment_swap import CleaningFiles
from kraftjbod.storage.segments.transaction_index import AbortedTransaction
from kraftjbod.storage.vfs import VfsFile

T = TypeVar("T")
#: An operation that may raise SegmentUnreadError; it gets the segment that was surveyed for it.
ByIndex = Callable[[UnifiedLog, LogSegment | None], T]


class ReadResult(NamedTuple):
    """``records`` are whole batches, maybe none; the first may begin before what was asked for."""

    records: memoryview
    log_start_offset: int
    log_end_offset: int


class LogHost(Protocol):
    """What a handle asks of the ``LogManager`` that it belongs to."""

    def request_flush(self, handle: LogHandle) -> None:
        """A segment was rolled: bring it to the disk before long."""
        ...

    def retire(self, handle: LogHandle, segments: Sequence[LogSegment]) -> None:
        """Segments left the log: purge them after the topic's delay."""
        ...

    async def lower_claims(self, handle: LogHandle) -> None:
        """Make sure that no file claims a recovery point or a log start above the handle's."""
        ...

    def segment_cache(self, log_dir: LogDir) -> SegmentCache[LogSegment]:
        """What limits open files and indexes in memory there."""
        ...

    async def keep_log_start(self, handle: LogHandle) -> None:
        """See :meth:`LogHandle.keep_log_start`."""
        ...


class LogHandle:
    """One current replica. All methods are for the loop's thread."""

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
        #: As the last stop left it, and never outside of the log.
        self.checkpointed_high_watermark = min(
            max(checkpointed_high_watermark, self.log_start_offset), self.log_end_offset
        )
        self._high_watermark = self.checkpointed_high_watermark
        log.high_watermark, log.beat = self._high_watermark, log_dir.beat
        log.segments.join(host.segment_cache(log_dir))
        #: The largest value that the checkpoint file may hold for this log; the host's.
        self.checkpointed_recovery_point = checkpointed_recovery_point
        #: The least value that the checkpoint file holds for this log; the host's.
        self.checkpointed_log_start = checkpointed_log_start
        self.last_flush_ms = clock.now_ms()
        #: As ``config`` says; an attribute, because it is looked at for every log each second.
        self.flush_ms = log.config.flush_ms
        self.unsettled = UnsettledChanges()
        #: Its copy is about to take its place: nothing may go at the log's beginning.
        self._is_held_still = False
        #: Held while an index is rebuilt.
        self._rebuilding = asyncio.Lock()
        #: The rebuild that is not complete yet.
        self._rebuild: IndexRebuild | None = None
        #: How often a segment was checked for damage, and the last one.
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
    def kept_log_start(self) -> int:
        """Where the log starts, at the least, if the process or the disk's cache is lost now."""
        return min(self.log_start_offset, self.checkpointed_log_start)

    @property
    def claimable_log_start(self) -> int:
        """Up to where a file may say that nothing is left."""
        return self.unsettled.certain_start(self.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        return self._published.view.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Set by the partition's owner; retention stays below it."""
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        # A number, replaced as a whole: the thread sees the old or the new one.
        self._published.log.high_watermark = offset

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed records see nothing from here on (KIP-98)."""
        return self._published.view.last_stable_offset(self._high_watermark)

    @property
    def latest_epoch(self) -> int:
        """Of the last batch; -1 if there never was one."""
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
        """Everything below is on the disk."""
        return self.unsettled.certain_end(self._published.view.recovery_point)

    @property
    def damaged_from(self) -> int | None:
        """The first offset that is known to be damaged."""
        damages = self._published.view.damages
        return damages[0].offset if damages else None

    @property
    def view(self) -> LogView:
        """The last published one."""
        return self._published.view

    @property
    def directory(self) -> str:
        return self._published.log.directory

    @property
    def config(self) -> TopicConfig:
        return self._published.log.config

    def set_config(self, config: TopicConfig) -> None:
        # One reference, replaced as a whole: the thread sees the old or the new one.
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
        """Append validated batches; offsets are assigned when the write happens.

        That fails with OperatingError as :meth:`UnifiedLog.append_as_leader` does, or with
        KafkaStorageError.

        :raises KafkaStorageError: at once, if the dir is offline.
        :raises OverloadedError: at once, if too much waits for the dir.
        """
        now_ms = self._clock.wall_ms()
        return self._published.begin(
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
        """End a producer's transaction, as :meth:`UnifiedLog.append_marker` does.

        Raises as :meth:`append_as_leader`.
        """
        now_ms = self._clock.wall_ms()
        return self._published.begin(
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
        """Append batches as the leader sent them; a torn last one is left out.

        ``may_have_gaps``: the leader says that compaction took offsets away.

        That fails with CorruptRecordError (wrong CRC, or offsets that do not continue the
        log) or KafkaStorageError. Raises as :meth:`append_as_leader`.
        """
        now_ms = self._clock.wall_ms()
        append = self._published.begin(
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
        """Whole batches from the one that holds ``start_offset``, with offsets < ``max_offset``.

        At most ``max_bytes`` from one segment; ``min_one`` lets a larger first batch pass.
        None if the disk or an index must be asked: :meth:`read_checked` does.
        Bytes from memory were checked before, or were written by this process.

        :raises OffsetOutOfRangeError: if the log does not hold ``start_offset``.
        :raises KafkaStorageError: if the dir is offline.
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
            return None  # The thread finds out whether it is the index or the log.
        return None if records is None else self._result(records)

    async def read_checked(
        self, start_offset: int, max_bytes: int, max_offset: int, min_one: bool
    ) -> ReadResult:
        """:meth:`read_cached` in the dir's thread, with every batch checked, CRC included.

        :raises CorruptRecordError: if the batch of ``start_offset`` is damaged.
        :raises KafkaStorageError: if the dir is offline or goes offline meanwhile.
        """
        records = await self._ask_by_index(
            lambda log, surveyed: log.read(start_offset, max_bytes, max_offset, min_one, surveyed)
        )
        damage = self.view.damage_from(start_offset)
        if not records and damage is not None and damage.offset <= start_offset:
            raise damage_error(damage)
        return self._result(records)

    async def _ask_by_index(self, op: ByIndex[T]) -> T:
        """``op`` in the dir's thread, again after each segment that has to be read for it first."""
        surveyed: LogSegment | None = None
        while True:
            try:
                asked = self._published.ask(OpKind.READ, _with_survey(op, surveyed))
                return await asyncio.shield(asked)
            except SegmentUnreadError as unread:
                surveyed = await self._read_segment(unread)

    async def _read_segment(self, unread: SegmentUnreadError) -> LogSegment | None:
        """Rebuild indexes in steps; return the segment if it was surveyed.

        A later caller waits, or continues after a cancelled one.
        """
        surveys = self._surveys
        async with self._rebuilding:
            segment, is_survey = unread.segment, unread.survey_end is not None
            if is_survey and self._surveys > surveys and self._surveyed is segment:
                return segment
            if segment.has_indexes and not is_survey:
                return None
            rebuild = self._rebuild
            if rebuild is None or not rebuild.is_for(unread):
                rebuild = self._rebuild = IndexRebuild(unread)
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
        """Aborted transactions that reach into ``[first_offset, end_offset)``, which is stable.

        None if the disk has to be asked: :meth:`aborted_between` does.
        """
        return self.view.aborted_between(first_offset, end_offset)

    async def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """:meth:`aborted_cached` in the dir's thread."""
        return await asyncio.shield(
            self._published.ask(
                OpKind.READ, lambda log: log.aborted_between(first_offset, end_offset)
            )
        )

    async def known_producers(self) -> list[KnownProducer]:
        """Everybody who is remembered to have written here."""
        return await asyncio.shield(
            self._published.ask(OpKind.READ, lambda log: log.known_producers())
        )

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Largest known epoch not above ``epoch`` and its end offset; (-1, -1) if unknown."""
        return end_offset_for(self.view.epochs, epoch, self.view.log_end_offset)

    async def offset_for_timestamp(self, timestamp: int) -> FoundTimestamp | None:
        """The first record not older than ``timestamp`` (wall ms), or None.

        Of a batch that does not open, or unpacks to too much, its beginning is the answer.

        :raises OverloadedError: too many searches wait.
        """
        return await self._search(LogTimeSearch(timestamp))

    async def _search(self, search: LogTimeSearch) -> FoundTimestamp | None:
        while not search.is_over:
            await self._ask_by_index(lambda log, surveyed: log.search(search, surveyed))
            if unopened_bytes := search.unopened_bytes:
                await self.log_dir.compute(search.open, size_bytes=unopened_bytes)
        return search.answer

    async def offset_of_max_timestamp(self) -> FoundTimestamp | None:
        """The first of the records with the largest timestamp, or None; as above."""
        search = MaxTimestampSearch()
        while not search.is_over:
            await self._ask_by_index(lambda log, surveyed: log.search(search, surveyed))
        if search.largest is None:
            return None
        return await self._search(LogTimeSearch(search.largest, search.base_offset))

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
                # The kernel now reads these bytes, and more, from the disk: they are unchecked.
                trusted.doubt(position, size, segment.size_bytes)
                return None
            # Another thread may have read ahead since the first check.
            return found if trusted.end_from(position) >= position + size else None

        return read_trusted

    def _result(self, records: memoryview) -> ReadResult:
        return ReadResult(records, self.view.log_start_offset, self.view.log_end_offset)

    # -- change -----------------------------------------------------------------------------

    async def truncate_to(self, offset: int) -> None:
        """Lose every batch that ends at or after ``offset``."""
        if offset < self.log_end_offset:
            await self._truncate(offset, lambda log, seen: log.truncate_to(offset, seen))

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        """Lose everything, and go on at ``offset``."""
        await self._truncate(offset, lambda log, _: log.truncate_fully_and_start_at(offset))

    async def _truncate(self, offset: int, op: ByIndex[None]) -> None:
        # The claim that all below the recovery point is sound must be withdrawn first:
        # what will be appended after the truncation is not on the disk yet. So must one that
        # nothing is left of what will be appended there.
        self._published.require_open()
        # A truncation ends at a batch's beginning, which is not below the segment's.
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
            # Whoever waited may be gone; reads on the loop stay away until it is done.
            if done is None or done.done():
                self.unsettled.end_truncation(truncation)
            else:
                done.add_done_callback(lambda _: self.unsettled.end_truncation(truncation))

    async def flush(self) -> None:
        """Bring everything that was appended so far to the disk, and move the recovery point."""
        async with self._files:
            plan = await self._published.run(OpKind.CHECKPOINT, lambda log: log.flush_plan())
            log_dir, replica = self.log_dir, self.topic_partition
            await log_dir.run(
                OpKind.FLUSH,
                lambda: carry_out(log_dir.vfs, [plan], log_dir.flush_beat),
                replica=replica,
            )
            await self._published.run(OpKind.CHECKPOINT, lambda log: log.flushed(plan))
            self.last_flush_ms = self._clock.now_ms()

    async def apply_retention(self) -> int:
        """Let whole segments go that are too old or too many; how many went.

        They get other names first, and if all of them are to go that takes a new one. Where a full
        disk has no space for that, not even what the reserve was, it is done without.
        """
        was_saturated = self.log_dir.state is LogDirState.SATURATED
        try:
            return await self._retain(without_free_space=False)
        except LogDirImpairedError:
            if not was_saturated or self.log_dir.state is not LogDirState.SATURATED:
                raise
        return await self._retain(without_free_space=True)

    async def _retain(self, *, without_free_space: bool) -> int:
        """A few segments in each operation, so that others come between."""
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
        try:
            return await self._published.run(
                OpKind.RETENTION,
                lambda log: log.delete_old_segments(
                    now_ms, high_watermark, without_free_space=without_free_space
                ),
            )
        except SegmentUnreadError as unread:
            await self._read_segment(unread)
            return await self._retain_step(without_free_space=without_free_space)
        except LogDirImpairedError:
            # Segments may have left the log before: purging them is what frees space.
            await self.refresh()
            raise

    async def start_at(self, offset: int) -> None:
        """Hide what is below ``offset``, which is not above the high watermark (KIP-107).

        Needs no free space; the files go when retention is applied next. A crash may bring it back
        until :meth:`keep_log_start` was done.

        :raises OverloadedError: its copy is about to take its place: try again.
        """
        assert offset <= self.high_watermark, (offset, self.high_watermark)
        if self._is_held_still:
            raise OverloadedError(f"{self.topic_partition} is moving just now, try again")
        await self._published.run(OpKind.RETENTION, lambda log: log.start_at(offset))

    async def keep_log_start(self) -> None:
        """Bring to the disk where the log starts: :attr:`kept_log_start` is no less then.

        :raises KafkaStorageError: if the dir is or goes offline, or has no space for that.
        """
        await self._host.keep_log_start(self)

    async def take_scrubbed(self, scrub: SegmentScrub) -> bool:
        """Let the log know what was found in one of its closed segments; False if that is gone."""
        return await self._published.run(OpKind.INDEX, lambda log: log.take_scrubbed(scrub))

    # -- for the cleaner --------------------------------------------------------------------

    async def with_view(self, op: Callable[[LogView], T]) -> T:
        """``op`` in the dir's thread, on what is so then."""
        return await self._ask_by_index(lambda log, _: op(log.view()))

    async def kept_producer_batches(self) -> KeptBatches:
        """See :attr:`UnifiedLog.kept_producer_batches`."""
        return await self._published.run(OpKind.READ, lambda log: log.kept_producer_batches)

    async def open_beside(self, segment: LogSegment) -> VfsFile | None:
        """See :meth:`LogSegments.open_beside`."""
        return await self._published.run(OpKind.READ, lambda log: log.segments.open_beside(segment))

    async def open_sealed(self, segments: Sequence[LogSegment]) -> tuple[VfsFile, ...]:
        """See :meth:`LogSegments.open_sealed`."""
        return await self._published.run(
            OpKind.READ, lambda log: log.segments.open_sealed(segments)
        )

    async def open_group(self, segments: Sequence[LogSegment]) -> CleaningFiles:
        """See :meth:`LogSegments.open_group`."""
        return await self._published.run(
            OpKind.CREATE,
            lambda log: log.segments.open_group(segments, log.config.index_interval_bytes),
        )

    async def put_in_place(self, segments: Sequence[LogSegment], files: CleaningFiles) -> None:
        """See :meth:`UnifiedLog.put_in_place`; :meth:`name_compacted` has to follow."""
        await self._published.run(OpKind.RENAME, lambda log: log.put_in_place(segments, files))

    async def name_compacted(self) -> None:
        """See :meth:`LogSegments.name_compacted`."""
        await self._published.run(OpKind.RENAME, lambda log: log.segments.name_compacted())

    async def roll(self) -> None:
        """Begin a new segment now."""
        await self._published.run(OpKind.APPEND, lambda log: log.roll())

    # -- for the move to another dir --------------------------------------------------------

    @property
    def has_truncation(self) -> bool:
        """There was a truncation since the last :meth:`take_truncation`."""
        return self._published.has_truncation

    def take_truncation(self) -> Truncation | None:
        """The lowest truncation since the last call; :attr:`view` is not older than it."""
        return self._published.take_truncation()

    async def carried_state(self) -> CarriedState:
        """What a copy needs besides bytes, after everything that was asked for before."""
        return await self._ask_by_index(lambda log, _: log.carried_state())

    async def refresh(self) -> None:
        """Wait until the view shows everything that was asked for before."""
        await self._published.run(OpKind.READ, lambda log: None)

    @contextmanager
    def held_still(self) -> Iterator[None]:
        """Retention does not touch the log meanwhile; the caller sees to everything else."""
        self._is_held_still = True
        try:
            yield
        finally:
            self._is_held_still = False

    async def give_way(self, directory: str) -> None:
        """Rename the directory, because a copy takes this one's place; reads go on.

        If that fails it is :meth:`come_back` that makes things good.
        """
        async with self._files:
            renamed = self._rename(directory)
            self._published.is_replaced = True
            await asyncio.shield(renamed)

    async def come_back(self, directory: str) -> None:
        """The copy did not take its place after all: appends go on, whatever the name is.

        A dir that is impaired takes that, too.
        """
        self._published.is_replaced = False
        async with self._files:
            await asyncio.shield(self._rename(directory, OpKind.UNDO))

    # -- for the LogManager -----------------------------------------------------------------

    async def move_aside(self, directory: str) -> None:
        """Rename the replica's directory; the handle takes no more requests."""
        # A flush under way would look for the directory under its old name.
        async with self._files:
            renamed = self._rename(directory)
            self._published.is_closed = True
            try:
                await asyncio.shield(renamed)
            except OverloadedError:
                # It has its name still, and is what it was.
                self._published.is_closed = False
                raise

    def _rename(self, directory: str, kind: OpKind = OpKind.RENAME) -> asyncio.Future[None]:
        return self._published.submit(kind, lambda log: log.segments.move_to(directory))

    async def purge(self, segments: Sequence[LogSegment]) -> None:
        """Close and remove retired ``segments``, each in several operations if it is large."""
        log_dir, replica = self.log_dir, self.topic_partition
        for segment in segments:
            async with self._files:
                step = partial(shrink, log_dir.vfs, segment.path + DELETED_SUFFIX)
                is_large = segment.size_bytes > STEP_BYTES
                while is_large and await log_dir.run(OpKind.DELETE, step, replica=replica):
                    pass
                await log_dir.run(OpKind.DELETE, segment.purge, replica=replica)

    async def close_idle(self, segments: Sequence[LogSegment]) -> None:
        """Close the files of ``segments``, which open them again when they are used.

        The dir's thread takes them away from the segments first. Then the loop cannot be reading
        from one, for it reads within one callback, and no flush has one while ``_files`` is held.
        """
        async with self._files:
            await self._published.run(OpKind.READ, lambda log: log.detach_files(segments))
            close = self._published.log.segments.close_detached
            await self.log_dir.run(OpKind.READ, close, replica=self.topic_partition)

    async def close_files(self) -> None:
        """Let go of the files of a replica that was moved aside."""
        self._published.is_closed = True
        async with self._files:
            close = self._published.log.segments.close
            await self.log_dir.run(OpKind.DELETE, close, replica=self.topic_partition)

    async def close_plan(self) -> FlushPlan:
        """Write what the next load needs; the handle takes no more requests but :meth:`close`."""
        # A flush or a purge under way uses files.
        async with self._files:
            planned = self._published.submit(OpKind.CLOSE, lambda log: log.close_plan())
            self._published.is_closed = True
            return await asyncio.shield(planned)

    async def close(self, done: FlushPlan | None) -> None:
        """See :meth:`UnifiedLog.close`; if ``done`` is given, the next load will need no scan."""
        await self._published.close(done)


def _with_survey(op: ByIndex[T], surveyed: LogSegment | None) -> Callable[[UnifiedLog], T]:
    return lambda log: op(log, surveyed)
