"""LOOP. Reads of replicas: fetches of consumers and followers, offsets by time, ends of epochs.

* The event loop reads bytes from the page cache that this process wrote, or verified since they
  came from the disk (trusted_bytes.py). The directory's thread reads all other bytes and checks
  them, CRC included.
* A follower that requests the same offset again could not use the answer: those bytes are read and
  checked again.
* Only the leader is read, with two exceptions: consumers may read the nearest replica
  (nearest_replica.py), and tools that compare replicas read each replica's batches as they are, up
  to the committed offset that the replica knows.
* Consumers see replicated records, followers see all records. With ``read_committed`` a consumer
  sees records up to the last stable offset, and receives the list of aborted transactions.
* A stalled directory cannot be read: consumers get an empty answer, as if there were no new
  records, and followers get an error, after which they fetch less often.
* A follower's fetch also reports the follower's log end, which may commit records. So the broker
  checks at each answer that the sender is a follower in its present epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kraftjbod.broker.partitions.fetch_sessions import CONSUMER, NO_EPOCH, REPLICA_READER, FetchFrom
from kraftjbod.broker.partitions.nearest_replica import nearest_replica, require_readable
from kraftjbod.broker.partitions.partition import ANY_EPOCH, Partition
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.core.errors import (
    CorruptRecordError,
    ErrorCode,
    LogDirImpairedError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    OperatingError,
)
from kraftjbod.core.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicPartition
from kraftjbod.core.loop.timing import Clock
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import end_of_batches, offset_after_empty
from kraftjbod.storage.log.log_handle import LogHandle, ReadResult
from kraftjbod.storage.log.log_values import FoundTimestamp
from kraftjbod.storage.segments.transaction_index import AbortedTransaction

NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1

#: The isolation level ``read_committed``.
READ_COMMITTED: Final = 1

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
MAX_TIMESTAMP: Final = -3
#: The same as EARLIEST, because all records are on local disks (no tiered storage, KIP-405).
EARLIEST_LOCAL_TIMESTAMP: Final = -4
#: Timestamps for tiered storage: no record matches (KIP-1005, KIP-1023).
LATEST_TIERED_TIMESTAMP: Final = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP: Final = -6

#: Maximum number of reads that skip empty batches for a consumer.
_READS_FOR_RECORDS: Final = 32


class FetchedData(NamedTuple):
    """The result of a fetch for one partition: records, an error, or the point of divergence."""

    code: ErrorCode = ErrorCode.NONE
    records: Buffer = b""
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    diverging: tuple[int, int] | None = None
    """Epoch and end offset of the last point up to which both logs may agree."""
    is_in_memory: bool = True
    """False: there are records, but they must be read from the disk."""
    is_left_out: bool = False
    """There are records, but the request has no bytes left for them."""
    is_held_up: bool = False
    """Left out because of a quota, not for lack of bytes."""
    may_have_gaps: bool = False
    """For followers: compaction may have removed offsets between batches."""
    last_stable_offset: int = NO_OFFSET
    aborted: Sequence[AbortedTransaction] | None = None
    """For ``read_committed``: aborted transactions whose batches the consumer must skip."""
    preferred: BrokerId = NO_LEADER
    """The preferred read replica (KIP-392)."""


class FoundOffset(NamedTuple):
    """An offset, with the timestamp and the leader epoch of its record; -1 if unknown."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class ReplicaReads:
    def __init__(
        self,
        *,
        replicas: HostedReplicas,
        clock: Clock,
        follower_caught_up: Callable[[HostedReplica, BrokerId], None],
        damage_met: Callable[[HostedReplica], bool],
        may_be_deposed: Callable[[], bool],
        lets_followers_serve: bool = False,
    ) -> None:
        """Create the reader.

        :param follower_caught_up: called for each fetch of a follower outside the ISR.
        :param damage_met: called with the replica when a read finds damage in its log. Returns
            whether another in-sync replica can become leader.
        :param may_be_deposed: returns whether other brokers may lead the partitions of this broker.
        :param lets_followers_serve: whether consumers may read any in-sync replica.
        """
        self._replicas = replicas
        self._clock = clock
        self._follower_caught_up = follower_caught_up
        self._damage_met = damage_met
        self._may_be_deposed = may_be_deposed
        self._lets_followers_serve = lets_followers_serve

    # --- fetch -----------------------------------------------------------------------------------

    def read(self, wanted: FetchFrom, *, min_one_batch: bool, is_first_read: bool) -> FetchedData:
        """Read the records that are in memory, without waiting. An error is a result, never raised.

        The result has ``is_in_memory=False`` if there are records only on disk: call
        :meth:`read_from_disk` then.

        :param min_one_batch: return the first batch even if it exceeds the limit.
        :param is_first_read: True for the first read of a request, which notes a follower's
            progress. If the follower repeats an offset, its records are then read from disk. False
            when a fetch that waited reads again.
        """
        try:
            return self._read(wanted, min_one_batch, is_first_read)
        except OperatingError as e:
            return self._refused(wanted, e)

    def nearest(self, wanted: FetchFrom, rack: str, listener_name: str) -> FetchedData | None:
        """Return a result that sends a consumer in ``rack`` to the nearest replica.

        None if it should read the leader, or the partition cannot be read here.
        """
        try:
            _, partition, handle = self._readable(wanted)
        except OperatingError:
            return None
        chosen = nearest_replica(
            partition,
            self._replicas.brokers,
            rack=rack,
            fetch_offset=wanted.fetch_offset,
            listener_name=listener_name,
        )
        return None if chosen is None else _answer(partition, handle)._replace(preferred=chosen)

    async def read_from_disk(self, wanted: FetchFrom, *, min_one_batch: bool) -> FetchedData:
        """Read the records in the directory's thread, after :meth:`read` did not find them in
        memory. An :class:`OperatingError` is a result, never raised.

        :param min_one_batch: return the first batch even if it exceeds the limit.
        """
        try:
            _, partition, handle = self._readable(wanted)
            start, end = wanted.fetch_offset, self._end_for(wanted, partition, handle)
            for _ in range(_READS_FOR_RECORDS):
                result = await handle.read_checked(start, wanted.max_bytes, end, min_one_batch)
                after = _offset_after_empty(wanted, result)
                if after is None or after >= end:
                    break
                start = after
            aborted: Sequence[AbortedTransaction] | None = None
            if wanted.is_committed_only:
                upper = end_of_batches(result.records)
                aborted = await handle.aborted_between(start, upper) if upper else ()
        except OperatingError as e:
            return self._refused(wanted, e)
        if handle.damaged_from is not None:
            self._meet_damage(wanted.topic_partition)
        return _answer(
            partition,
            handle,
            records=result.records,
            may_have_gaps=wanted.replica_id >= 0 and handle.view.may_have_gaps,
            aborted=aborted,
        )

    def _read(self, wanted: FetchFrom, min_one_batch: bool, is_first_read: bool) -> FetchedData:
        replica, partition, handle = self._readable(wanted)
        if wanted.last_fetched_epoch != NO_EPOCH:
            diverging = _divergence(wanted, partition, handle)
            if diverging is not None:
                return _answer(partition, handle, diverging=diverging)
        _require_in_range(wanted.fetch_offset, handle)
        if is_first_read and wanted.replica_id >= 0:
            self._note_follower(wanted, replica, partition)
        end = self._end_for(wanted, partition, handle)
        if wanted.fetch_offset >= end or (wanted.max_bytes <= 0 and not min_one_batch):
            nothing = () if wanted.is_committed_only else None
            is_left_out = wanted.fetch_offset < end
            return _answer(partition, handle, is_left_out=is_left_out, aborted=nothing)
        result: ReadResult | None = None
        aborted: Sequence[AbortedTransaction] | None = None
        is_again = wanted.replica_id >= 0 and partition.is_sent_again(
            wanted.replica_id, wanted.fetch_offset
        )
        if not (is_again and is_first_read):
            start = wanted.fetch_offset
            for _ in range(_READS_FOR_RECORDS):
                result = handle.read_cached(start, wanted.max_bytes, end, min_one_batch)
                after = None if result is None else _offset_after_empty(wanted, result)
                if after is None or after >= end:
                    break
                start = after
            if wanted.is_committed_only and result is not None:
                aborted = _aborted_cached(handle, start, result)
                if aborted is None:
                    result = None
        return _answer(
            partition,
            handle,
            records=b"" if result is None else result.records,
            is_in_memory=result is not None,
            may_have_gaps=wanted.replica_id >= 0 and handle.view.may_have_gaps,
            aborted=aborted,
        )

    def _note_follower(
        self, wanted: FetchFrom, replica: HostedReplica, partition: Partition
    ) -> None:
        assert wanted.speaker is not None, wanted
        has_committed = partition.follower_fetched(
            wanted.replica_id,
            fetch_offset=wanted.fetch_offset,
            now_ms=self._clock.now_ms(),
            broker_epoch=wanted.replica_epoch,
            speaker=wanted.speaker,
            moment=self._replicas.moments.next(),
            log_start_offset=wanted.log_start_offset,
        )
        if has_committed is None:
            wanted.speaker.unheard[replica.key] = None
            return
        self._replicas.follower_start_reported(replica)
        if has_committed:
            self._replicas.high_watermark_moved(replica)
        if wanted.replica_id not in partition.isr:
            self._follower_caught_up(replica, wanted.replica_id)

    def _end_for(self, wanted: FetchFrom, partition: Partition, handle: LogHandle) -> int:
        if wanted.replica_id >= 0:
            return partition.log_end_offset
        return _readable_end(partition, handle, is_committed_only=wanted.is_committed_only)

    def _refused(self, wanted: FetchFrom, error: OperatingError) -> FetchedData:
        match error:
            case LogDirImpairedError():
                return self._impaired(wanted, error)
            case OffsetOutOfRangeError():
                if wanted.replica_id < 0 and self._may_be_deposed():
                    # The offset may lie in the log of a newer leader. OFFSET_OUT_OF_RANGE would
                    # make the consumer reset its position, which skips or repeats records.
                    return FetchedData(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                return self._with_range(wanted, error)
            case CorruptRecordError():
                self._meet_damage(wanted.topic_partition)
                return self._with_range(wanted, error)
            case _:
                return FetchedData(error.code)

    def _impaired(self, wanted: FetchFrom, error: LogDirImpairedError) -> FetchedData:
        """Return the result for a directory that cannot be read at present.

        A consumer gets no records and no error, because the directory may recover.
        """
        replica = self._replicas.get(wanted.topic_partition)
        if wanted.replica_id >= 0 or replica is None:
            return FetchedData(error.code)
        try:
            partition, handle = replica.require_open()
        except OperatingError as e:
            return FetchedData(e.code)
        if self._lets_followers_serve and not partition.is_leader:
            # The leader may have new records.
            return FetchedData(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return _answer(partition, handle)

    def _meet_damage(self, topic_partition: TopicPartition) -> bool:
        """React to damage. Return whether another in-sync replica can become leader."""
        replica = self._replicas.get(topic_partition)
        return replica is not None and self._damage_met(replica)

    def _with_range(self, wanted: FetchFrom, error: OperatingError) -> FetchedData:
        """Return an error with the log's offset range, which a follower needs to restart its
        log."""
        replica = self._replicas.get(wanted.topic_partition)
        if replica is None or replica.partition is None or replica.handle is None:
            return FetchedData(error.code)
        return FetchedData(
            error.code,
            high_watermark=replica.partition.high_watermark,
            log_start_offset=replica.handle.log_start_offset,
        )

    def _readable(self, wanted: FetchFrom) -> tuple[HostedReplica, Partition, LogHandle]:
        replica = self._replicas.require(wanted.topic_partition)
        partition, handle = replica.require_open()
        if wanted.replica_id == REPLICA_READER:
            partition.require_replica(wanted.current_leader_epoch)
        elif wanted.replica_id == CONSUMER:
            if self._lets_followers_serve:
                require_readable(partition, wanted.current_leader_epoch)
            else:
                partition.require_leader(wanted.current_leader_epoch)
        else:
            self._replicas.require_follower(
                partition, wanted.replica_id, wanted.replica_epoch, wanted.current_leader_epoch
            )
        return replica, partition, handle

    def _leader(self, topic_partition: TopicPartition, epoch: int) -> tuple[Partition, LogHandle]:
        partition, handle = self._replicas.require(topic_partition).require_open()
        partition.require_leader(epoch)
        return partition, handle

    def _require_same_leader(
        self, topic_partition: TopicPartition, partition: Partition, leader_epoch: LeaderEpoch
    ) -> None:
        """Require that this broker still leads in ``leader_epoch``, after a wait.

        :raises NotLeaderOrFollowerError: otherwise. The log may have been truncated meanwhile.
        """
        now, _ = self._leader(topic_partition, ANY_EPOCH)
        if now is not partition or partition.leader_epoch != leader_epoch:
            raise NotLeaderOrFollowerError(
                f"{topic_partition} got another leader epoch than {leader_epoch} during the search"
            )

    # --- offsets ---------------------------------------------------------------------------------

    async def find_offset(
        self,
        topic_partition: TopicPartition,
        timestamp_ms: int,
        *,
        current_leader_epoch: int,
        is_committed_only: bool = False,
    ) -> FoundOffset:
        """Return the offset of the first record at or after a timestamp, or of a special timestamp.

        All fields are -1 if there is none below the high watermark, or below the last stable offset
        with ``is_committed_only``. The end is that at the end of the search, so that records are
        found which were committed meanwhile. May wait for the directory.

        In a damaged log the search skips the damage, if no other in-sync replica has the records.

        :raises OperatingError: this broker does not lead during the whole search, does not know the
            high watermark yet (KIP-207), cannot read the directory, or does not know the special
            timestamp; or the damage of its log may hide the answer, which another in-sync replica
            has.
        """
        partition, handle = self._leader(topic_partition, current_leader_epoch)
        leader_epoch = partition.leader_epoch
        if timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            start = handle.log_start_offset
            return FoundOffset(NO_TIMESTAMP, start, _epoch_of_start(partition, handle))
        if partition.high_watermark < partition.leader_epoch_start_offset:
            raise OperatingError(
                f"{topic_partition} has a new leader that does not know its high watermark yet",
                code=ErrorCode.OFFSET_NOT_AVAILABLE,
            )
        match timestamp_ms:
            case _ if timestamp_ms == LATEST_TIMESTAMP:
                end = _readable_end(partition, handle, is_committed_only=is_committed_only)
                return FoundOffset(NO_TIMESTAMP, end, partition.leader_epoch)
            case _ if timestamp_ms in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
                found = None
            case _ if timestamp_ms >= 0 or timestamp_ms == MAX_TIMESTAMP:
                found = await self._search(topic_partition, handle, timestamp_ms)
            case _:
                raise OperatingError(
                    f"timestamp {timestamp_ms} has no meaning here",
                    code=ErrorCode.UNSUPPORTED_VERSION,
                )
        self._require_same_leader(topic_partition, partition, leader_epoch)
        end = _readable_end(partition, handle, is_committed_only=is_committed_only)
        if found is None or found[1] >= end:
            return FoundOffset(NO_TIMESTAMP, NO_OFFSET, NO_EPOCH)
        return FoundOffset(*found)

    async def _search(
        self, topic_partition: TopicPartition, handle: LogHandle, timestamp_ms: int
    ) -> FoundTimestamp | None:
        """Search for the first record at or after a timestamp, or with the largest one.

        :raises NotLeaderOrFollowerError: damage may hide the answer, and this broker resigns,
            because another in-sync replica has the damaged records.
        """
        resigned = NotLeaderOrFollowerError(
            f"the log of {topic_partition} is damaged, an in-sync replica becomes leader: try again"
        )
        try:
            if timestamp_ms == MAX_TIMESTAMP:
                found = await handle.offset_of_max_timestamp()
            else:
                found = await handle.offset_for_timestamp(timestamp_ms)
        except CorruptRecordError as e:
            if self._meet_damage(topic_partition):
                raise resigned from e
            raise
        damaged_from = handle.damaged_from
        if damaged_from is None:
            return found
        is_after = found is None or timestamp_ms == MAX_TIMESTAMP or damaged_from < found.offset
        if self._meet_damage(topic_partition) and is_after:
            raise resigned
        return found

    def end_of_epoch(
        self, topic_partition: TopicPartition, leader_epoch: int, *, current_leader_epoch: int
    ) -> tuple[int, int]:
        """Return the answer of OffsetForLeaderEpoch, as ``leader_epochs.end_offset_for``. The epoch
        in which this broker leads is known from its start on.

        :raises OperatingError: this broker does not lead, or leads in another epoch than
            ``current_leader_epoch``.
        """
        partition, handle = self._leader(topic_partition, current_leader_epoch)
        return _end_of_epoch(leader_epoch, partition, handle)


def _answer(
    partition: Partition,
    handle: LogHandle,
    *,
    records: Buffer = b"",
    diverging: tuple[int, int] | None = None,
    is_in_memory: bool = True,
    is_left_out: bool = False,
    may_have_gaps: bool = False,
    aborted: Sequence[AbortedTransaction] | None = None,
) -> FetchedData:
    """Return a result without an error, with the offsets of the log."""
    return FetchedData(
        records=records,
        high_watermark=partition.high_watermark,
        log_start_offset=handle.log_start_offset,
        diverging=diverging,
        is_in_memory=is_in_memory,
        is_left_out=is_left_out,
        may_have_gaps=may_have_gaps,
        last_stable_offset=_readable_end(partition, handle, is_committed_only=True),
        aborted=aborted,
    )


def _readable_end(partition: Partition, handle: LogHandle, *, is_committed_only: bool) -> int:
    """Return the offset before which consumers may read: the high watermark, or the last stable
    offset for ``is_committed_only``.
    """
    if is_committed_only:
        return handle.view.last_stable_offset(partition.high_watermark)
    return partition.high_watermark


def _aborted_cached(
    handle: LogHandle, start: int, result: ReadResult
) -> Sequence[AbortedTransaction] | None:
    """Return the aborted transactions of a read from ``start``.

    None if they must be read from the disk.
    """
    if not handle.view.may_hold_aborted(start):
        return ()
    upper = end_of_batches(result.records)
    return handle.aborted_cached(start, upper) if upper else ()


def _end_of_epoch(epoch: int, partition: Partition, handle: LogHandle) -> tuple[int, int]:
    """Return the largest epoch up to ``epoch`` and its end offset.

    The log has an epoch from the epoch's first record on, except the epoch in which this broker
    leads: that counts from its start.
    """
    if handle.latest_epoch < epoch <= partition.leader_epoch:
        if epoch == partition.leader_epoch:
            return epoch, handle.log_end_offset
        return handle.latest_epoch, partition.leader_epoch_start_offset
    found, end_offset = handle.end_offset_for_epoch(epoch)
    return found, end_offset


def _epoch_of_start(partition: Partition, handle: LogHandle) -> int:
    """Return the leader epoch at the log start: of the first record, or of the next one to be
    written.

    -1 if unknown.
    """
    start, epochs = handle.log_start_offset, handle.view.epochs
    if not epochs:
        is_next = partition.leader_epoch_start_offset <= start
        return partition.leader_epoch if is_next else NO_EPOCH
    return next((one.epoch for one in reversed(epochs) if one.start_offset <= start), NO_EPOCH)


def _divergence(
    wanted: FetchFrom, partition: Partition, handle: LogHandle
) -> tuple[int, int] | None:
    """Return epoch and end offset of the last point up to which both logs may agree (KIP-595).

    None if the logs do not diverge before the fetch offset.

    :raises OffsetOutOfRangeError: the epoch is unknown, or the fetch offset is before the log
        start.
    """
    epoch, end_offset = _end_of_epoch(wanted.last_fetched_epoch, partition, handle)
    if epoch == NO_EPOCH or wanted.fetch_offset < handle.log_start_offset:
        raise OffsetOutOfRangeError(
            f"the log knows nothing of epoch {wanted.last_fetched_epoch} at {wanted.fetch_offset}"
        )
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return epoch, end_offset
    return None


def _require_in_range(offset: int, handle: LogHandle) -> None:
    if not handle.log_start_offset <= offset <= handle.log_end_offset:
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside {handle.log_start_offset}..{handle.log_end_offset}"
        )


def _offset_after_empty(wanted: FetchFrom, result: ReadResult) -> int | None:
    """Return the next offset to read if a consumer would get only batches without records, else
    None.

    Compaction leaves such batches, and librdkafka treats a response with nothing else as too
    small. Followers need these batches for the producer state.
    """
    return offset_after_empty(result.records) if wanted.replica_id == CONSUMER else None
