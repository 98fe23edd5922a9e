"""``UnifiedLog``: one replica's segments as one log.

* Owned by its dir's thread; offsets are assigned here, when the write happens.
* Each operation that changes something ends with a :class:`LogView`, an immutable picture that
  the loop may hold and read by.
* Segments that are no longer part of the log keep their open files and are handed out as
  ``retired``: they are purged once no view shows them any more.
* What is read from the disk is checked. An index that leads nowhere is made anew; damage of the
  log itself is noted, shown in the view and never read again, until it is cut away.
* An operation that fails for lack of room is done in part or not at all, and either way what is
  held here is what the files say: the same operation may be asked for again, and so may any other.
  An append is not done at all.
* Recovery trusts what lies below the recovery point, which therefore only moves after fsync.
  Leader epochs and producer state are brought to disk with it; the rest is found in the batches.

Roles, high watermarks and waiting are not known here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from kraftjbod.core.errors import CorruptRecordError, OverloadedError
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.raw_records import require_keys
from kraftjbod.protocol.record_batch import BatchHeader, batches, place_batches
from kraftjbod.storage.batch_walk import require_sound, sent_batches
from kraftjbod.storage.checkpoints import format_leader_epochs
from kraftjbod.storage.dir_names import GAPS_MARK, LEADER_EPOCH_CHECKPOINT
from kraftjbod.storage.leader_epochs import (
    EpochEntries,
    assign_epoch,
    cut_epochs_before,
    cut_epochs_from,
)
from kraftjbod.storage.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.log_soundness import LogSoundness
from kraftjbod.storage.log_values import (
    AppendResult,
    CarriedState,
    FlushPlan,
    FoundTimestamp,
    LogContent,
    carry_out,
)
from kraftjbod.storage.log_view import Cut, LogView, lower_cut, read_view
from kraftjbod.storage.producer_snapshots import (
    drop_snapshots_outside,
    load_producers,
    write_snapshot,
)
from kraftjbod.storage.producer_state import ProducerState
from kraftjbod.storage.segment import LogSegment
from kraftjbod.storage.segment_limits import count_expendable, must_roll
from kraftjbod.storage.segment_scrub import SegmentScrub
from kraftjbod.storage.segment_swap import (
    CleaningFiles,
    SegmentSwap,
    open_sources,
    open_target,
    place_of,
)
from kraftjbod.storage.time_search import first_from, youngest
from kraftjbod.storage.vfs import Buffer, Undoing, Vfs, VfsFile, write_atomically

_NO_TIMESTAMP: Final = -1
_NOTHING: Final = memoryview(b"")

T = TypeVar("T")


class UnifiedLog:
    """One replica. Every method runs in the dir's thread."""

    def __init__(
        self,
        *,
        vfs: Vfs,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        content: LogContent,
        producer_expiration_ms: int = 86_400_000,
    ) -> None:
        self._vfs = vfs
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self._producer_expiration_ms = producer_expiration_ms
        #: Rising base offsets, never empty; the last one is appended to.
        self._segments = content.segments
        self._may_have_gaps = content.may_have_gaps
        #: Compacted segments of the log whose files do not have their own names yet.
        self._unnamed: list[SegmentSwap] = []
        self._size_bytes = sum(segment.size_bytes for segment in content.segments)
        self._start = content.log_start_offset
        self._end = content.log_end_offset
        self._recovery_point = content.recovery_point
        self._epochs = content.epochs
        self._epochs_on_disk = content.epochs_on_disk
        self._producers = content.producers
        self._retired: list[LogSegment] = []
        self._cut: Cut | None = None
        self._soundness = LogSoundness(self._segments, lambda: self._end)
        self._truncations = 0
        self._shown = tuple(self._segments)

    def __repr__(self) -> str:
        return f"<UnifiedLog {self.directory} [{self._start}, {self._end})>"

    def view(self) -> LogView:
        return LogView(
            self._start,
            self._end,
            self._recovery_point,
            self._size_bytes,
            self._shown,
            self._segments[-1].size_bytes,
            self._epochs,
            self._soundness.damages,
            self._soundness.indexes_mended,
            self._may_have_gaps,
        )

    def take_retired(self) -> list[LogSegment]:
        """Segments that left the log since the last call."""
        retired, self._retired = self._retired, []
        return retired

    def carried_state(self) -> CarriedState:
        """Epochs, producers and indexes, to go on in another directory."""
        producers = self._producers.to_snapshot()
        return CarriedState(self.view(), producers, self._segments[-1].indexes().to_files())

    def take_cut(self) -> Cut | None:
        """The lowest truncation since the last call."""
        cut, self._cut = self._cut, None
        return cut

    # -- append -----------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer,
        headers: Sequence[BatchHeader],
        leader_epoch: int,
        now_ms: int,
    ) -> AppendResult:
        """Give the batches of ``records`` the next offsets and write them.

        At most one batch per producer id; ``headers`` are those of ``records``, in order.

        :raises OperatingError: INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER; and
            INVALID_RECORD, for records without a key if the topic is compacted.
        """
        for header in headers:
            if header.has_producer_id and (twin := self._producers.check(header)):
                return AppendResult(
                    twin.base_offset, twin.last_offset, _NO_TIMESTAMP, self._start, True
                )
        if self.config.cleanup_policy.is_compact:
            for position, header in batches(records):
                require_keys(records, position, header)
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
        self._write(buffers, placed, len(records), epochs, now_ms)
        stamped_ms = _NO_TIMESTAMP if append_time_ms is None else append_time_ms
        return AppendResult(base_offset, self._end - 1, stamped_ms, self._start, False)

    def append_as_follower(
        self, records: Buffer, now_ms: int, *, may_have_gaps: bool = False
    ) -> AppendResult:
        """Write batches with the offsets and epochs that the leader gave them.

        A torn last batch is left out. ``may_have_gaps``: the leader's log has been compacted.

        :raises CorruptRecordError: a wrong CRC, or offsets that don't continue the log.
        """
        base_offset, epochs = self._end, self._epochs
        headers = sent_batches(records, base_offset, may_have_gaps=may_have_gaps)
        for header in headers:
            epochs = assign_epoch(epochs, header.partition_leader_epoch, header.base_offset)
        if headers:
            size = sum(header.size_bytes for header in headers)
            if may_have_gaps:
                self._expect_gaps()
            self._write([memoryview(records)[:size]], headers, size, epochs, now_ms)
        return AppendResult(base_offset, self._end - 1, _NO_TIMESTAMP, self._start, False)

    def _write(
        self,
        buffers: Sequence[Buffer],
        headers: Sequence[BatchHeader],
        size_bytes: int,
        epochs: EpochEntries,
        now_ms: int,
    ) -> None:
        next_offset = headers[-1].next_offset
        if not self._segments[-1].is_ready:
            self._soundness.open(self._segments[-1])
        if must_roll(self._segments[-1], self.config, headers, size_bytes):
            self.roll(now_ms)
        is_flush_due = next_offset - self._recovery_point >= self.config.flush_messages
        if is_flush_due:
            # While nothing is appended: it may find no room, which no append may do half-way.
            self._write_epochs(epochs)
        self._segments[-1].append(buffers, headers)
        self._size_bytes += size_bytes
        self._epochs = epochs
        self._end = next_offset
        for header in headers:
            if header.has_producer_id:
                self._producers.record(header, header.base_offset)
        if is_flush_due:
            self.flush()

    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the log's end; the old one's indexes go to disk.

        If that fails the old one is still the active one.
        """
        self._segments[-1].cut_torn_tail()
        self._segments[-1].write_indexes()
        self._producers.expire(now_ms - self._producer_expiration_ms)
        with FailsAs(OpKind.CHECKPOINT):
            write_snapshot(self._vfs, self.directory, self._producers, self._end, sync=False)
        fresh = self._new_segment(self._end)
        with FailsAs(OpKind.CREATE):
            fresh.create()
        self._segments.append(fresh)
        self._shown = tuple(self._segments)

    # -- flush ------------------------------------------------------------------------------

    def flush_plan(self) -> FlushPlan:
        """Files that hold what is not certain yet; leader epochs are written out now."""
        at = bisect_right(self._segments, self._recovery_point, key=lambda s: s.base_offset)
        files = tuple(segment.open() for segment in self._segments[max(0, at - 1) :])
        self._write_epochs(self._epochs)
        return FlushPlan(files, self.directory, self._end, self._truncations)

    def flushed(self, plan: FlushPlan) -> None:
        """``plan`` was carried out."""
        if plan.truncations == self._truncations:
            self._recovery_point = max(self._recovery_point, plan.end_offset)

    def flush(self) -> None:
        """All of it, here and now."""
        plan = self.flush_plan()
        carry_out(self._vfs, plan)
        self.flushed(plan)

    def _write_epochs(self, epochs: EpochEntries) -> None:
        if self._epochs_on_disk != epochs:
            path = f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}"
            with FailsAs(OpKind.CHECKPOINT):
                write_atomically(self._vfs, path, format_leader_epochs(epochs))
            self._epochs_on_disk = epochs

    # -- read -------------------------------------------------------------------------------

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        max_offset: int,
        min_one: bool,
        on_progress: Callable[[int], None] = lambda size_bytes: None,
    ) -> memoryview:
        """See :func:`read_view`; opens what it needs, waits for the disk, and checks each batch.

        Nothing at all if ``start_offset`` turns out to be damaged: the next view shows it.
        ``on_progress`` is for a segment that had to be surveyed.

        :raises CorruptRecordError: if the batch cannot be read for no lasting reason.
        """
        try:
            return self._read_sound(start_offset, max_bytes, max_offset, min_one)
        except CorruptRecordError as e:
            if e.offset is not None:
                return _NOTHING
        self._soundness.survey(self.view().segment_index(start_offset), on_progress)
        damage = self.view().damage_from(start_offset)
        if damage is not None and damage.offset <= start_offset:
            return _NOTHING
        return self._read_sound(start_offset, max_bytes, max_offset, min_one)

    def _read_sound(
        self, start_offset: int, max_bytes: int, max_offset: int, min_one: bool
    ) -> memoryview:
        view = self.view()
        self._soundness.open(view.segments[view.segment_index(start_offset)])
        found = read_view(
            view,
            lambda segment: segment.open().read_at,
            start_offset=start_offset,
            max_bytes=max_bytes,
            max_offset=max_offset,
            min_one=min_one,
        )
        if found is None:
            raise CorruptRecordError(f"{self.topic_partition}: no batch at {start_offset}")
        if found:
            gaps_below = view.log_end_offset if view.may_have_gaps else None
            require_sound(found, start_offset, gaps_below)
        return found

    def take_scrubbed(self, scrub: SegmentScrub) -> bool:
        """Believe a scrub of a closed segment; False if that is another one by now."""
        return self._soundness.take_scrubbed(scrub)

    def offset_for_timestamp(self, timestamp: int) -> FoundTimestamp | None:
        """The first record that is not older than ``timestamp``; its batch, if that won't open."""
        return first_from(self._segments, timestamp, self._start, self._soundness.by_index)

    def offset_of_max_timestamp(self) -> FoundTimestamp | None:
        """The largest timestamp, and the last offset of its batch."""
        return youngest(self._segments, self._epochs)

    # -- shorten ----------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Lose every batch that ends with or behind ``offset``."""
        if offset >= self._end:
            return
        self.name_compacted()
        if offset <= self._segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        at = bisect_left(self._segments, offset, key=lambda s: s.base_offset) - 1
        active, (position, end) = self._segments[at], self._cut_point(at, offset)
        if self._may_have_gaps:
            # Not in the middle of a gap: a log ends where its last batch does.
            end = active.next_offset(position)
        # A snapshot from behind the cut must not outlive it, or it speaks of what is written next.
        drop_snapshots_outside(self._vfs, self.directory, self._start, end)
        with Undoing(self._reload_producers):
            self._retire_behind(active)
            if position < active.size_bytes:
                cut_bytes = active.size_bytes - position
                active.truncate(position)
                self._size_bytes -= cut_bytes
            self._forget_from(end, Cut(active.base_offset, active.size_bytes))
        self._reload_producers()
        self._sync_names()
        self._write_epochs(self._epochs)

    def _cut_point(self, at: int, offset: int) -> tuple[int, int]:
        """Where a segment is to be cut so that nothing from ``offset`` on is left: file and log.

        In the middle of damage there is no telling, so all of it goes.
        """
        segment, is_active = self._segments[at], at == len(self._segments) - 1
        if not is_active and offset >= self._segments[at + 1].base_offset:
            return segment.size_bytes, offset
        look = partial(segment.position_of, offset)
        damage = self.view().damage_from(offset)
        if damage is None or damage.offset > offset:
            try:
                located = self._soundness.by_index(at, look)
            except CorruptRecordError:
                located, damage = None, self.view().damage_from(offset)
            if located is not None:
                return located.position, min(offset, located.header.base_offset)
        if damage is not None and damage.offset <= offset:
            return damage.position, damage.offset
        return segment.size_bytes, offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Lose everything; the log is empty and goes on at ``offset``, without a new file."""
        self.name_compacted()
        drop_snapshots_outside(self._vfs, self.directory, offset, offset)
        oldest = self._segments[0]
        with Undoing(self._reload_producers):
            self._retire_behind(oldest)
            cut_bytes = oldest.size_bytes
            # Before it gets its new name: under that it must not speak of other offsets.
            oldest.truncate(0)
            self._size_bytes -= cut_bytes
            self._forget_from(oldest.base_offset, Cut(0, 0))
        self._producers = ProducerState()
        self._epochs = ()
        self._go_on_in_place(offset)
        self._write_epochs(self._epochs)

    def _retire_behind(self, last: LogSegment) -> None:
        """From the newest on: what breaks it off leaves a shorter log, not one with a hole."""
        while (newest := self._segments[-1]) is not last:
            self._retire(-1)
            self._forget_from(newest.base_offset, Cut(newest.base_offset, 0))

    def _forget_from(self, end: int, cut: Cut) -> None:
        """The files hold nothing from ``end`` on any more."""
        self._cut = lower_cut(self._cut, cut)
        self._truncations += 1
        self._end = end
        self._start = min(self._start, end)
        self._soundness.forget_from(end)
        self._recovery_point = min(self._recovery_point, end)
        self._epochs = cut_epochs_from(self._epochs, end)

    def _reload_producers(self) -> None:
        self._producers = load_producers(self._vfs, self.directory, self._segments, self._end)

    def _go_on_in_place(self, offset: int) -> None:
        """Make the only segment an empty one at ``offset``; it takes the room of the old one."""
        (old,) = self._segments
        fresh = old.reborn(offset)
        self._size_bytes -= old.size_bytes
        self._segments[0] = fresh
        self._shown = (fresh,)
        self._end = self._recovery_point = offset
        self._begin_at(offset)
        self._sync_names()
        fresh.cut_torn_tail()

    def _sync_names(self) -> None:
        """Names that were taken away may not come back beside what is appended next."""
        with FailsAs(OpKind.FLUSH):
            self._vfs.sync_dir(self.directory)

    def start_at(self, offset: int) -> None:
        """Hide what is below ``offset`` (KIP-107); retention frees the room."""
        assert offset <= self._end, (offset, self._end)
        if offset > self._start:
            self._begin_at(offset)

    def _begin_at(self, offset: int) -> None:
        self._start = offset
        self._soundness.forget_before(offset)
        self._epochs = cut_epochs_before(self._epochs, offset)

    def delete_old_segments(
        self, now_ms: int, high_watermark: int, *, without_room: bool = False
    ) -> int:
        """Apply retention to whole segments below ``high_watermark``; how many went.

        ``without_room`` is for a disk that does not even hold another name: files are removed at
        once, and if all segments are to go the last one becomes the new one.
        """
        self.name_compacted()
        self._producers.expire(now_ms - self._producer_expiration_ms)
        doomed = count_expendable(
            self._segments,
            self.config,
            log_start_offset=self._start,
            high_watermark=high_watermark,
            log_end_offset=self._end,
            now_ms=now_ms,
        )
        is_active_doomed = doomed == len(self._segments)
        for _ in range(doomed - is_active_doomed):
            self._retire_oldest(at_once=without_room)
        if is_active_doomed and without_room:
            self._go_on_in_place(self._end)
        elif is_active_doomed:
            self.roll(now_ms)
            self._retire_oldest()
        if doomed:
            if not without_room:
                self._write_epochs(self._epochs)
            drop_snapshots_outside(self._vfs, self.directory, self._start, self._end)
        return doomed

    def _retire_oldest(self, *, at_once: bool = False) -> None:
        self._retire(0, at_once=at_once)
        self._begin_at(max(self._start, self._segments[0].base_offset))

    def _retire(self, at: int, *, at_once: bool = False) -> None:
        segment = self._segments[at]
        segment.retire(at_once=at_once)
        del self._segments[at]
        self._size_bytes -= segment.size_bytes
        self._retired.append(segment)
        self._shown = tuple(self._segments)

    # -- compaction -------------------------------------------------------------------------

    def _expect_gaps(self) -> None:
        """Mark the replica, for good, before the first gap comes."""
        if not self._may_have_gaps:
            with FailsAs(OpKind.CHECKPOINT):
                write_atomically(self._vfs, f"{self.directory}/{GAPS_MARK}", b"")
            self._may_have_gaps = True
            for segment in self._segments:
                segment.may_have_gaps = True

    @property
    def kept_producer_batches(self) -> frozenset[int]:
        """Last offsets of batches without which producers would not be known after a crash."""
        return self._producers.last_offsets()

    def open_sealed(self, sources: Sequence[LogSegment]) -> tuple[VfsFile, ...]:
        """Open ``sources``, sealed neighbours, for a cleaner to read.

        :raises OverloadedError: they are not all in the log any more.
        """
        self.name_compacted()
        self._require_sealed(sources, self._truncations)
        return open_sources(self._vfs, sources)

    def open_group(self, sources: Sequence[LogSegment]) -> CleaningFiles:
        """Open ``sources`` and what they are to be compacted into; raises as before."""
        files = self.open_sealed(sources)
        target = self._new_segment(sources[0].base_offset)
        target.may_have_gaps = True
        opened = CleaningFiles(files, target, self._truncations)
        with Undoing(opened.close_sources):
            self._expect_gaps()
            open_target(self._vfs, target)
        return opened

    def put_in_place(self, sources: Sequence[LogSegment], files: CleaningFiles) -> None:
        """The target of :meth:`open_group` is whole and synced: it is the log now.

        :meth:`name_compacted` has to follow, and may be asked for again if it fails.
        Raises as :meth:`open_sealed`; the files are the caller's still then.
        """
        self.name_compacted()
        at, target = self._require_sealed(sources, files.truncations), files.target
        swap = SegmentSwap(self._vfs, sources, target)
        swap.begin()
        self._segments[at : at + len(sources)] = [target]
        self._size_bytes += target.size_bytes - sum(source.size_bytes for source in sources)
        self._shown = tuple(self._segments)
        self._unnamed.append(swap)

    def _require_sealed(self, sources: Sequence[LogSegment], truncations: int) -> int:
        at = place_of(sources, self._segments)
        if at is None or truncations != self._truncations:
            raise OverloadedError(f"{self.topic_partition} changed while it was compacted")
        return at

    def name_compacted(self) -> None:
        """Give compacted segments their names: before anything goes by names this must be done."""
        while self._unnamed:
            swap = self._unnamed[0]
            swap.finish()
            del self._unnamed[0]
            self._retired.extend(swap.sources)

    # -- the whole directory ----------------------------------------------------------------

    def move_to(self, directory: str) -> None:
        """Rename the replica's directory, durably."""
        self.name_compacted()
        if self.directory != directory:
            self._vfs.rename(self.directory, directory)
            self.directory = directory
            for segment in self._segments:
                segment.directory = directory
        with FailsAs(OpKind.FLUSH):
            self._vfs.sync_dir(directory.rpartition("/")[0])

    def close(self) -> None:
        """Everything certain and every file closed; loading needs to scan nothing then.

        The files are closed whatever fails: an open one keeps the room of a removed one.
        """
        try:
            self.name_compacted()
            self._segments[-1].cut_torn_tail()
            self.flush()
            self._segments[-1].write_indexes()
            if self._end > 0:
                write_snapshot(self._vfs, self.directory, self._producers, self._end, sync=True)
        finally:
            self.close_files()

    def close_files(self) -> None:
        for segment in self._segments:
            segment.close()

    def _new_segment(self, base_offset: int) -> LogSegment:
        return LogSegment(
            vfs=self._vfs,
            directory=self.directory,
            base_offset=base_offset,
            size_bytes=0,
            index_interval_bytes=self.config.index_interval_bytes,
            may_have_gaps=self._may_have_gaps,
        )
