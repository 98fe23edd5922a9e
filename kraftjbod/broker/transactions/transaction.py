"""PURE. ``Transaction``: the state machine of one transactional id at its coordinator.

``handle(event, now_ms) -> list[TransactionAction]``; ``now_ms`` is wall time.

* A state change is written first and takes effect when it is replicated. One write is in flight at
  a time, and other requests meanwhile get CONCURRENT_TRANSACTIONS.
* One record, ``Prepare…``, decides the end of a transaction. Afterwards only its consequences can
  follow: markers in all partitions, then ``Complete…``.
* The epoch distinguishes producers with the same transactional id. A newer producer or a timeout
  increments it: producers with an older epoch are fenced, here and by the markers in every
  partition. With ``transaction.version`` 2 each transaction increments it (KIP-890), so that a
  late request cannot become part of the next transaction.
* Client epochs go up to 32766, and one more is used for fencing. When they are exhausted, the
  producer gets another id: at once from InitProducerId, or at the end of its transaction.

Rules and codes are Kafka's (TransactionCoordinator, TransactionMetadata). Fencing is one step here:
Kafka first records the fencing and then aborts, while here the abort record has the new epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, assert_never

from kraftjbod.broker.transactions.transaction_events import (
    BUMPING_VERSION,
    AddRequested,
    Answer,
    EndRequested,
    Expired,
    InitRequested,
    Marked,
    Overdue,
    Resumed,
    ResumeLater,
    SendMarkers,
    Token,
    TransactionAction,
    TransactionAnswer,
    TransactionEvent,
    Unloaded,
    Write,
    Written,
)
from kraftjbod.broker.transactions.transaction_records import (
    NO_EPOCH,
    NO_PRODUCER,
    NO_TIME,
    TransactionMetadata,
    TransactionState,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition

LAST_CLIENT_EPOCH: Final = 32_766
LAST_EPOCH: Final = 32_767
_NOBODY: Final = object()


class Transaction:
    def __init__(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        """Create the state machine.

        :param metadata: as last written. The metadata of a new id has no epoch.
        """
        self.transactional_id = transactional_id
        self.metadata = metadata
        #: Partitions without a marker yet.
        self.unmarked = set(metadata.partitions if metadata.state.is_ending else ())
        #: It may be removed: its first write failed, or the id has expired.
        self.is_void = False
        #: The pending write (None: a deletion), and the request and answer that complete with it.
        self._is_writing = False
        self._next: TransactionMetadata | None = None
        self._waiting: Token = _NOBODY
        #: A failed write may be in the log nevertheless.
        self._is_in_doubt = False
        self._answer = TransactionAnswer()
        #: The epoch before the last requested increment; not persisted.
        self._last_epoch = NO_EPOCH
        self._next_last_epoch = NO_EPOCH
        self._now_ms = 0
        self._actions: list[TransactionAction] = []

    def __repr__(self) -> str:
        is_writing = " writing" if self._is_writing else ""
        return f"<Transaction {self.transactional_id} {self.state.title}{is_writing}>"

    @property
    def state(self) -> TransactionState:
        return self.metadata.state

    @property
    def is_exhausted(self) -> bool:
        """Whether no epoch is left, so that the next increment needs another producer id."""
        return self.metadata.producer_epoch >= LAST_CLIENT_EPOCH

    def is_overdue(self, now_ms: int) -> bool:
        """Return whether the transaction has been open for longer than its timeout; False while a
        change is being written. ``now_ms`` is wall time.
        """
        kept, is_open = self.metadata, self.state is TransactionState.ONGOING
        return is_open and not self._is_writing and kept.started_ms + kept.timeout_ms < now_ms

    def is_expired(self, now_ms: int, kept_ms: int) -> bool:
        """Return whether the transactional id has been unused for ``kept_ms``; False while a change
        is being written. ``now_ms`` is wall time.
        """
        is_unused = self.state.is_idle and not self._is_writing
        return is_unused and self.metadata.updated_ms <= now_ms - kept_ms

    def handle(self, event: TransactionEvent, now_ms: int) -> list[TransactionAction]:
        self._now_ms = now_ms
        match event:
            case InitRequested():
                self._init(event)
            case AddRequested():
                self._add(event)
            case EndRequested():
                self._end(event)
            case Overdue():
                if self.is_overdue(now_ms):
                    self._fence(_NOBODY, event.version, event.fresh_producer_id)
            case Expired(kept_ms):
                if self.is_expired(now_ms, kept_ms):
                    self._write(None)
            case Written(code):
                self._written(code)
            case Marked(partitions):
                self.unmarked -= partitions
                self._complete_if_marked()
            case Resumed():
                self._resume()
            case Unloaded():
                self._say(self._waiting, ErrorCode.NOT_COORDINATOR)
                self._waiting = _NOBODY
            case _:
                assert_never(event)
        actions, self._actions = self._actions, []
        return actions

    def verify(
        self, producer_id: int, producer_epoch: int, partitions: frozenset[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return NONE for each partition that is part of the producer's open transaction, else an
        error."""
        code = self._check_producer(producer_id, producer_epoch)
        if code is ErrorCode.NONE and self.state.is_ending:
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        if code is not ErrorCode.NONE:
            return dict.fromkeys(partitions, code)
        known = self.metadata.partitions
        return {
            one: ErrorCode.NONE if one in known else ErrorCode.TRANSACTION_ABORTABLE
            for one in partitions
        }

    @property
    def _is_busy(self) -> bool:
        """Whether a write is in flight or the transaction is ending.

        Requests are then answered CONCURRENT_TRANSACTIONS. From EndTxn 5 on, the producer has its
        next epoch before the markers are written. A request with that epoch must not act on the old
        transaction.
        """
        return self._is_writing or self.state.is_ending

    def _check_producer(self, producer_id: int, producer_epoch: int) -> ErrorCode:
        if producer_id != self.metadata.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer_epoch != self.metadata.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    # --- InitProducerId --------------------------------------------------------------------------

    def _init(self, event: InitRequested) -> None:
        if self._is_busy:
            self._say(event.token, ErrorCode.CONCURRENT_TRANSACTIONS)
        elif event.expected is not None and not self._may_continue(*event.expected):
            self._say(event.token, ErrorCode.PRODUCER_FENCED)
        elif self.state is TransactionState.ONGOING:
            # The retried request finds the transaction ended and gets its own epoch.
            self._fence(
                event.token,
                event.version,
                event.fresh_producer_id,
                TransactionAnswer(code=ErrorCode.CONCURRENT_TRANSACTIONS),
            )
        else:
            self._begin_producer(event)

    def _may_continue(self, producer_id: int, producer_epoch: int) -> bool:
        kept = self.metadata
        if kept.producer_epoch == NO_EPOCH or producer_id == kept.producer_id:
            return True
        was_used_up = producer_epoch >= LAST_CLIENT_EPOCH
        return producer_id == kept.previous_producer_id and was_used_up

    def _begin_producer(self, event: InitRequested) -> None:
        kept = self.metadata
        expected_epoch = None if event.expected is None else event.expected[1]
        producer_id, epoch, previous_id = (
            kept.producer_id,
            kept.producer_epoch + 1,
            kept.previous_producer_id,
        )
        # Stored so that a repeated request succeeds; a new producer clears it.
        last_epoch = kept.producer_epoch
        if expected_epoch is None:
            last_epoch = NO_EPOCH
        elif expected_epoch != kept.producer_epoch and kept.producer_epoch != NO_EPOCH:
            if expected_epoch != self._last_epoch:
                self._say(event.token, ErrorCode.PRODUCER_FENCED)
                return
            epoch, last_epoch = kept.producer_epoch, self._last_epoch
        if self.is_exhausted and epoch != kept.producer_epoch:
            if event.fresh_producer_id == NO_PRODUCER:
                self._say(event.token, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                return
            producer_id, epoch, previous_id = event.fresh_producer_id, 0, kept.producer_id
        self._next_last_epoch = last_epoch
        self._write(
            replace(
                kept,
                producer_id=producer_id,
                producer_epoch=epoch,
                previous_producer_id=previous_id,
                next_producer_id=NO_PRODUCER,
                timeout_ms=event.timeout_ms,
                state=TransactionState.EMPTY,
                partitions=frozenset(),
                updated_ms=self._now_ms,
                started_ms=NO_TIME,
            ),
            event.token,
            TransactionAnswer(producer_id=producer_id, producer_epoch=epoch),
        )

    # --- AddPartitionsToTxn ----------------------------------------------------------------------

    def _add(self, event: AddRequested) -> None:
        kept = self.metadata
        code = ErrorCode.CONCURRENT_TRANSACTIONS
        if not self._is_busy:
            code = self._check_producer(event.producer_id, event.producer_epoch)
        is_open = self.state is TransactionState.ONGOING
        is_known = is_open and event.partitions <= kept.partitions and not self._is_in_doubt
        if code is not ErrorCode.NONE or is_known:
            self._say(event.token, code)
            return
        self._next_last_epoch = self._last_epoch
        self._write(
            replace(
                kept,
                state=TransactionState.ONGOING,
                partitions=event.partitions | (kept.partitions if is_open else frozenset()),
                updated_ms=self._now_ms,
                started_ms=kept.started_ms if is_open else self._now_ms,
                client_version=event.version,
            ),
            event.token,
        )

    # --- the end ---------------------------------------------------------------------------------

    def _end(self, event: EndRequested) -> None:
        bumps = event.version >= BUMPING_VERSION
        code = self._check_end(event) if bumps else self._check_plain_end(event)
        if code is not None:
            answer = TransactionAnswer(code=code)
            if bumps and code is ErrorCode.NONE:
                kept = self.metadata
                answer = replace(
                    answer, producer_id=kept.producer_id, producer_epoch=kept.producer_epoch
                )
            self._actions.append(Answer(event.token, answer))
            return
        state = TransactionState.PREPARE_ABORT
        if event.commits:
            state = TransactionState.PREPARE_COMMIT
        self._decide(state, event.token, event.version, event.fresh_producer_id)

    def _check_plain_end(self, event: EndRequested) -> ErrorCode | None:
        """Return the code to answer EndTxn with at once; None if the end is to be decided now.

        For versions in which the end of a transaction does not increment the epoch.
        """
        code = self._check_producer(event.producer_id, event.producer_epoch)
        if code is not ErrorCode.NONE:
            return code
        if self._is_busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        match self.state:
            case TransactionState.ONGOING:
                return None
            case TransactionState.EMPTY:
                return ErrorCode.INVALID_TXN_STATE
        return self._code_for_repeated_end(event)

    def _check_end(self, event: EndRequested) -> ErrorCode | None:
        """As :meth:`_check_plain_end`, for versions in which each end increments the epoch."""
        kept = self.metadata
        if self._is_busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        is_of_former = (
            event.producer_id == kept.previous_producer_id
            and event.producer_epoch == LAST_CLIENT_EPOCH
            and kept.producer_epoch == 0
        )
        if event.producer_id != kept.producer_id and not is_of_former:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        is_same = event.producer_epoch == kept.producer_epoch and not is_of_former
        is_again = is_of_former or event.producer_epoch + 1 == kept.producer_epoch
        match self.state:
            case TransactionState.COMPLETE_COMMIT | TransactionState.COMPLETE_ABORT:
                # No client has the last epoch: it means that the producer was fenced.
                is_fenced = kept.producer_epoch == LAST_EPOCH and not is_same
                is_valid = (is_same or is_again) and not is_fenced
            case _:
                is_valid = is_same
        if not is_valid:
            return ErrorCode.PRODUCER_FENCED
        if self.state is TransactionState.ONGOING:
            return None
        if is_again:
            return self._code_for_repeated_end(event)
        # No transaction is open: an abort succeeds nevertheless and increments the epoch.
        return ErrorCode.INVALID_TXN_STATE if event.commits else None

    def _code_for_repeated_end(self, event: EndRequested) -> ErrorCode:
        """Return the code for a repeated EndTxn: NONE if the transaction ended in the requested
        way."""
        is_same = event.commits == (self.state is TransactionState.COMPLETE_COMMIT)
        return ErrorCode.NONE if is_same else ErrorCode.INVALID_TXN_STATE

    def _fence(
        self,
        token: Token,
        version: int,
        fresh_producer_id: int,
        answer: TransactionAnswer | None = None,
    ) -> None:
        self._decide(
            TransactionState.PREPARE_ABORT,
            token,
            version,
            fresh_producer_id,
            answer or TransactionAnswer(),
        )

    def _decide(
        self,
        state: TransactionState,
        token: Token,
        version: int,
        fresh_producer_id: int,
        fenced_with: TransactionAnswer | None = None,
    ) -> None:
        """Write the decision how the transaction ends, or answer that a producer id is missing.

        :param state: ``PREPARE_COMMIT`` or ``PREPARE_ABORT``.
        :param fenced_with: the answer if the producer is fenced; None if the producer requested the
            end.
        """
        kept = self.metadata
        bumps = version >= BUMPING_VERSION
        next_id = NO_PRODUCER
        if bumps and self.is_exhausted:
            if fresh_producer_id == NO_PRODUCER:
                self._say(token, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                return
            next_id = fresh_producer_id
        takes_further = bumps or fenced_with is not None
        epoch = min(kept.producer_epoch + takes_further, LAST_EPOCH)
        answer = fenced_with or TransactionAnswer()
        if bumps and fenced_with is None:
            has_next = next_id != NO_PRODUCER
            answer = TransactionAnswer(
                producer_id=next_id if has_next else kept.producer_id,
                producer_epoch=0 if has_next else epoch,
            )
        self._next_last_epoch = self._last_epoch
        if takes_further:
            # With an increment at each end, a producer whose transaction timed out may continue: no
            # other producer has the next epoch, else the epoch would differ.
            self._next_last_epoch = kept.producer_epoch if bumps else NO_EPOCH
        is_open = self.state is TransactionState.ONGOING
        self._write(
            replace(
                kept,
                state=state,
                producer_epoch=epoch,
                next_producer_id=next_id,
                partitions=kept.partitions if is_open else frozenset(),
                updated_ms=self._now_ms,
                started_ms=kept.started_ms if is_open else self._now_ms,
                client_version=version,
            ),
            token,
            answer,
        )

    def _complete_if_marked(self) -> None:
        if self.unmarked or self._is_writing or not self.state.is_ending:
            return
        kept = self.metadata
        is_commit = self.state is TransactionState.PREPARE_COMMIT
        done = replace(
            kept,
            state=TransactionState.COMPLETE_COMMIT
            if is_commit
            else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            updated_ms=self._now_ms,
        )
        self._next_last_epoch = self._last_epoch
        if kept.next_producer_id != NO_PRODUCER:
            self._next_last_epoch = NO_EPOCH
            done = replace(
                done,
                producer_id=kept.next_producer_id,
                producer_epoch=0,
                previous_producer_id=kept.producer_id,
                next_producer_id=NO_PRODUCER,
            )
        self._write(done)

    def _resume(self) -> None:
        if not self.state.is_ending or self._is_writing:
            return
        if self.unmarked:
            self._actions.append(SendMarkers(self.metadata))
        self._complete_if_marked()

    # --- writing ---------------------------------------------------------------------------------

    def _write(
        self,
        metadata: TransactionMetadata | None,
        token: Token = _NOBODY,
        answer: TransactionAnswer | None = None,
    ) -> None:
        assert not self._is_writing, self
        self._is_writing, self._next = True, metadata
        self._waiting, self._answer = token, answer or TransactionAnswer()
        self._actions.append(Write(metadata))

    def _written(self, code: ErrorCode) -> None:
        assert self._is_writing, self
        token, answer, written = self._waiting, self._answer, self._next
        self._is_writing, self._next, self._waiting = False, None, _NOBODY
        self._is_in_doubt = code is not ErrorCode.NONE
        if code is not ErrorCode.NONE:
            self.is_void = self.metadata.producer_epoch == NO_EPOCH
            self._say(token, code)
            if self.state.is_ending:
                self._actions.append(ResumeLater())
            return
        if written is None:
            self.is_void = True
            return
        self.metadata, self._last_epoch = written, self._next_last_epoch
        if token is not _NOBODY:
            self._actions.append(Answer(token, answer))
        if self.state.is_ending:
            self.unmarked = set(written.partitions)
            self._resume()

    def _say(self, token: Token, code: ErrorCode) -> None:
        if token is not _NOBODY:
            self._actions.append(Answer(token, TransactionAnswer(code=code)))
