"""LOOP. Appends as the leader: from a producer's bytes to the outcome for the response.

The steps for one partition of a produce request:

1. Check the role, the epoch, the in-sync replicas and the records, and queue the append for the
directory's thread. This takes no ``await``, so pipelined requests keep their order. While a move
swaps the replica's copies, appends wait in order at its gate. Records that would block the event
loop for long are validated in a thread shared by all partitions. Later appends to the partition
wait behind them, in order. 2. After the append, check the role again, because it may have changed.
3. With ``acks=all``, wait for the high watermark.

* An outcome is a value, never an exception, so an abandoned one leaves no unretrieved exception.
* An append advances the log end and the high watermark even if its request was abandoned.
* If a directory does not respond within ``log.dir.io.suspect.ms``, its partitions get an error and
  the other partitions of the request proceed.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.broker.partitions.partition import ANY_EPOCH, Partition
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.broker.replicas.pending_append import (
    ACKS_ALL,
    AppendOutcome,
    MarkerToWrite,
    PendingAppend,
    TransactionClaim,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import Metrics
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.control_records import MARKER_BYTES
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import MAX_SEQUENCE, BatchHeader, read_header, validate
from kraftjbod.protocol.record_validation import (
    CheckedBatch,
    RecordRules,
    record_rules,
    validate_quickly,
    validate_records,
)
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log.log_values import AppendResult
from kraftjbod.storage.log.verification_guards import (
    ORDINARY_TERMS,
    NotVerifiedError,
    ProducerTerms,
    VerificationGuard,
)
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor, MakeExecutor

#: Partition, producer id and producer epoch.
_ProducerKey = tuple[TopicPartition, int, int]
#: Maximum number of requests that an idempotent producer has in flight to a broker.
_MAX_IN_FLIGHT: Final = 5
_TIMER_SLACK_S: Final = 0.001

R = TypeVar("R")


#: Asks a transaction's coordinator about a partition, a producer id and an epoch.
Verify = Callable[[TopicPartition, int, int, TransactionClaim], Completion[ErrorCode]]


class _Outcomes(Completion[R], Generic[R]):
    """The outcomes of one produce request.

    The object completes with the value of ``make`` when each outcome is complete. Until then
    ``waiting`` contains the object.
    """

    __slots__ = ("_each", "_left", "_make", "_waiting", "deadline_s", "pending")

    def __init__(
        self,
        pending: Sequence[PendingAppend],
        make: Callable[[list[AppendOutcome]], R],
        deadline_s: float,
        waiting: dict[_Outcomes[Any], None],
        each: Callable[[PendingAppend], None] | None,
    ) -> None:
        super().__init__()
        self.pending = pending
        self._make = make
        self._each = each
        #: Event loop time in seconds at which the wait for directories ends.
        self.deadline_s = deadline_s
        self._waiting = waiting
        waiting[self] = None
        self._left = len(pending)
        for one in pending:
            one.add_done_callback(self._one_ended)
        if not pending:
            self._all_ended()

    def _one_ended(self, one: Completion[AppendOutcome]) -> None:
        if self._each is not None:
            assert isinstance(one, PendingAppend), one
            try:
                self._each(one)
            except Exception as e:
                self.set_exception(e)
        self._left -= 1
        if self._left == 0:
            self._all_ended()

    def _all_ended(self) -> None:
        del self._waiting[self]
        try:
            made = self._make([one.result() for one in self.pending])
        except Exception as e:
            self.set_exception(e)
        else:
            self.set_result(made)


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
        make_executor: MakeExecutor = LogDirExecutor,
        verify: Verify | None = None,
    ) -> None:
        """Create the component with its thread for validation.

        :param max_unpacked_bytes: limit of the bytes of a batch after decompression.
        :param max_records: limit of the records of a batch.
        :param max_checking_bytes: limit of the bytes that wait for the validation thread.
        :param verify: asks a transaction's coordinator; if None, no transaction can begin.
        """
        self._verify = verify
        self._replicas = replicas
        self._clock = clock
        self._topic_configs = topic_configs
        self._metrics = metrics
        metrics.count("BytesInPerSec", 0)
        self._max_unpacked_bytes = max_unpacked_bytes
        self._max_records = max_records
        self._checker = make_executor(
            name="record-validation", clock=clock, max_bytes=max_checking_bytes
        )
        #: Appends that wait until the records of an earlier append to the partition are validated.
        self._queued: dict[TopicPartition, deque[PendingAppend]] = {}
        #: Appends that wait for a transaction's coordinator, per producer, in order.
        self._verifying: dict[_ProducerKey, deque[PendingAppend]] = {}
        #: Number of times that transactional batches were queued again at a directory.
        self._reorders = 0
        self._loop = asyncio.get_running_loop()
        #: Requests with incomplete outcomes, as an ordered set.
        self._waiting: dict[_Outcomes[Any], None] = {}
        #: One timer for all requests, at or before the first deadline.
        self._give_up_timer: asyncio.TimerHandle | None = None
        self._give_up_at_s = math.inf

    def max_batch_bytes(self, topic: str) -> int:
        return self._topic_configs.get(topic).max_message_bytes

    def append_records(
        self,
        topic_partition: TopicPartition,
        records: Buffer | None,
        *,
        acks: int,
        timeout_ms: int,
        leader_epoch: int = ANY_EPOCH,
        transaction: TransactionClaim | None = None,
    ) -> PendingAppend:
        """Queue the batch of one partition. An error becomes the outcome and is never raised.

        :param records: the batch; its buffer must not change until the outcome.
        :param timeout_ms: time limit of the replication.
        :param leader_epoch: the only leader epoch in which the batch may be written.
        :param transaction: the transaction of a transactional batch, which is refused without it.
        """
        pending = PendingAppend(
            topic_partition,
            records or b"",
            acks=acks,
            timeout_ms=timeout_ms,
            expected_epoch=leader_epoch,
            transaction=transaction,
        )
        self._begin(pending)
        return pending

    def append_marker(
        self, topic_partition: TopicPartition, marker: MarkerToWrite, *, timeout_ms: int
    ) -> PendingAppend:
        """Queue a transaction marker. The outcome is complete when the marker is replicated, or on
        an error.
        """
        pending = PendingAppend(topic_partition, timeout_ms=timeout_ms, marker=marker)
        self._begin(pending)
        return pending

    def close(self) -> None:
        """Stop the validation thread. No append may be queued afterwards."""
        self._checker.shutdown(wait=False)
        if self._give_up_timer is not None:
            self._give_up_timer.cancel()

    def outcomes(
        self,
        pending: Sequence[PendingAppend],
        make: Callable[[list[AppendOutcome]], R],
        *,
        suspect_after_ms: int,
        each: Callable[[PendingAppend], None] | None = None,
    ) -> Completion[R]:
        """Return at once a completion of the value that ``make`` returns for all outcomes, in the
        order of ``pending``. It completes with the last outcome.

        :param suspect_after_ms: after this time, appends whose directory has not responded get an
            error.
        :param each: called with every append in the event loop iteration in which it completes,
            before ``make``.
        """
        deadline_s = self._loop.time() + suspect_after_ms / 1000
        outcomes = _Outcomes(pending, make, deadline_s, self._waiting, each)
        if deadline_s < self._give_up_at_s and not outcomes.done():
            self._give_up_at(deadline_s)
        return outcomes

    def _begin(self, pending: PendingAppend) -> None:
        """Queue the append at its directory, or where it must wait first."""
        if pending.done():
            return  # Its deadline passed at the gate.
        try:
            if (queued := self._queued.get(pending.topic_partition)) is not None:
                pending.is_being_checked = True
                queued.append(pending)
                return
            replica = self._replicas.require(pending.topic_partition)
            partition, handle = replica.require_open()
            partition.require_appendable(pending.acks, pending.expected_epoch)
            if replica.gate.is_closed:
                replica.gate.hold(lambda: self._begin(pending))
                return
            if pending.marker is not None:
                writing = self._write_marker(pending, replica, partition, handle)
            else:
                checked = pending.checked or self._check(pending)
                if checked is None:
                    return
                pending.is_being_checked = False
                pending.records, header = checked
                terms = ORDINARY_TERMS
                if header.is_transactional:
                    if self._queue_behind_earlier_batches(pending, header):
                        return
                    terms = _terms_of(pending)
                pending.replica, pending.leader_epoch = replica, partition.leader_epoch
                pending.reorders_seen = self._reorders
                writing = handle.append_as_leader(
                    pending.records, [header], partition.leader_epoch, terms
                )
        except OperatingError as e:
            pending.set_result(AppendOutcome.of_error(e))
            return
        writing.add_done_callback(partial(self._written, pending))
        self._metrics.count("BytesInPerSec", len(pending.records))

    def _write_marker(
        self,
        pending: PendingAppend,
        replica: HostedReplica,
        partition: Partition,
        handle: LogHandle,
    ) -> Completion[AppendResult]:
        assert pending.marker is not None, pending
        producer_id, producer_epoch, marker, version = pending.marker
        pending.is_being_checked = False
        pending.replica, pending.leader_epoch = replica, partition.leader_epoch
        return handle.append_marker(
            producer_id,
            producer_epoch,
            marker,
            transaction_version=version,
            leader_epoch=partition.leader_epoch,
        )

    # -- transactions ---------------------------------------------------------------------------

    def _queue_behind_earlier_batches(self, pending: PendingAppend, header: BatchHeader) -> bool:
        """Queue the append behind batches of its producer that wait for the coordinator.

        Return False, and do nothing, if there are none.
        """
        if (queued := self._verifying.get(_key_of(pending, header))) is None:
            return False
        pending.checked = CheckedBatch(pending.records, header)
        pending.is_being_verified = True
        queued.append(pending)
        return True

    def _came_too_early(self, pending: PendingAppend, error: OperatingError) -> bool:
        """Queue the append again if ``error`` only says that an earlier batch was queued again.

        Return False if the error has another cause. A producer would treat this error as fatal.
        """
        is_gap = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if not is_gap or pending.transaction is None or pending.done():
            return False
        header = read_header(pending.records)
        if self._queue_behind_earlier_batches(pending, header):
            pending.is_written = False
            return True
        if pending.reorders_seen == self._reorders or pending.gaps_met == _MAX_IN_FLIGHT:
            return False
        pending.gaps_met += 1
        pending.is_written = False
        pending.checked = CheckedBatch(pending.records, header)
        self._reorders += 1
        self._begin(pending)
        return True

    def _ask_coordinator(self, pending: PendingAppend, guard: VerificationGuard) -> None:
        """Ask the transaction's coordinator about a batch that would begin a transaction here.

        The batch, and later ones of its producer, wait for the response.
        """
        header, claim = read_header(pending.records), pending.transaction
        if self._verify is None or claim is None:
            pending.set_result(AppendOutcome(ErrorCode.INVALID_TXN_STATE))
            return
        pending.is_written = False
        if self._queue_behind_earlier_batches(pending, header):
            return
        key = _key_of(pending, header)
        self._verifying[key] = deque()
        self._queue_behind_earlier_batches(pending, header)
        asking = self._verify(
            pending.topic_partition, header.producer_id, header.producer_epoch, claim
        )
        asking.add_done_callback(lambda asked: self._verified(key, guard, asked.result()))

    def _verified(self, key: _ProducerKey, guard: VerificationGuard, code: ErrorCode) -> None:
        """Append or refuse the batches of a producer that waited for the coordinator's response."""
        self._reorders += 1
        for one in _by_sequence(self._verifying.pop(key)):
            one.is_being_verified = False
            assert one.transaction is not None, one
            refusal = one.transaction.refusal_of(code)
            if code is ErrorCode.NONE:
                refusal = one.transaction.still_holds()
            if refusal is ErrorCode.NONE:
                one.guard = guard
                self._begin(one)
            elif not one.done():
                one.set_result(
                    AppendOutcome(refusal, f"the transaction's coordinator: {code.name}")
                )

    def _give_up_at(self, at_s: float) -> None:
        if self._give_up_timer is not None:
            self._give_up_timer.cancel()
        self._give_up_at_s = at_s
        self._give_up_timer = self._loop.call_at(at_s, self._give_up)

    def _give_up(self) -> None:
        """Complete the appends whose directory has not responded by their deadline."""
        self._give_up_timer, self._give_up_at_s = None, math.inf
        # A timer may fire early by the resolution of the event loop's clock.
        now_s = self._loop.time() + _TIMER_SLACK_S
        for outcomes in [one for one in self._waiting if one.deadline_s <= now_s]:
            outcomes.deadline_s = math.inf
            _give_up(outcomes.pending)
        next_s = min((one.deadline_s for one in self._waiting), default=math.inf)
        if next_s < math.inf:
            self._give_up_at(next_s)

    # -- the records ----------------------------------------------------------------------------

    def _check(self, pending: PendingAppend) -> CheckedBatch | None:
        """Return the validated batch.

        None if a thread validates it: :meth:`_checked` then continues the append.

        :raises OperatingError: the batch is invalid.
        """
        config = self._topic_configs.get(pending.topic_partition.topic)
        records = pending.records
        header = validate(records, max_batch_bytes=config.max_message_bytes)
        rules = self._rules(config)
        checked = validate_quickly(records, header, rules)
        if checked is None:
            checking: Completion[CheckedBatch] = self._checker.begin_op(
                lambda: validate_records(records, header, rules), size_bytes=len(records)
            )
            pending.is_being_checked = True
            self._queued[pending.topic_partition] = deque()
            checking.add_done_callback(lambda check: self._checked(pending, check))
        return checked

    def _rules(self, config: TopicConfig) -> RecordRules:
        return record_rules(
            config,
            self._clock.possible_now(),
            max_unpacked_bytes=self._max_unpacked_bytes,
            max_records=self._max_records,
        )

    def _checked(self, pending: PendingAppend, check: Completion[CheckedBatch]) -> None:
        """Continue with an append that the thread validated, then with those that waited
        behind it."""
        queued = self._queued.pop(pending.topic_partition)
        error = check.exception()
        if error is None:
            pending.checked = check.result()
            self._begin(pending)
        elif isinstance(error, OperatingError):
            pending.set_result(AppendOutcome.of_error(error))
        for one in queued:
            self._begin(one)
        if error is not None and not isinstance(error, OperatingError):
            raise error

    # -- the directory and the followers --------------------------------------------------------

    def _written(self, pending: PendingAppend, append: Completion[AppendResult]) -> None:
        """Handle the result of the append in the directory's thread."""
        pending.is_written = True
        error = append.exception()
        if isinstance(error, NotVerifiedError) and not pending.done():
            self._ask_coordinator(pending, error.guard)
            return
        if isinstance(error, OperatingError) and self._came_too_early(pending, error):
            return
        if isinstance(error, OperatingError):
            pending.set_result(AppendOutcome.of_error(error))
            return
        result, replica = append.result(), pending.replica
        assert replica is not None, pending
        size_bytes = MARKER_BYTES if pending.marker is not None else len(pending.records)
        if not result.duplicate:
            replica.count_appended(size_bytes)
        if not self._replicas.is_current(replica):
            pending.set_result(AppendOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        try:
            partition, handle = replica.require_open()
        except OperatingError as e:
            pending.set_result(AppendOutcome.of_error(e))
            return
        partition.note_idle_followers(self._clock.now_ms())
        has_committed = partition.log_end_moved(handle.log_end_offset)
        # Answer the producer first: consumers that wait for the records wake in the same event loop
        # iteration.
        self._answer(pending, partition, result)
        self._replicas.log_end_moved(replica, size_bytes, has_committed=has_committed)

    def _answer(self, pending: PendingAppend, partition: Partition, result: AppendResult) -> None:
        """Complete an append that is in the log: now, or with ``acks=all`` when it is
        replicated."""
        if not partition.is_leader or partition.leader_epoch != pending.leader_epoch:
            pending.set_result(AppendOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER, is_in_log=True))
            return
        outcome = AppendOutcome(
            ErrorCode.NONE,
            None,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
        )
        if pending.acks == ACKS_ALL:
            self._replicate(pending, partition, outcome, result.last_offset + 1)
        else:
            pending.set_result(outcome)

    def _replicate(
        self,
        pending: PendingAppend,
        partition: Partition,
        outcome: AppendOutcome,
        required_offset: int,
    ) -> None:
        code = partition.acks_state(required_offset)
        if code is not None:
            is_replicated = code is ErrorCode.NONE
            pending.set_result(outcome if is_replicated else AppendOutcome(code, is_in_log=True))
            return
        try:
            waiting = self._replicas.produces.wait(
                pending.topic_partition, required_offset, pending.timeout_ms
            )
        except OperatingError as e:
            pending.set_result(AppendOutcome.of_error(e)._replace(is_in_log=True))
            return

        def replicated(wait: Completion[ErrorCode]) -> None:
            code = wait.result()
            is_replicated = code is ErrorCode.NONE
            pending.set_result(outcome if is_replicated else AppendOutcome(code, is_in_log=True))

        waiting.add_done_callback(replicated)


def _give_up(pending: Sequence[PendingAppend]) -> None:
    """Complete with an error the appends whose directory has not responded."""
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
        elif one.is_being_verified:
            late = AppendOutcome(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"the transaction of the records for {one.topic_partition} could not be verified "
                "in time",
            )
        one.set_result(late)


def _key_of(pending: PendingAppend, header: BatchHeader) -> _ProducerKey:
    return pending.topic_partition, header.producer_id, header.producer_epoch


def _by_sequence(row: Sequence[PendingAppend]) -> list[PendingAppend]:
    """Return a producer's appends in the order of their sequence numbers, from the first append on.

    Responses of the directory's thread can be out of order.
    """
    sequences = {one: read_header(one.records).base_sequence for one in row}
    first = sequences[row[0]]
    return sorted(row, key=lambda one: (sequences[one] - first) & MAX_SEQUENCE)


def _terms_of(pending: PendingAppend) -> ProducerTerms:
    """Return the terms under which the log accepts a transactional batch.

    :raises OperatingError: TRANSACTIONAL_ID_AUTHORIZATION_FAILED: the request has no transactional
        id.
    """
    claim = pending.transaction
    if claim is None:
        raise OperatingError(
            "transactional records in a request without a transactional id",
            code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        )
    return ProducerTerms(
        pending.guard,
        supports_epoch_bump=claim.supports_epoch_bump,
        checks_sequence=not claim.is_from_coordinator,
    )
