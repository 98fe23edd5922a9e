"""LOOP. Appending as the leader: from a producer's bytes to an outcome that can be answered.

The stairs of one partition in one produce request:

1. role, epoch, in-sync replicas and the records are checked, and the append is queued for the
   directory's thread, all without an ``await``, so that pipelined requests keep their order; while
   the replica changes its directory all this waits at its gate, in order;
   records that would hold up the loop are checked in a thread for all of them, and what comes for
   that partition meanwhile waits after them, in order;
2. when the append is done the role is checked again, because it may have moved meanwhile;
3. with ``acks=all`` the outcome waits for the high watermark.

* An outcome is a value, never an exception: an abandoned one leaves nothing unretrieved.
* What an append did to log end and high watermark takes effect even if nobody waits any more.
* A directory that does not answer in ``log.dir.io.suspect.ms`` costs its partitions an error of
  their own, and the rest of the request goes through.
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

#: A partition, a producer id and an epoch.
_ProducerKey = tuple[TopicPartition, int, int]
#: An idempotent producer has no more requests on their way to a broker.
_MAX_IN_FLIGHT: Final = 5
_TIMER_SLACK_S: Final = 0.001

R = TypeVar("R")


#: Asks the coordinator of a transaction about a partition, a producer id and an epoch.
Verify = Callable[[TopicPartition, int, int, TransactionClaim], Completion[ErrorCode]]


class _Outcomes(Completion[R], Generic[R]):
    """All of one produce request; done when each of them is, and in ``waiting`` until then.

    Its value is what ``make`` makes of them.
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
        #: Loop time from which on nobody waits for a directory any more.
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
        """``max_checking_bytes`` may wait for the thread that checks large batches.

        Without ``verify`` no transaction can begin.
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
        #: What waits until the records of an earlier append of its partition were checked.
        self._queued: dict[TopicPartition, deque[PendingAppend]] = {}
        #: What waits for the coordinator of a transaction, by partition and producer, in order.
        self._verifying: dict[_ProducerKey, deque[PendingAppend]] = {}
        #: How often batches of transactions went to a directory's queue once more.
        self._reorders = 0
        self._loop = asyncio.get_running_loop()
        #: Requests with outcomes that are not there yet; an ordered set.
        self._waiting: dict[_Outcomes[Any], None] = {}
        #: One timer for them all, at or before the first deadline.
        self._give_up_timer: asyncio.TimerHandle | None = None
        self._give_up_at_s = math.inf

    def append(
        self,
        topic_partition: TopicPartition,
        records: Buffer | None,
        *,
        acks: int,
        timeout_ms: int,
        leader_epoch: int = ANY_EPOCH,
        transaction: TransactionClaim | None = None,
    ) -> PendingAppend:
        """Queue one partition's batches; never raises an :class:`OperatingError`.

        :param leader_epoch: the only one in which it may be written.
        :param transaction: what transactional batches belong to; without it there may be none.
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
        """Queue the end of a transaction; its outcome comes when it is replicated."""
        pending = PendingAppend(topic_partition, timeout_ms=timeout_ms, marker=marker)
        self._begin(pending)
        return pending

    def close(self) -> None:
        """Let the thread end; nothing may be appended any more."""
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
        """Complete with ``make`` of all outcomes, in order; each append ends at its deadline.

        :param each: called with every append in the event loop iteration in which it completes,
            before ``make``.
        """
        deadline_s = self._loop.time() + suspect_after_ms / 1000
        outcomes = _Outcomes(pending, make, deadline_s, self._waiting, each)
        if deadline_s < self._give_up_at_s and not outcomes.done():
            self._give_up_at(deadline_s)
        return outcomes

    def _begin(self, pending: PendingAppend) -> None:
        """As far as it goes now: to the directory's queue, or to where it has to wait before."""
        if pending.done():
            return  # It was given up at the gate.
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
                    if self._waits_for_others(pending, header):
                        return
                    terms = _terms_of(pending)
                pending.replica, pending.leader_epoch = replica, partition.leader_epoch
                pending.reorders_seen = self._reorders
                writing = handle.append_as_leader(
                    pending.records, [header], partition.leader_epoch, terms
                )
        except OperatingError as e:
            pending.set_result(AppendOutcome.of(e))
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

    def _waits_for_others(self, pending: PendingAppend, header: BatchHeader) -> bool:
        """Whether earlier batches of its producer wait for their coordinator, and this one too."""
        if (queued := self._verifying.get(_key_of(pending, header))) is None:
            return False
        pending.checked = CheckedBatch(pending.records, header)
        pending.is_being_verified = True
        queued.append(pending)
        return True

    def _came_too_early(self, pending: PendingAppend, error: OperatingError) -> bool:
        """Whether it was in the directory's queue when one before it had to go once more.

        Then it goes after that one: its producer would take an error for the end.
        """
        is_gap = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if not is_gap or pending.transaction is None or pending.done():
            return False
        header = read_header(pending.records)
        if self._waits_for_others(pending, header):
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
        """The batch would begin a transaction: it waits until that is known to be one."""
        header, claim = read_header(pending.records), pending.transaction
        if self._verify is None or claim is None:
            pending.set_result(AppendOutcome(ErrorCode.INVALID_TXN_STATE))
            return
        pending.is_written = False
        if self._waits_for_others(pending, header):
            return
        key = _key_of(pending, header)
        self._verifying[key] = deque()
        self._waits_for_others(pending, header)
        asking = self._verify(
            pending.topic_partition, header.producer_id, header.producer_epoch, claim
        )
        asking.add_done_callback(lambda asked: self._verified(key, guard, asked.result()))

    def _verified(self, key: _ProducerKey, guard: VerificationGuard, code: ErrorCode) -> None:
        """The coordinator has answered, for all that wait for it."""
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
        """Answer for directories that have not answered by now."""
        self._give_up_timer, self._give_up_at_s = None, math.inf
        # Timers may be early by a loop's own resolution.
        now_s = self._loop.time() + _TIMER_SLACK_S
        for outcomes in [one for one in self._waiting if one.deadline_s <= now_s]:
            outcomes.deadline_s = math.inf
            _give_up(outcomes.pending)
        next_s = min((one.deadline_s for one in self._waiting), default=math.inf)
        if next_s < math.inf:
            self._give_up_at(next_s)

    # -- the records ----------------------------------------------------------------------------

    def _check(self, pending: PendingAppend) -> CheckedBatch | None:
        """None if that takes longer; then it is tried again when it is done."""
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
        """The thread has answered: this one goes on, and then what waited after it."""
        queued = self._queued.pop(pending.topic_partition)
        error = check.exception()
        if error is None:
            pending.checked = check.result()
            self._begin(pending)
        elif isinstance(error, OperatingError):
            pending.set_result(AppendOutcome.of(error))
        for one in queued:
            self._begin(one)
        if error is not None and not isinstance(error, OperatingError):
            raise error

    # -- the directory and the followers --------------------------------------------------------

    def _written(self, pending: PendingAppend, append: Completion[AppendResult]) -> None:
        """The directory's thread has answered."""
        pending.is_written = True
        error = append.exception()
        if isinstance(error, NotVerifiedError) and not pending.done():
            self._ask_coordinator(pending, error.guard)
            return
        if isinstance(error, OperatingError) and self._came_too_early(pending, error):
            return
        if isinstance(error, OperatingError):
            pending.set_result(AppendOutcome.of(error))
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
            pending.set_result(AppendOutcome.of(e))
            return
        partition.note_idle_followers(self._clock.now_ms())
        has_committed = partition.log_end_moved(handle.log_end_offset)
        # The producer first: whoever waits for its records is woken in the same turn.
        self._answer(pending, partition, result)
        self._replicas.log_end_moved(replica, size_bytes, has_committed=has_committed)

    def _answer(self, pending: PendingAppend, partition: Partition, result: AppendResult) -> None:
        """What is in the log is answered now, or when it is replicated."""
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
            pending.set_result(AppendOutcome.of(e)._replace(is_in_log=True))
            return

        def replicated(wait: Completion[ErrorCode]) -> None:
            code = wait.result()
            is_replicated = code is ErrorCode.NONE
            pending.set_result(outcome if is_replicated else AppendOutcome(code, is_in_log=True))

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
    """Of one producer, as they follow the first: their answers may have come in another order."""
    sequences = {one: read_header(one.records).base_sequence for one in row}
    first = sequences[row[0]]
    return sorted(row, key=lambda one: (sequences[one] - first) & MAX_SEQUENCE)


def _terms_of(pending: PendingAppend) -> ProducerTerms:
    """:raises OperatingError: nobody says whose transaction the batch belongs to."""
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
