"""DISK. ``UnifiedLog``: the log of one replica.

* A log belongs to its directory's thread. Offsets are assigned here, when the write happens.
* :meth:`UnifiedLog.view` returns a :class:`LogView`, an immutable state that the event loop may
  read.
* The cost of an operation does not grow with the size of the log (ADR 108).
* The log keeps segments, offsets, leader epochs and producers consistent. log_segments.py manages
  the list of segments and their file names.
* Data from the disk is checked. A wrong index is rebuilt. Damage of the log itself is recorded,
  shown in the view, and not read again until it is truncated.
* An operation that fails for lack of space may be partly done, but the state here always matches
  the files. So any operation may follow, including a repetition. An append is never partly done.
* Recovery trusts all data below the recovery point, which only advances after an fsync. Leader
  epochs become durable before it advances. Producer snapshots are only synced at a clean stop:
  a damaged or lost one is recognized, and the batches are replayed instead.

This class knows no roles of replicas and waits for nothing but the disk. The owner of the partition
sets the high watermark.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from kraftjbod.core import buggify
from kraftjbod.core.errors import CorruptRecordError, OverloadedError
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.control_records import (
    Markers,
    TransactionMarker,
    build_marker,
    markers_in,
)
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import BatchHeader, place_batches, read_header
from kraftjbod.storage.checkpoints import format_leader_epochs
from kraftjbod.storage.dir_names import (
    EXPIRED_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    TRANSACTION_INDEX_SUFFIX,
)
from kraftjbod.storage.log.leader_epochs import (
    EpochEntries,
    assign_epoch,
    truncate_epochs_before,
    truncate_epochs_from,
)
from kraftjbod.storage.log.log_damage import LogDamage
from kraftjbod.storage.log.log_replay import LogReplay, ReplayNeededError, UseReplayed
from kraftjbod.storage.log.log_segments import LogSegments
from kraftjbod.storage.log.log_values import (
    AppendResult,
    CarriedState,
    FlushPlan,
    LogContent,
    carry_out,
)
from kraftjbod.storage.log.log_view import LogView, Truncation, lower_truncation, read_view
from kraftjbod.storage.log.producer_snapshots import LoadedProducers, ProducerSnapshots
from kraftjbod.storage.log.producer_state import (
    DEFAULT_PRODUCER_LIMITS,
    KeptBatches,
    KnownProducer,
    ProducerLimits,
    ProducerState,
)
from kraftjbod.storage.log.time_search import LogTimeSearch, MaxTimestampSearch
from kraftjbod.storage.log.verification_guards import ORDINARY_TERMS, ProducerTerms
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.segments.batch_walk import sent_batches
from kraftjbod.storage.segments.index_rebuild import IndexRebuild
from kraftjbod.storage.segments.segment import LogSegment, SegmentUnreadError
from kraftjbod.storage.segments.segment_limits import count_expendable, must_roll
from kraftjbod.storage.segments.segment_scrub import SegmentScrub
from kraftjbod.storage.segments.segment_swap import CleaningFiles
from kraftjbod.storage.segments.steps import STEP_BYTES, Steps, run_all
from kraftjbod.storage.segments.transaction_index import AbortedTransaction, TransactionIndex
from kraftjbod.storage.vfs import Undoing, Vfs, write_atomically, write_temporary

_NO_TIMESTAMP: Final = -1
_NOTHING: Final = memoryview(b"")

T = TypeVar("T")


class _Replayed(NamedTuple):
    offset: int
    truncations: int
    """Number of truncations of the log at the time of the replay."""
    loaded: LoadedProducers
    """Producers at ``offset``."""


class UnifiedLog:
    """Log of one replica. Every method runs in the directory's thread.

    :param content: result of loading or creating the log.
    """

    def __init__(
        self,
        *,
        vfs: Vfs,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        content: LogContent,
        producer_limits: ProducerLimits = DEFAULT_PRODUCER_LIMITS,
    ) -> None:
        self._vfs = vfs
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self._producer_limits = producer_limits
        self.segments = LogSegments(
            vfs=vfs,
            directory=directory,
            segments=content.segments,
            may_have_gaps=content.may_have_gaps,
        )
        self._start = content.log_start_offset
        self._end = content.log_end_offset
        self._recovery_point = content.recovery_point
        self._epochs = content.epochs
        self._epochs_on_disk = content.epochs_on_disk
        self._producers = content.producers
        self._snapshots = ProducerSnapshots(vfs, lambda: self.directory, content.snapshot_offsets)
        #: Bytes that a truncation would have to replay, because no snapshot contains them.
        self._bytes_since_snapshot = content.replayed_bytes
        #: Producers at the offset of the next truncation.
        self._replayed: _Replayed | None = None
        #: A durable snapshot at the log end has the present producer state.
        self._is_snapshot_durable = content.is_snapshot_durable
        #: Set by the partition's owner, in any thread. Everything below it is replicated.
        self.high_watermark = content.log_start_offset
        self.beat: Callable[[], None] = lambda: None  # Reports progress to the directory's watch.
        self._truncation: Truncation | None = None
        self._damage = LogDamage(self.segments.all, lambda: self._end, content.damages)

    def __repr__(self) -> str:
        return f"<UnifiedLog {self.directory} [{self._start}, {self._end})>"

    @property
    def directory(self) -> str:
        return self.segments.directory

    def view(self) -> LogView:
        segments = self.segments
        return LogView(
            self._start,
            self._end,
            self._recovery_point,
            segments.size_bytes,
            segments.shown,
            segments.active.size_bytes,
            self._epochs,
            self._damage.damages,
            self._damage.indexes_mended,
            segments.may_have_gaps,
            self._producers.transactions.unstable,
            self._producers.transactions.oldest_start_ms,
        )

    def carried_state(self) -> CarriedState:
        """Return the state that a copy in another directory needs besides the segments.

        :raises SegmentUnreadError: the indexes of the active segment have to be rebuilt first.
        """
        producers = self._producers.to_snapshot()
        active = self._open(len(self.segments.all) - 1)
        files = active.indexes().to_files()
        if active.transactions:
            files[TRANSACTION_INDEX_SUFFIX] = active.transactions.to_bytes()
        return CarriedState(self.view(), producers, self._snapshots.newest(), files)

    @property
    def kept_producer_batches(self) -> KeptBatches:
        """Batches that compaction has to keep, because producers would be unknown after a crash
        otherwise.
        """
        return self._producers.kept_batches()

    def known_producers(self) -> list[KnownProducer]:
        """Return the state of all remembered producers, for DescribeProducers."""
        return self._producers.known()

    def take_truncation(self) -> Truncation | None:
        """Return the lowest truncation since the last call; None if there was none."""
        truncation, self._truncation = self._truncation, None
        return truncation

    # -- append -----------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer,
        headers: Sequence[BatchHeader],
        leader_epoch: int,
        now_ms: int,
        terms: ProducerTerms = ORDINARY_TERMS,
    ) -> AppendResult:
        """Assign the next offsets to the batches of ``records``, and write them.

        If one repeats a batch of an idempotent producer, nothing is written: the result has the
        offsets of the first append and ``duplicate``.

        :param headers: headers of the batches in ``records``, in order. At most one batch per
            producer id.
        :param now_ms: wall clock time, which becomes the timestamp with LogAppendTime.
        :raises NotVerifiedError: a transaction would start that was not verified (KIP-890).
        :raises OperatingError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER,
            INVALID_TXN_STATE, or THROTTLING_QUOTA_EXCEEDED if there are too many producers.
        """
        for header in headers:
            if header.has_producer_id and (
                twin := self._producers.check(header, now_ms, self._producer_limits, terms)
            ):
                return AppendResult(
                    twin.base_offset, twin.last_offset, _NO_TIMESTAMP, self._start, True
                )
        return self._append(records, headers, leader_epoch, now_ms, {})

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: TransactionMarker,
        *,
        transaction_version: int,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendResult:
        """Write the transaction coordinator's marker for the producer, even if no transaction is
        open here.

        :param transaction_version: ``transaction.version`` of the marker; from 2 on each marker has
            a new epoch.
        :param now_ms: wall-clock time, which becomes the timestamp.
        :raises OperatingError: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        self._producers.check_marker(producer_id, producer_epoch, marker, transaction_version)
        records = build_marker(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=now_ms
        )
        header = read_header(records)
        return self._append(records, [header], leader_epoch, now_ms, {self._end: marker})

    def _append(
        self,
        records: Buffer,
        headers: Sequence[BatchHeader],
        leader_epoch: int,
        now_ms: int,
        markers: Markers,
    ) -> AppendResult:
        append_time_ms = None
        if self.config.message_timestamp_type == "LogAppendTime":
            append_time_ms = now_ms
            headers = [header._replace(max_timestamp=now_ms) for header in headers]
        base_offset = self._end
        buffers, placed = place_batches(
            records,
            headers,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            append_time_ms=append_time_ms,
        )
        epochs = assign_epoch(self._epochs, leader_epoch, base_offset)
        self._write(buffers, placed, len(records), epochs, now_ms, markers)
        stamped_ms = _NO_TIMESTAMP if append_time_ms is None else append_time_ms
        return AppendResult(base_offset, self._end - 1, stamped_ms, self._start, False)

    def append_as_follower(
        self, records: Buffer, now_ms: int, *, may_have_gaps: bool = False
    ) -> AppendResult:
        """Write batches with the offsets and epochs that the leader assigned.

        An incomplete last batch is omitted.

        :param now_ms: wall-clock time.
        :param may_have_gaps: whether the leader's log has been compacted.
        :raises CorruptRecordError: a wrong CRC, or offsets that do not continue the log.
        """
        base_offset, epochs = self._end, self._epochs
        headers = sent_batches(
            records,
            base_offset,
            may_have_gaps=may_have_gaps,
            is_log_empty=self.segments.are_empty,
        )
        for header in headers:
            epoch_start = max(header.base_offset, base_offset)
            epochs = assign_epoch(epochs, header.partition_leader_epoch, epoch_start)
        markers = markers_in(records, headers)
        if headers:
            size = sum(header.size_bytes for header in headers)
            if may_have_gaps:
                self.segments.expect_gaps()
            self._write([memoryview(records)[:size]], headers, size, epochs, now_ms, markers)
        return AppendResult(base_offset, self._end - 1, _NO_TIMESTAMP, self._start, False)

    def _write(
        self,
        buffers: Sequence[Buffer],
        headers: Sequence[BatchHeader],
        size_bytes: int,
        epochs: EpochEntries,
        now_ms: int,
        markers: Markers,
    ) -> None:
        next_offset = headers[-1].next_offset
        active = self.segments.active
        is_ready = active.is_ready and active.transactions is not None
        if not is_ready:
            is_ready = self._open_active()
        if self.segments.are_empty:
            self._begin_with(min(headers[0].base_offset, self._end))
        elif (
            not is_ready
            or must_roll(active, self.config, headers, size_bytes)
            or (buggify.is_on and buggify.fires("storage.early_roll"))
        ):
            self._roll(has_indexes=is_ready)
        elif self._producers.is_snapshot_due(self._bytes_since_snapshot, self._producer_limits):
            with FailsAs(OpKind.CHECKPOINT):
                self._write_snapshot()
        is_flush_due = next_offset - self._recovery_point >= self.config.flush_messages
        if is_flush_due:
            # Write these before the append: they may find no space, and an append is never partly
            # done.
            self._write_epochs(epochs)
            for closed in self.segments.from_recovery_at(self._recovery_point)[:-1]:
                closed.write_indexes()
        self.segments.append_batches(buffers, headers, size_bytes)
        self._bytes_since_snapshot += size_bytes
        self._is_snapshot_durable = False
        self._epochs = epochs
        self._end = next_offset
        for header in headers:
            if header.has_producer_id:
                self._note_producer(header, markers.get(header.base_offset), now_ms)
        if is_flush_due:
            self.flush()

    def _begin_with(self, first_offset: int) -> None:
        """Rename the only segment, which is empty, so that it starts at the offset of its first
        batch.

        ``first_offset`` is below the log start if DeleteRecords moved the leader's log start inside
        that batch (KAFKA-6975). If the append fails afterwards, the next one renames the segment
        again. A restart in between finds an empty log, and starts it at the log start.
        """
        if first_offset != self.segments.active.base_offset:
            self.segments.restart_in_place(first_offset)
            self.segments.truncations += 1
            self._truncation = Truncation(0, 0)

    def _note_producer(
        self, header: BatchHeader, marker: TransactionMarker | None, now_ms: int
    ) -> None:
        limits = self._producer_limits
        if marker is not None:
            self._producers.transactions.replicated(self.high_watermark)
        aborted = self._producers.record(header, header.base_offset, now_ms, limits, marker)
        if aborted is not None:
            self.segments.active.note_aborted(aborted)

    def roll(self) -> None:
        """Start a new segment at the log end, and write the indexes of the old one.

        If the old segment has no indexes, a later read rebuilds them. After a failure the old
        segment stays active.

        Cost: O(1), a write of one segment's indexes and of a producer snapshot.
        """
        self._roll(has_indexes=self._open_active())

    def _roll(self, *, has_indexes: bool) -> None:
        active = self.segments.active
        active.truncate_torn_tail()
        # A segment that is flushed to its end is in no later flush plan.
        is_flushed = self._recovery_point >= self._end
        active.write_transactions(sync=is_flushed)
        if has_indexes:
            active.write_indexes(sync=is_flushed)
        with FailsAs(OpKind.CHECKPOINT):
            self._write_snapshot()
        self.segments.begin_segment(self._end, self.config.index_interval_bytes)

    def _write_snapshot(self) -> None:
        base = self.segments.from_recovery_at(self._recovery_point)[0].base_offset
        self._snapshots.write(
            self._producers, self._end, self.segments.all, sync=False, recovery_base=base
        )
        self._bytes_since_snapshot = 0

    def _open(self, at: int) -> LogSegment:
        """Return segment number ``at`` with its file open, and its offset, time and transaction
        index loaded.

        :raises SegmentUnreadError: one of the indexes has to be rebuilt.
        """
        segment = self.segments.all[at]
        self._damage.open(segment)
        self._load_transactions(at)
        return segment

    def _load_transactions(self, at: int) -> None:
        if not self.segments.all[at].load_transactions():
            raise ReplayNeededError(self._transaction_replay(at, replaces_index=False))

    def _open_active(self) -> bool:
        """Open the active segment. Return False if its indexes must be rebuilt before an append."""
        try:
            self._open(len(self.segments.all) - 1)
        except SegmentUnreadError:
            return False
        return True

    def _transaction_replay(self, at: int, *, replaces_index: bool) -> LogReplay:
        """Return a replay that rebuilds the transaction index of segment number ``at``.

        :param replaces_index: the present index is wrong, in memory as well.
        """
        segments = self.segments.shown
        segment = segments[at]
        end = segments[at + 1].base_offset if at + 1 < len(segments) else self._end

        def work() -> Steps[UseReplayed]:
            found = yield from self._snapshots.transactions_of(
                segments, at, end, self._producer_limits
            )
            return partial(self._use_transactions, segment, found)

        return LogReplay(
            segments[: at + 1],
            self.segments.truncations,
            work(),
            target=("transactions", segment, replaces_index),
            is_settled=lambda: segment.transactions is not None and not replaces_index,
        )

    def _use_transactions(
        self, segment: LogSegment, found: TransactionIndex, is_written: bool
    ) -> None:
        segment.take_transactions(found)
        self._damage.indexes_mended += 1
        if is_written and segment is not self.segments.active:
            segment.write_transactions(sync=True)

    # -- flush ------------------------------------------------------------------------------

    def flush_plan(self) -> FlushPlan:
        """Return the files with bytes that are not durable yet.

        Leader epochs, the transaction indexes and the indexes of closed segments are written now,
        because segments that are durable to their end are in no later plan.
        """
        segments = self.segments.from_recovery_at(self._recovery_point)
        paths = self._write_closed_indexes(segments)
        self._write_epochs(self._epochs)
        return FlushPlan(
            tuple(segment.open() for segment in segments),
            self.directory,
            self._end,
            self.segments.truncations,
            tuple(paths),
        )

    def _write_closed_indexes(self, segments: Sequence[LogSegment]) -> list[str]:
        """Write transaction indexes, and the other indexes of closed segments.

        Return the files to sync.
        """
        for segment in segments:
            segment.write_transactions()
        paths = [one.transactions_path for one in segments if one.transactions]
        for segment in segments[:-1]:
            self.beat()
            segment.write_indexes()
            paths.extend(segment.index_paths)
        return paths

    def flushed(self, plan: FlushPlan) -> None:
        """Advance the recovery point after ``plan`` was carried out, unless the log was truncated
        since.
        """
        if plan.truncations == self.segments.truncations:
            self._recovery_point = max(self._recovery_point, plan.end_offset)

    def flush(self) -> None:
        """Make everything durable, and advance the recovery point, in this thread."""
        plan = self.flush_plan()
        carry_out(self._vfs, [plan], self.beat)
        self.flushed(plan)

    def detach_files(self, idle: Sequence[LogSegment]) -> None:
        """Detach open files of ``idle`` segments, as :meth:`LogSegments.detach_files` does."""
        self.segments.detach_files(idle, self._recovery_point, self._end)

    def _write_epochs(self, epochs: EpochEntries) -> None:
        if self._epochs_on_disk != epochs:
            with FailsAs(OpKind.CHECKPOINT):
                write_atomically(self._vfs, self._epochs_path, format_leader_epochs(epochs))
            self._epochs_on_disk = epochs

    @property
    def _epochs_path(self) -> str:
        return f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}"

    # -- read -------------------------------------------------------------------------------

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        max_offset: int,
        min_one: bool,
        surveyed: LogSegment | None = None,
    ) -> memoryview:
        """Read as :func:`read_view`, from the disk if necessary, and check each batch.

        Returns nothing if ``start_offset`` is in known damage, which the view shows. Cost: one
        segment's indexes, and the bytes from the index entry before the first batch on.

        :param surveyed: the segment that was surveyed for this request; None if none was.
        :raises CorruptRecordError: the batch cannot be read, though a survey found no damage.
        :raises SegmentUnreadError: the segment's index has to be rebuilt, or the segment surveyed.
        """
        try:
            return self._read_sound(start_offset, max_bytes, max_offset, min_one)
        except CorruptRecordError as e:
            if e.offset is not None:
                return _NOTHING
            self._damage.require_survey(self.view().segment_index(start_offset), surveyed)
            raise

    def _read_sound(
        self, start_offset: int, max_bytes: int, max_offset: int, min_one: bool
    ) -> memoryview:
        view = self.view()
        segment = view.segments[view.segment_index(start_offset)]
        self._damage.open(segment)
        found = read_view(
            view,
            lambda segment: segment.read_at,
            start_offset=start_offset,
            max_bytes=max_bytes,
            max_offset=max_offset,
            min_one=min_one,
            is_checked=True,
        )
        if found is None:
            raise CorruptRecordError(f"{self.topic_partition}: no batch at {start_offset}")
        return found

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap ``[first_offset, end_offset)``. Indexes that
        are not in memory are loaded.

        See :meth:`LogView.aborted_between`.

        :raises ReplayNeededError: an index has to be rebuilt first.
        """
        view = self.view()
        while (found := view.aborted_between(first_offset, end_offset)) is None:
            unread = [i for i, one in enumerate(self.segments.all) if one.transactions is None]
            first = view.segment_index(first_offset)
            self._load_transactions(next(i for i in unread if i >= first))
        return found

    def take_scrubbed(self, scrub: SegmentScrub) -> bool:
        """Record the findings of a scrub, and rewrite a wrong offset or time index of an undamaged
        segment. Return False if the segment was replaced or truncated meanwhile.

        :raises ReplayNeededError: the transaction index is wrong and has to be rebuilt; everything
            else is done.
        """
        if not self._damage.take_scrubbed(scrub):
            return False
        if scrub.is_transaction_index_wrong and not scrub.damages:
            at = self.segments.all.index(scrub.segment)
            raise ReplayNeededError(self._transaction_replay(at, replaces_index=True))
        return True

    def search(
        self, search: LogTimeSearch | MaxTimestampSearch, surveyed: LogSegment | None = None
    ) -> None:
        """Run one turn of a search by timestamp. Another thread decompresses the batch that was
        found.

        Cost: largest timestamps and last batches of a few segments, and the indexes of one segment.

        :param surveyed: as in :meth:`read`.
        :raises CorruptRecordError: as :meth:`read`.
        :raises SegmentUnreadError: as :meth:`read`.
        """
        by_index = partial(self._damage.by_index, surveyed=surveyed)
        require_end = partial(self._damage.require_end, surveyed=surveyed)
        search.scan(self.segments.all, self._start, by_index, require_end)

    def rebuild_step(self, rebuild: IndexRebuild | LogReplay) -> bool:
        """Run a step of ``rebuild``. Return True if it is complete, or not needed any more."""
        if isinstance(rebuild, LogReplay):
            return not self._is_valid(rebuild) or rebuild.step()
        return self._damage.rebuild_step(rebuild)

    def _is_valid(self, replay: LogReplay) -> bool:
        return replay.is_valid(self.segments.shown, self.segments.truncations)

    def take_rebuilt(self, rebuild: IndexRebuild | LogReplay, *, is_written: bool) -> bool:
        """Finish the rebuild and use its result.

        Return False if it is no longer valid or needed: the segment was replaced or truncated, a
        step failed, or the segment has indexes already.

        :param is_written: also write the index files, unless the segment is active.
        """
        if isinstance(rebuild, LogReplay):
            return self._is_valid(rebuild) and rebuild.use(is_written=is_written)
        if not self._damage.take_rebuilt(rebuild):
            return False
        if is_written and rebuild.segment is not self.segments.active:
            rebuild.segment.write_indexes(sync=True)
        return True

    # -- compaction -------------------------------------------------------------------------

    def put_in_place(self, sources: Sequence[LogSegment], files: CleaningFiles) -> None:
        """Replace ``sources`` by their compacted segment, as :meth:`LogSegments.put_in_place` does.

        :raises OverloadedError: the sources changed, or damage of them was found, during the
            compaction. Positions of damage refer to the damaged file, and a truncation uses them.
        """
        view = self.view()
        damage = view.damage_from(sources[0].base_offset)
        if damage is not None and view.segments[view.segment_index(damage.offset)] in sources:
            raise OverloadedError(f"{self.directory} turned out to be damaged at {damage.offset}")
        self.segments.put_in_place(sources, files)

    # -- truncation and retention -----------------------------------------------------------

    def truncate_to(self, offset: int, surveyed: LogSegment | None = None) -> None:
        """Remove every batch that ends at or after ``offset``, durably.

        At or above the log end, nothing changes. At or below the first segment's base, this is
        :meth:`truncate_fully_and_start_at`.

        Cost: one segment's indexes, one index interval, at most 4 MiB of the log since the last
        producer snapshot, and a few file operations per removed segment.

        :raises SegmentUnreadError: as :meth:`read`, before any change.
        :raises ReplayNeededError: the producers at ``offset`` are not known, and more than 4 MiB
            have to be replayed first.
        """
        if offset >= self._end:
            return
        self.segments.name_compacted()
        if offset <= self.segments.oldest.base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        at = bisect_left(self.segments.all, offset, key=lambda s: s.base_offset) - 1
        active, (position, end) = self._open(at), self._truncation_point(at, offset, surveyed)
        if self.segments.may_have_gaps:
            # Not in the middle of a gap: a log ends where its last batch ends.
            end = active.next_offset(position)
        self._require_producers(at, position, end)
        # A later snapshot must not remain: it would contain truncated batches.
        self._snapshots.drop_outside(self._start, end)
        with Undoing(self._reload_producers):
            self._retire_after(active)
            if position < active.size_bytes:
                self.segments.shorten(active, position, end)
            self._forget_from(end, Truncation(active.base_offset, active.size_bytes))
        self._reload_producers()
        self.segments.sync_names()
        self._write_epochs(self._epochs)

    def _truncation_point(
        self, at: int, offset: int, surveyed: LogSegment | None
    ) -> tuple[int, int]:
        """Return the position in segment number ``at`` and the offset at which to truncate it.

        All batches that end at or after ``offset`` are beyond that point. If the offset is inside
        damage, the whole damage is.
        """
        segment, is_active = self.segments.all[at], at == len(self.segments.all) - 1
        if not is_active and offset >= self.segments.all[at + 1].base_offset:
            return segment.size_bytes, offset
        search = partial(segment.position_of, offset)
        damage = self.view().damage_from(offset)
        if damage is None or damage.offset > offset:
            try:
                located = self._damage.by_index(at, search, surveyed)
            except CorruptRecordError:
                located, damage = None, self.view().damage_from(offset)
            if located is not None:
                return located.position, min(offset, located.header.base_offset)
        if damage is not None and damage.offset <= offset:
            return damage.position, damage.offset
        # No batch reaches that far. The segment may have lost its end without being noticed.
        return segment.size_bytes, min(offset, segment.next_offset(segment.size_bytes))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all batches, durably, and continue at ``offset``, without creating a new file.

        Cost: O(1), and a few file operations per removed segment.
        """
        self.segments.name_compacted()
        self._snapshots.drop_outside(offset, offset)
        oldest = self.segments.oldest
        with Undoing(self._reload_producers):
            self._retire_after(oldest)
            # Truncate before the rename: under the new name the old offsets would be wrong.
            self.segments.shorten(oldest, 0, oldest.base_offset)
            self._forget_from(oldest.base_offset, Truncation(0, 0))
        self._producers, self._bytes_since_snapshot = ProducerState(), 0
        self._replayed = None
        self._epochs = ()
        self._damage.damages = ()
        # The epochs' file shows the log start, so it is cleared before the log start changes.
        self._write_epochs(self._epochs)
        self._restart_in_place(offset)

    def _retire_after(self, last: LogSegment) -> None:
        """Retire the segments after ``last``, newest first, so that a failure leaves no gap in the
        log.
        """
        while (newest := self.segments.active) is not last:
            self.beat()
            self.segments.retire(-1)
            self._forget_from(newest.base_offset, Truncation(newest.base_offset, 0))

    def _forget_from(self, end: int, truncation: Truncation) -> None:
        """Set end, start, recovery point, epochs and damage after the files lost all batches from
        ``end`` on.
        """
        self._truncation = lower_truncation(self._truncation, truncation)
        self._is_snapshot_durable = False
        self.segments.truncations += 1
        self._end = end
        self._start = min(self._start, end)
        self._damage.forget_from(end)
        self._recovery_point = min(self._recovery_point, end)
        self._epochs = truncate_epochs_from(self._epochs, end)

    def _require_producers(self, at: int, position: int, end: int) -> None:
        """Raise an error unless :meth:`_reload_producers` is short after a truncation to ``end``,
        which is at ``position`` of segment number ``at``.

        :raises ReplayNeededError: the replay has to be done first.
        """
        replayed, truncations = self._replayed, self.segments.truncations
        if not self._producers or (replayed is not None and replayed[:2] == (end, truncations)):
            return
        self._replayed = None
        size_bytes = position - self._snapshot_position(at, end)
        is_long = buggify.is_on and buggify.fires("storage.long_replay")
        if size_bytes > STEP_BYTES or is_long:
            raise ReplayNeededError(self._producer_replay(at, end))

    def _snapshot_position(self, at: int, end: int) -> int:
        """Return about the position of the newest producer snapshot up to ``end``, in bytes after
        the start of segment number ``at``, whose indexes are loaded. Negative in earlier segments.
        """
        segments, offsets = self.segments.all, self._snapshots.offsets
        begin = max(offsets[: bisect_right(offsets, end)][-1:], default=segments[0].base_offset)
        if begin >= segments[at].base_offset:
            return segments[at].indexes().offsets.position_before(begin)
        first = max(0, bisect_right(segments, begin, key=lambda s: s.base_offset) - 1)
        return -sum(segment.size_bytes for segment in segments[first:at])

    def _producer_replay(self, at: int, end: int) -> LogReplay:
        segments, truncations = self.segments.shown[: at + 1], self.segments.truncations

        def work() -> Steps[UseReplayed]:
            loaded = yield from self._snapshots.load(segments, end, self._producer_limits)
            return partial(self._use_producers, _Replayed(end, truncations, loaded))

        return LogReplay(segments, truncations, work(), target=("producers", end))

    def _use_producers(self, replayed: _Replayed, is_written: bool) -> None:
        self._replayed = replayed

    def _reload_producers(self) -> None:
        """Load the producer state at the log end from snapshots and batches.

        An empty state stays empty, as in Kafka.
        """
        replayed, self._replayed = self._replayed, None
        if not self._producers:
            return
        if replayed is not None and replayed.offset == self._end:
            loaded = replayed.loaded
        else:
            work = self._snapshots.load(self.segments.all, self._end, self._producer_limits)
            loaded = run_all(work, self.beat)
        self._producers, self._bytes_since_snapshot = loaded.state, loaded.replayed_bytes

    def _restart_in_place(self, offset: int) -> None:
        """Replace the only segment by an empty one at ``offset`` that reuses its file and space."""
        fresh = self.segments.restart_in_place(offset)
        self._end = self._recovery_point = offset
        self._begin_at(offset)
        self.segments.sync_names()
        fresh.truncate_torn_tail()

    def start_at(self, offset: int) -> None:
        """Raise the log start to ``offset`` (KIP-107), at most the log end. No effect if it is not
        lower. Retention frees the space later.

        Cost: O(1), without a file operation.
        """
        assert offset <= self._end, (offset, self._end)
        if offset > self._start:
            self._begin_at(offset)

    def _begin_at(self, offset: int) -> None:
        self._start = offset
        self._damage.forget_before(offset)
        self._epochs = truncate_epochs_before(self._epochs, offset)

    def delete_old_segments(
        self, now_ms: int, high_watermark: int, *, without_free_space: bool = False
    ) -> int:
        """Apply retention to the oldest segments below ``high_watermark``, and forget expired
        producers. Return how many segments were removed.

        At most ``EXPENDABLE_PER_STEP`` are removed. Call again after that many.

        Cost: O(1), the last index entries and a few renames per removed segment.

        The leader epochs on the disk show the log start (see ``log_loader``). They are written
        before the renamed files can be purged, and their file is removed before segments are
        unlinked.

        :param now_ms: wall-clock time.
        :param without_free_space: for a disk without space for another name. Files are unlinked
            instead of renamed. If all segments are removed, the last file is reused for the new
            segment.
        :raises SegmentUnreadError: an index has to be rebuilt first; no segment was removed.
        """
        self.segments.name_compacted()
        self._producers.expire(now_ms, self._producer_limits)
        doomed = count_expendable(
            self.segments.all,
            self.config,
            size_bytes=self.segments.size_bytes,
            log_start_offset=self._start,
            high_watermark=high_watermark,
            log_end_offset=self._end,
            now_ms=now_ms,
        )
        is_active_doomed = doomed == len(self.segments.all)
        if doomed and without_free_space:
            self._vfs.unlink_if_exists(self._epochs_path)
            self._epochs_on_disk = None
        for _ in range(doomed - is_active_doomed):
            self._retire_oldest(at_once=without_free_space)
        if is_active_doomed and without_free_space:
            self._restart_in_place(self._end)
        elif is_active_doomed:
            self.roll()
            self._retire_oldest()
        is_rewrite_due = self._epochs_on_disk is None and self._epochs
        if not without_free_space and (doomed or is_rewrite_due):
            self._write_epochs(self._epochs)
        if doomed:
            self.segments.drop_leftovers()
            self._snapshots.drop_outside(self._start, self._end)
        return doomed

    def _retire_oldest(self, *, at_once: bool = False) -> None:
        self.segments.retire(0, at_once=at_once, suffix=EXPIRED_SUFFIX)
        self._begin_at(max(self._start, self.segments.oldest.base_offset))

    # -- stop -------------------------------------------------------------------------------

    def close_plan(self, *, is_repeated: bool = False) -> FlushPlan:
        """Write the files that a load after a clean stop needs. Return the files that still have to
        be synced.

        Only :meth:`close` may follow, or a repetition after a failure. Data that is durable already
        is not written or synced again: a log without changes since a clean stop costs one fsync of
        its directory. A failure leaves files open, because the kernel forgets an unreported disk
        error with the last open descriptor.

        :param is_repeated: a former call failed, so files that it changed are not durable.
        """
        self.segments.name_compacted()
        active = self.segments.active
        is_torn = active.truncate_torn_tail()
        segments = self.segments.from_recovery_at(self._recovery_point)
        paths = self._write_closed_indexes(segments)
        if active.write_indexes() or is_repeated:
            paths.extend(active.index_paths)
        if self._end > 0 and not self._is_snapshot_durable:
            with FailsAs(OpKind.CHECKPOINT):
                self._write_snapshot()
            paths.append(self._snapshots.path(self._end))
        is_durable = self._recovery_point >= self._end and not is_torn and not is_repeated
        return FlushPlan(
            () if is_durable else tuple(segment.open() for segment in segments),
            self.directory,
            self._end,
            self.segments.truncations,
            tuple(paths),
            self._write_new_epochs(),
        )

    def _write_new_epochs(self) -> tuple[tuple[str, str], ...]:
        """Write leader epochs to a temporary file, if they differ from the epochs on the disk.

        Returns the temporary and the final path, for the plan.
        """
        if self._epochs_on_disk == self._epochs:
            return ()
        with FailsAs(OpKind.CHECKPOINT):
            data = format_leader_epochs(self._epochs)
            written = write_temporary(self._vfs, self._epochs_path, data, sync=False)
        return ((written, self._epochs_path),)

    def close(self, done: FlushPlan | None) -> None:
        """Close every file.

        :param done: the plan of :meth:`close_plan` if it was carried out, else None.
        """
        if done is not None:
            self.flushed(done)
        self.segments.close()
