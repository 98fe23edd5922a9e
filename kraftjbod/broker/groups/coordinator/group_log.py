"""LOOP. ``GroupLog``: appends the facts of groups to the led partition.

A fact takes effect when it is replicated. Every append names the coordinator's leader epoch, so
that a record of one leadership is never appended in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kraftjbod.broker.groups.coordinator.led_groups import LedGroups, Phase
from kraftjbod.broker.groups.records.group_records import Fact, record_of
from kraftjbod.broker.internal.batched_appends import BatchedAppends
from kraftjbod.broker.internal.coordinators import code_of_write
from kraftjbod.broker.internal.internal_producer import InternalProducer
from kraftjbod.broker.replicas.pending_append import AppendOutcome, TransactionClaim
from kraftjbod.core.errors import ErrorCode, LocalProtocolError
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock
from kraftjbod.protocol.record_batch import NO_PRODUCER_ID
from kraftjbod.protocol.records import Record, build_batch

_NO_PRODUCER: Final = (NO_PRODUCER_ID, -1)
#: Codes after which the batch may be in the log.
_UNKNOWN: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class Written(NamedTuple):
    """The result of a write.

    ``code`` is the code for the client, ``base_offset`` the offset of the first record on success.
    ``may_be_in_log``: the records may be in the log although the write failed. ``is_too_large``:
    the log does not accept batches of that size.
    """

    code: ErrorCode
    may_be_in_log: bool
    base_offset: int = -1
    is_too_large: bool = False


class GroupLog:
    def __init__(self, *, producer: InternalProducer, clock: Clock, timeout_ms: int) -> None:
        self._producer = producer
        self._appends = BatchedAppends(producer, timeout_ms=timeout_ms)
        self._clock = clock
        self._timeout_ms = timeout_ms

    def write(self, led: LedGroups, facts: Sequence[Fact]) -> Completion[ErrorCode]:
        """Append ``facts`` and apply them to ``led`` once they are replicated.

        Completes with NONE, or with the error code for the client; then nothing was applied. A
        write that timed out may nevertheless be in the log. A name that is too long for a record
        gives INVALID_REQUEST.
        """
        wall_ms = self._clock.wall_ms()
        try:
            records = [record_of(fact, wall_ms) for fact in facts]
        except LocalProtocolError:
            # A name in the request is too long for a record.
            return Completion.of(ErrorCode.INVALID_REQUEST)
        return self._append(led, records).map(_taker(led, facts, NO_PRODUCER_ID))

    def write_records(self, led: LedGroups, records: Sequence[Record]) -> Completion[Written]:
        """Append ``records`` as one batch. The caller applies the facts that they encode."""
        return self._append(led, records)

    def write_encoded(
        self,
        led: LedGroups,
        facts: Sequence[Fact],
        records: Sequence[Record],
        producer: tuple[int, int] = _NO_PRODUCER,
        claim: TransactionClaim | None = None,
    ) -> Completion[ErrorCode]:
        """As :meth:`write`, with ``records`` that encode ``facts`` one to one.

        :param producer: producer id and epoch of the transaction.
        :param claim: the transaction; its records form a separate transactional batch. None appends
            ordinary records; the producer id is then only passed to the groups in memory.
        """
        taker = _taker(led, facts, producer[0])
        return self._append(led, records, producer, claim).map(taker)

    def _append(
        self,
        led: LedGroups,
        records: Sequence[Record],
        producer: tuple[int, int] = _NO_PRODUCER,
        claim: TransactionClaim | None = None,
    ) -> Completion[Written]:
        if claim is None:
            return self._appends.append_records(
                led.topic_partition, records, leader_epoch=led.leader_epoch
            ).map(_written)
        # A separate batch: it belongs to its producer and follows the earlier records.
        self._appends.flush(led.topic_partition)
        batch = build_batch(
            records,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=0,
            is_transactional=True,
        )
        return self._producer.append_records(
            led.topic_partition,
            batch,
            leader_epoch=led.leader_epoch,
            timeout_ms=self._timeout_ms,
            transaction=claim,
        ).map(_written)


def _taker(
    led: LedGroups, facts: Sequence[Fact], producer_id: int
) -> Callable[[Written], ErrorCode]:
    def replicated(written: Written) -> ErrorCode:
        if written.code is not ErrorCode.NONE:
            return written.code
        if led.phase is Phase.ENDED:
            return ErrorCode.NOT_COORDINATOR
        for offset, fact in enumerate(facts, written.base_offset):
            led.groups.take(fact, offset, producer_id)
        return ErrorCode.NONE

    return replicated


def _written(outcome: AppendOutcome) -> Written:
    may_be_in_log = outcome.is_in_log or outcome.code in _UNKNOWN
    is_too_large = outcome.code is ErrorCode.MESSAGE_TOO_LARGE
    code = code_of_write(outcome.code)
    return Written(code, may_be_in_log, outcome.base_offset, is_too_large)
