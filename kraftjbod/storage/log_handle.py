"""``LogHandle``: the loop's face of one replica's log.

* The log itself belongs to its dir's thread. What the loop knows is the last published
  :class:`LogView`; it is replaced when an operation is done, even if nobody waits any more.
* Reads are tried on the loop from the page cache first, and go to the thread otherwise.
* Files that a view may still show are closed only after a newer view was published and no
  flush is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from kraftjbod.core.config import TopicConfig
from kraftjbod.core.errors import UnknownTopicOrPartitionError
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.timing import Clock
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.storage.leader_epochs import UNDEFINED_EPOCH, end_offset_for
from kraftjbod.storage.log_dir import LogDir
from kraftjbod.storage.log_dir_policy import OpKind
from kraftjbod.storage.log_view import LogView, read_view
from kraftjbod.storage.segment import LogSegment, ReadAt
from kraftjbod.storage.unified_log import AppendResult, FoundTimestamp, UnifiedLog, carry_out
from kraftjbod.storage.vfs import Buffer

T = TypeVar("T")


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

    async def lower_recovery_point(self, handle: LogHandle) -> None:
        """Make sure that no file claims a recovery point above the handle's."""
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
    ) -> None:
        self._log = log
        self._view: LogView = log.view()
        self._host = host
        self._clock = clock
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id: TopicId = log.topic_id
        self.log_dir = log_dir
        #: As the last stop left it, and never outside of the log.
        self.checkpointed_high_watermark = min(
            max(checkpointed_high_watermark, self.log_start_offset), self.log_end_offset
        )
        #: Set by the partition's owner; retention stays below it.
        self.high_watermark = self.checkpointed_high_watermark
        #: The largest value that the checkpoint file may hold for this log; the host's.
        self.checkpointed_recovery_point = checkpointed_recovery_point
        self.last_flush_ms = clock.now_ms()
        #: While a truncation is on its way: no less will be left. Nothing behind is certain.
        self._truncating_to: int | None = None
        self._is_closed = False
        #: Held while other lanes use files, and while files are closed.
        self._files = asyncio.Lock()

    def __repr__(self) -> str:
        span = f"[{self.log_start_offset}, {self.log_end_offset})"
        return f"<LogHandle {self.topic_partition} {span} in {self.log_dir.path}>"

    @property
    def log_start_offset(self) -> int:
        return self._view.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._view.log_end_offset

    @property
    def latest_epoch(self) -> int:
        """Of the last batch; -1 if there never was one."""
        return self._view.epochs[-1].epoch if self._view.epochs else UNDEFINED_EPOCH

    @property
    def size_bytes(self) -> int:
        return self._view.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._view.segments)

    @property
    def first_segment_offset(self) -> int:
        return self._view.segments[0].base_offset

    @property
    def recovery_point(self) -> int:
        """Everything below is on the disk."""
        certain = self._view.recovery_point
        return certain if self._truncating_to is None else min(certain, self._truncating_to)

    @property
    def config(self) -> TopicConfig:
        return self._log.config

    def set_config(self, config: TopicConfig) -> None:
        # One reference, replaced as a whole: the thread sees the old or the new one.
        self._log.config = config

    # -- append -----------------------------------------------------------------------------

    def append_as_leader(
        self, records: Buffer, headers: Sequence[BatchHeader], leader_epoch: int
    ) -> asyncio.Future[AppendResult]:
        """Append validated batches; offsets are assigned when the write happens.

        The future fails with OperatingError OUT_OF_ORDER_SEQUENCE_NUMBER or
        INVALID_PRODUCER_EPOCH, or with KafkaStorageError.

        :raises KafkaStorageError: at once, if the dir is offline.
        :raises OverloadedError: at once, if too much waits for the dir.
        """
        log, now_ms = self._log, self._clock.wall_ms()
        return self._submit(
            OpKind.APPEND,
            lambda: log.append_as_leader(records, headers, leader_epoch, now_ms),
            size_bytes=len(records),
        )

    def append_as_follower(self, records: Buffer) -> asyncio.Future[AppendResult]:
        """Append batches as the leader sent them; a torn last one is left out.

        The future fails with CorruptRecordError (wrong CRC, or offsets that do not continue the
        log) or KafkaStorageError. Raises as :meth:`append_as_leader`.
        """
        log, now_ms = self._log, self._clock.wall_ms()
        return self._submit(
            OpKind.APPEND,
            lambda: log.append_as_follower(records, now_ms),
            size_bytes=len(records),
        )

    # -- read -------------------------------------------------------------------------------

    def read_cached(
        self, start_offset: int, max_bytes: int, max_offset: int, min_one: bool
    ) -> ReadResult | None:
        """:meth:`read` without waiting; None if the disk or an index must be asked."""
        if self._truncating_to is not None:
            return None
        self._require_open()
        records = read_view(
            self._view,
            self._cached_reader,
            start_offset=start_offset,
            max_bytes=max_bytes,
            max_offset=max_offset,
            min_one=min_one,
        )
        return None if records is None else self._result(records)

    async def read(
        self, start_offset: int, max_bytes: int, max_offset: int, min_one: bool
    ) -> ReadResult:
        """Whole batches from the one that holds ``start_offset``, with offsets < ``max_offset``.

        At most ``max_bytes`` from one segment; ``min_one`` lets a larger first batch pass.

        :raises OffsetOutOfRangeError: if the log does not hold ``start_offset``.
        :raises KafkaStorageError: if the dir is offline or goes offline meanwhile.
        """
        result = self.read_cached(start_offset, max_bytes, max_offset, min_one)
        if result is not None:
            return result
        self._require_open()
        log = self._log
        records = await self.log_dir.run(
            OpKind.READ, lambda: log.read(start_offset, max_bytes, max_offset, min_one)
        )
        return self._result(records)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Largest known epoch not above ``epoch`` and its end offset; (-1, -1) if unknown."""
        return end_offset_for(self._view.epochs, epoch, self._view.log_end_offset)

    async def offset_for_timestamp(self, timestamp: int) -> FoundTimestamp | None:
        """The first record not older than ``timestamp`` (wall ms), or None."""
        self._require_open()
        log = self._log
        return await self.log_dir.run(OpKind.READ, lambda: log.offset_for_timestamp(timestamp))

    async def offset_of_max_timestamp(self) -> FoundTimestamp | None:
        self._require_open()
        return await self.log_dir.run(OpKind.READ, self._log.offset_of_max_timestamp)

    def _cached_reader(self, segment: LogSegment) -> ReadAt | None:
        file = segment.file
        if file is None:
            return None
        log_dir = self.log_dir
        return lambda position, size: log_dir.read_cached(file, position, size)

    def _result(self, records: memoryview) -> ReadResult:
        return ReadResult(records, self._view.log_start_offset, self._view.log_end_offset)

    # -- change -----------------------------------------------------------------------------

    async def truncate_to(self, offset: int) -> None:
        """Lose every batch that ends with or behind ``offset``."""
        if offset < self.log_end_offset:
            await self._truncate(offset, lambda: self._log.truncate_to(offset))

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        """Lose everything, and go on at ``offset``."""
        await self._truncate(offset, lambda: self._log.truncate_fully_and_start_at(offset))

    async def _truncate(self, offset: int, op: Callable[[], None]) -> None:
        # The claim that all below the recovery point is sound must be withdrawn first:
        # what will be appended behind the cut is not on the disk yet.
        self._require_open()
        # The cut is made at a batch's beginning, which the segment's beginning is not behind.
        segment = self._view.segments[self._view.segment_index(offset)]
        self._truncating_to = min(offset, segment.base_offset)
        done: asyncio.Future[None] | None = None
        try:
            await self._host.lower_recovery_point(self)
            done = self._submit(OpKind.TRUNCATE, op)
            await asyncio.shield(done)
        finally:
            # Whoever waited may be gone; reads on the loop stay away until the cut is made.
            if done is None or done.done():
                self._truncating_to = None
            else:
                done.add_done_callback(self._truncated)

    def _truncated(self, done: asyncio.Future[None]) -> None:
        self._truncating_to = None

    async def flush(self) -> None:
        """Bring everything that was appended so far to the disk, and move the recovery point."""
        async with self._files:
            plan = await asyncio.shield(self._submit(OpKind.CHECKPOINT, self._log.flush_plan))
            vfs = self.log_dir.vfs
            await self.log_dir.run(OpKind.FLUSH, lambda: carry_out(vfs, plan))
            await asyncio.shield(self._submit(OpKind.CHECKPOINT, lambda: self._log.flushed(plan)))
            self.last_flush_ms = self._clock.now_ms()

    async def apply_retention(self) -> int:
        """Let whole segments go that are too old or too many; how many went."""
        now_ms, high_watermark = self._clock.wall_ms(), self.high_watermark
        return await asyncio.shield(
            self._submit(
                OpKind.RETENTION, lambda: self._log.delete_old_segments(now_ms, high_watermark)
            )
        )

    async def roll(self) -> None:
        """Begin a new segment now."""
        now_ms = self._clock.wall_ms()
        await asyncio.shield(self._submit(OpKind.APPEND, lambda: self._log.roll(now_ms)))

    # -- for the LogManager -----------------------------------------------------------------

    async def move_aside(self, directory: str) -> None:
        """Rename the replica's directory; the handle takes no more requests."""
        renamed = self._submit(OpKind.RENAME, lambda: self._log.move_to(directory))
        self._is_closed = True
        await asyncio.shield(renamed)

    async def purge(self, segments: Sequence[LogSegment]) -> None:
        """Close and remove retired ``segments``."""
        async with self._files:
            await self.log_dir.run(OpKind.DELETE, lambda: _purge_all(segments))

    async def close_files(self) -> None:
        """Let go of the files of a replica that was moved aside."""
        self._is_closed = True
        async with self._files:
            await self.log_dir.run(OpKind.DELETE, self._log.close_files)

    async def close(self) -> None:
        """Flush and close; the next load will need no scan."""
        async with self._files:
            closed = self._submit(OpKind.CLOSE, self._log.close)
            self._is_closed = True
            await asyncio.shield(closed)

    def _submit(
        self, kind: OpKind, op: Callable[[], T], *, size_bytes: int = 0
    ) -> asyncio.Future[T]:
        self._require_open()
        log = self._log
        return self.log_dir.submit(
            kind,
            lambda: (op(), log.view(), log.take_retired()),
            settle=self._publish,
            size_bytes=size_bytes,
        )

    def _publish(self, done: tuple[T, LogView, list[LogSegment]]) -> T:
        result, view, retired = done
        rolled = view.segments[-1] is not self._view.segments[-1]
        self._view = view
        if retired:
            self._host.retire(self, retired)
        if rolled:
            self._host.request_flush(self)
        return result

    def _require_open(self) -> None:
        if self._is_closed:
            raise UnknownTopicOrPartitionError(f"{self.topic_partition} was removed from here")


def _purge_all(segments: Sequence[LogSegment]) -> None:
    for segment in segments:
        segment.purge()
