"""LOOP. Appending as the leader: from a producer's bytes to an outcome that can be answered.

The stairs of one partition in one produce request:

1. role, epoch, in-sync replicas and the records are checked, and the append is queued for the
   directory's thread, all without an ``await``, so that pipelined requests keep their order; while
   the replica changes its directory all this waits at its gate, in order;
   records that would hold up the loop are checked in a thread for all of them, and what comes for
   that partition meanwhile waits behind them, in order;
2. when the append is done the role is checked again, because it may have moved meanwhile;
3. with ``acks=all`` the outcome waits for the high watermark.

* An outcome is a value, never an exception: an abandoned one leaves nothing unretrieved.
* What an append did to log end and high watermark takes effect even if nobody waits any more.
* A directory that does not answer in ``log.dir.io.suspect.ms`` costs its partitions an error of
  their own, and the rest of the request goes through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.core.errors import ErrorCode, InvalidRecordsError, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import Metrics
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.record_batch import Buffer, validate
from kraftjbod.protocol.record_validation import (
    CheckedBatch,
    RecordRules,
    record_rules,
    validate_quickly,
    validate_records,
)
from kraftjbod.storage.dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log.log_values import AppendResult

ACKS_ALL: Final = -1
_NO_OFFSET: Final = -1


class AppendOutcome(NamedTuple):
    """What a producer is told about one partition."""

    code: ErrorCode
    message: str | None = None
    base_offset: int = _NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: int = _NO_OFFSET
    record_errors: tuple[tuple[int, str], ...] = ()
    """Index in the batch, and why that record is refused."""

    @classmethod
    def of(cls, error: OperatingError) -> AppendOutcome:
        records = error.records if isinstance(error, InvalidRecordsError) else ()
        return cls(error.code, error.message, record_errors=records)


class PendingAppend:
    """One partition of one produce request, on its way."""

    __slots__ = ("done", "is_being_checked", "is_written", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.done: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        #: Its records wait for the thread that checks them, or behind others that do.
        self.is_being_checked = False
        #: The directory has answered; what is left is to wait for followers.
        self.is_written = False

    def end(self, outcome: AppendOutcome) -> None:
        if not self.done.done():
            self.done.set_result(outcome)


@dataclass(slots=True)
class _Wanted:
    """What a producer wants of one partition."""

    pending: PendingAppend
    records: Buffer
    acks: int
    timeout_ms: int
    #: Once its records were found to be good.
    checked: CheckedBatch | None = None


class ReplicaAppends:
    def __init__(
        self,
        *,
        replicas: HostedReplicas,
        topic_configs: TopicConfigs,
        clock: Clock,
        metrics: Metrics,
        max_unpacked_bytes: int,
        max_records: int,
        max_checking_bytes: int,
    ) -> None:
        """``max_checking_bytes`` may wait for the thread that checks large batches."""
        self._replicas = replicas
        self._clock = clock
        self._topic_configs = topic_configs
        self._metrics = metrics
        self._max_unpacked_bytes = max_unpacked_bytes
        self._max_records = max_records
        self._checker = LogDirExecutor(
            name="record-validation", clock=clock, max_bytes=max_checking_bytes
        )
        #: What waits until the records of an earlier append of its partition were checked.
        self._behind: dict[TopicPartition, deque[_Wanted]] = {}

    def append(
        self, topic_partition: TopicPartition, records: Buffer | None, *, acks: int, timeout_ms: int
    ) -> PendingAppend:
        """Queue one partition's batches; never raises an :class:`OperatingError`."""
        pending = PendingAppend(topic_partition)
        self._try(_Wanted(pending, records or b"", acks, timeout_ms))
        return pending

    def close(self) -> None:
        """Let the thread end; nothing may be appended any more."""
        self._checker.shutdown(wait=False)

    async def outcomes(
        self, pending: Sequence[PendingAppend], *, suspect_after_ms: int
    ) -> list[AppendOutcome]:
        """Every outcome, in order; each ends by itself at its own deadline."""
        watch = asyncio.get_running_loop().call_later(suspect_after_ms / 1000, _give_up, pending)
        try:
            return [await one.done for one in pending]
        finally:
            watch.cancel()

    def _try(self, wanted: _Wanted) -> None:
        if wanted.pending.done.done():
            return  # It was given up at the gate.
        try:
            self._start(wanted)
        except OperatingError as e:
            wanted.pending.end(AppendOutcome.of(e))

    def _start(self, wanted: _Wanted) -> None:
        pending = wanted.pending
        if (behind := self._behind.get(pending.topic_partition)) is not None:
            pending.is_being_checked = True
            behind.append(wanted)
            return
        replica = self._replicas.require(pending.topic_partition)
        if replica.gate.is_closed:
            replica.gate.hold(lambda: self._try(wanted))
            return
        partition, handle = replica.require_open()
        partition.require_appendable(wanted.acks)
        if wanted.checked is None:
            wanted.checked = self._check(wanted)
            if wanted.checked is None:
                return
        pending.is_being_checked = False
        records, header = wanted.checked
        leader_epoch = partition.leader_epoch
        writing = handle.append_as_leader(records, [header], leader_epoch)
        size_bytes = len(records)

        def written(append: asyncio.Future[AppendResult]) -> None:
            self._written(wanted, replica, append, size_bytes, leader_epoch)

        writing.add_done_callback(written)
        self._metrics.count("BytesInPerSec", size_bytes)

    # -- the records ----------------------------------------------------------------------------

    def _check(self, wanted: _Wanted) -> CheckedBatch | None:
        """None if that takes longer; then it is tried again when it is done."""
        config = self._topic_configs.get(wanted.pending.topic_partition.topic)
        (header,) = validate(wanted.records, max_batch_bytes=config.max_message_bytes)
        rules = self._rules(config)
        checked = validate_quickly(wanted.records, header, rules)
        if checked is None:
            checking: asyncio.Future[CheckedBatch] = self._checker.submit_op(
                lambda: validate_records(wanted.records, header, rules),
                size_bytes=len(wanted.records),
            )
            wanted.pending.is_being_checked = True
            self._behind[wanted.pending.topic_partition] = deque()
            checking.add_done_callback(lambda check: self._checked(wanted, check))
        return checked

    def _rules(self, config: TopicConfig) -> RecordRules:
        return record_rules(
            config,
            self._clock.possible_now(),
            max_unpacked_bytes=self._max_unpacked_bytes,
            max_records=self._max_records,
        )

    def _checked(self, wanted: _Wanted, check: asyncio.Future[CheckedBatch]) -> None:
        """The thread has answered: this one goes on, and then what waited behind it."""
        behind = self._behind.pop(wanted.pending.topic_partition)
        error = check.exception()
        if error is None:
            wanted.checked = check.result()
            self._try(wanted)
        elif isinstance(error, OperatingError):
            wanted.pending.end(AppendOutcome.of(error))
        for one in behind:
            self._try(one)
        if error is not None and not isinstance(error, OperatingError):
            raise error

    # -- the directory and the followers --------------------------------------------------------

    def _written(
        self,
        wanted: _Wanted,
        replica: HostedReplica,
        append: asyncio.Future[AppendResult],
        size_bytes: int,
        leader_epoch: int,
    ) -> None:
        """The directory's thread has answered."""
        pending = wanted.pending
        pending.is_written = True
        error = append.exception()
        if isinstance(error, OperatingError):
            pending.end(AppendOutcome.of(error))
            return
        if error is not None:
            raise error
        result = append.result()
        if not result.duplicate:
            replica.count_appended(size_bytes)
        if not self._replicas.is_current(replica):
            pending.end(AppendOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        try:
            partition, handle = replica.require_open()
        except OperatingError as e:
            pending.end(AppendOutcome.of(e))
            return
        partition.note_idle_followers(self._clock.now_ms())
        has_committed = partition.log_end_moved(handle.log_end_offset)
        self._replicas.log_end_moved(replica, size_bytes, has_committed=has_committed)
        if not partition.is_leader or partition.leader_epoch != leader_epoch:
            pending.end(AppendOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        outcome = AppendOutcome(
            ErrorCode.NONE,
            None,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
        )
        if wanted.acks != ACKS_ALL:
            pending.end(outcome)
            return
        self._replicate(pending, replica, outcome, result.last_offset + 1, wanted.timeout_ms)

    def _replicate(
        self,
        pending: PendingAppend,
        replica: HostedReplica,
        outcome: AppendOutcome,
        required_offset: int,
        timeout_ms: int,
    ) -> None:
        assert replica.partition is not None, replica
        code = replica.partition.acks_state(required_offset)
        if code is not None:
            pending.end(outcome if code is ErrorCode.NONE else AppendOutcome(code))
            return
        try:
            waiting = self._replicas.produces.wait(
                replica.topic_partition, required_offset, timeout_ms
            )
        except OperatingError as e:
            pending.end(AppendOutcome.of(e))
            return

        def replicated(wait: asyncio.Future[ErrorCode]) -> None:
            code = wait.result()
            pending.end(outcome if code is ErrorCode.NONE else AppendOutcome(code))

        waiting.add_done_callback(replicated)


def _give_up(pending: Sequence[PendingAppend]) -> None:
    """Answer for directories that have not answered by now."""
    for one in pending:
        if one.is_written:
            continue
        late = AppendOutcome(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the log directory of {one.topic_partition} does not answer",
        )
        if one.is_being_checked:
            late = AppendOutcome(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the records for {one.topic_partition} could not be checked in time",
            )
        one.end(late)
