"""LOOP. ``TransactionCoordinator``: transactions of the led partitions of ``__transaction_state``.

* A partition of that topic is loaded when this broker becomes its leader, and dropped at the end of
  the leadership. Requests for other or unloaded partitions are refused with an error code.
* A change is appended first and takes effect when it is replicated. A record appended in one
  leadership is never part of another one. A response reports only records in the log.
* If another broker may be coordinator by now, a record is appended before a response from memory:
  a replaced coordinator cannot append.
* A transaction whose end was decided is ended in all its partitions by the coordinator of that
  time: after a load its markers are sent again, with the coordinator's newer epoch.
* Transactions that are open for too long are aborted and unused ids expire, both at intervals.

transaction.py has the state machine of a transactional id, marker_queue.py the delivery of markers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, assert_never

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.internal.batched_appends import BatchedAppends
from kraftjbod.broker.internal.coordinators import code_of_write, partition_of
from kraftjbod.broker.internal.internal_producer import InternalProducer
from kraftjbod.broker.internal.internal_reader import InternalReader
from kraftjbod.broker.replicas.leaderships import Leadership
from kraftjbod.broker.replicas.pending_append import AppendOutcome
from kraftjbod.broker.transactions.marker_queue import Ending, Outcome
from kraftjbod.broker.transactions.marker_sender import MarkerSender
from kraftjbod.broker.transactions.transaction import Transaction
from kraftjbod.broker.transactions.transaction_events import (
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
    TransactionAction,
    TransactionAnswer,
    TransactionEvent,
    Unloaded,
    Write,
    Written,
)
from kraftjbod.broker.transactions.transaction_records import (
    TRANSACTIONS_TOPIC,
    TransactionFact,
    TransactionMetadata,
    TransactionState,
    fact_of,
    record_of,
)
from kraftjbod.broker.transactions.transaction_table import TransactionTable
from kraftjbod.core.errors import CorruptRecordError, ErrorCode, LocalProtocolError, OperatingError
from kraftjbod.core.ids import LeaderEpoch, TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock, ExponentialBackoff
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.metadata_version import TRANSACTION_VERSION
from kraftjbod.core.telemetry import Metrics, get_logger

_RESUME_AFTER_S: Final = 0.1
_ENDINGS: Final = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
#: An empty fact: no transaction has this id.
_NOTHING: Final = TransactionFact("", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    id_expiration_ms: int
    abort_interval_ms: int
    expiry_interval_ms: int
    max_ids_per_partition: int
    write_timeout_ms: int


class _Phase(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"


class _Led:
    """A partition of ``__transaction_state`` that this broker leads, with the transactions that it
    has loaded from the partition.
    """

    __slots__ = ("leader_epoch", "phase", "topic_partition", "transactions")

    def __init__(self, topic_partition: TopicPartition, leader_epoch: LeaderEpoch) -> None:
        self.topic_partition = topic_partition
        self.leader_epoch = leader_epoch
        self.phase = _Phase.LOADING
        self.transactions = TransactionTable()


class TransactionCoordinator:
    """Coordinates the transactions in the partitions of ``__transaction_state`` that this broker
    leads.

    The coordinator must be subscribed to leaderships. ``run_expirations()`` aborts overdue
    transactions and expires unused ids.
    """

    def __init__(
        self,
        *,
        cache: MetadataCache,
        producer: InternalProducer,
        reader: InternalReader,
        make_sender: Callable[[Callable[[Outcome], None]], MarkerSender],
        next_producer_id: Callable[[], Awaitable[int]],
        tasks: BackgroundTasks,
        clock: Clock,
        backoff: ExponentialBackoff,
        metrics: Metrics,
        settings: TransactionSettings,
        may_be_deposed: Callable[[], bool],
    ) -> None:
        """Create the coordinator.

        :param may_be_deposed: returns whether another broker may lead partitions that the metadata
            shows as led here.
        """
        self._cache = cache
        self._appends = BatchedAppends(producer, timeout_ms=settings.write_timeout_ms)
        self._reader = reader
        self._sender = make_sender(self._handle_outcome)
        self._next_producer_id = next_producer_id
        self._tasks = tasks
        self._clock = clock
        self._backoff = backoff
        self._settings = settings
        self._may_be_deposed = may_be_deposed
        #: By partition index.
        self._led: dict[int, _Led] = {}
        self._log = get_logger(component="transaction_coordinator")
        self._metrics = metrics
        metrics.gauge("NumTransactionalIds", self._count_ids)
        metrics.gauge("NumOngoingTransactions", lambda: self._count(TransactionState.ONGOING))
        metrics.gauge("NumTransactionsAwaitingMarkers", lambda: self._count(*_ENDINGS))
        metrics.count("TransactionsCommittedPerSec", 0)
        metrics.count("TransactionsAbortedPerSec", 0)
        metrics.count("TransactionsTimedOutPerSec", 0)

    # --- leaderships -----------------------------------------------------------------------------

    def elected(self, leadership: Leadership) -> None:
        """Start to load the partition in the background, if it is one of ``__transaction_state``
        and not loaded already. The load is retried while this broker leads, except after a damaged
        record.
        """
        (topic, index), epoch = leadership.topic_partition, leadership.leader_epoch
        if topic != TRANSACTIONS_TOPIC:
            return
        led = self._led.get(index)
        if led is not None and led.phase is _Phase.ACTIVE:
            # The log is the same, so the loaded state stays valid; markers get the new epoch.
            led.leader_epoch = epoch
            self._resume_all(led)
            return
        led = self._led[index] = _Led(leadership.topic_partition, epoch)
        self._tasks.attempt(lambda: self._load(led), f"load-transactions-{index}")

    def resigned(self, leadership: Leadership) -> None:
        """Drop the partition, if it is one of ``__transaction_state``. Waiting requests fail."""
        topic, index = leadership.topic_partition
        if topic == TRANSACTIONS_TOPIC and index in self._led:
            self._unload(index)

    def close(self) -> None:
        """Drop all partitions and stop sending markers. Waiting requests fail."""
        for index in list(self._led):
            self._unload(index)
        self._sender.close()

    def _unload(self, index: int) -> None:
        led = self._led.pop(index)
        self._sender.drop_partition(index)
        for transaction in led.transactions.all():
            self._carry_out(led, transaction, Unloaded())
        self._log.info(
            "transaction_partition_unloaded", partition=index, transactions=len(led.transactions)
        )

    async def _load(self, led: _Led) -> None:
        failures = 0
        index = led.topic_partition.partition
        while self._is_current(led):
            try:
                await self._take_all(led)
                break
            except CorruptRecordError as e:
                led.phase = _Phase.FAILED
                self._log.error("transaction_partition_unreadable", partition=index, reason=str(e))
                return
            except OperatingError as e:
                failures += 1
                self._log.info("transaction_partition_not_loaded", partition=index, reason=str(e))
                await asyncio.sleep(self._backoff.wait_ms(failures) / 1000)
        if not self._is_current(led):
            return
        led.phase = _Phase.ACTIVE
        self._log.info(
            "transaction_partition_loaded", partition=index, transactions=len(led.transactions)
        )
        self._resume_all(led)

    async def _take_all(self, led: _Led) -> None:
        kept: dict[str, TransactionMetadata] = {}
        async for batch in self._reader.read(led.topic_partition, led.leader_epoch):
            if batch.header.is_control:
                continue
            async for record in in_slices(batch.records):
                fact = fact_of(record)
                if fact is None:
                    continue
                if fact.metadata is None:
                    kept.pop(fact.transactional_id, None)
                else:
                    kept[fact.transactional_id] = fact.metadata
        led.transactions = TransactionTable(Transaction(name, one) for name, one in kept.items())

    def _resume_all(self, led: _Led) -> None:
        for transaction in led.transactions.all():
            if transaction.state.is_ending:
                self._carry_out(led, transaction, Resumed())

    def _is_current(self, led: _Led) -> bool:
        return self._led.get(led.topic_partition.partition) is led

    # --- requests --------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The cluster's level of ``transaction.version``."""
        return self._cache.state.features.get(TRANSACTION_VERSION, 0)

    async def ask(
        self, transactional_id: str, event: InitRequested | AddRequested | EndRequested
    ) -> TransactionAnswer:
        """Handle a request and return its answer. The token of ``event`` must be a new
        :class:`Completion`.

        :raises OperatingError: this broker is not the coordinator, is still loading, or cannot
            confirm that it is the coordinator; COORDINATOR_LOAD_IN_PROGRESS also if no producer id
            is available.
        """
        await self._require_current(transactional_id)
        led, transaction = self._find(transactional_id)
        is_new = transaction is None and isinstance(event, InitRequested)
        is_exhausted = transaction is not None and transaction.is_exhausted
        if (is_new or is_exhausted) and not isinstance(event, AddRequested):
            event = replace(event, fresh_producer_id=await self._fresh_id())
            # Another request may have been handled meanwhile.
            led, transaction = self._find(transactional_id)
        if transaction is None and isinstance(event, InitRequested):
            if len(led.transactions) >= self._settings.max_ids_per_partition:
                return TransactionAnswer(code=ErrorCode.POLICY_VIOLATION)
            new = TransactionMetadata(
                producer_id=event.fresh_producer_id, timeout_ms=event.timeout_ms
            )
            transaction = Transaction(transactional_id, new)
            led.transactions.add(transaction)
        if transaction is None:
            return TransactionAnswer(code=ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        self._carry_out(led, transaction, event)
        assert isinstance(event.token, Completion), event
        answer: TransactionAnswer = await event.token
        return answer

    async def verify(
        self,
        transactional_id: str,
        *,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return NONE for each partition that is part of the transaction (KIP-890), else an error.

        :raises OperatingError: as :meth:`ask`.
        """
        await self._require_current(transactional_id)
        _, transaction = self._find(transactional_id)
        if transaction is None:
            return dict.fromkeys(partitions, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return transaction.verify(producer_id, producer_epoch, partitions)

    def describe(self, transactional_id: str) -> Transaction | None:
        """Return the transaction; None if the transactional id is unknown.

        :raises OperatingError: this broker is not the coordinator, or is still loading.
        """
        return self._find(transactional_id)[1]

    def all_transactions(self) -> Iterator[Transaction]:
        """Yield the transactions that this broker coordinates.

        :raises OperatingError: COORDINATOR_LOAD_IN_PROGRESS: a partition is not loaded yet.
        """
        for led in list(self._led.values()):
            if led.phase is _Phase.LOADING:
                raise _loading(led)
            yield from led.transactions.all()

    async def _fresh_id(self) -> int:
        """Return an unused producer id.

        :raises OperatingError: COORDINATOR_LOAD_IN_PROGRESS, so that clients retry: none is
            available.
        """
        try:
            return await self._next_producer_id()
        except OperatingError as e:
            raise OperatingError(
                f"there is no producer id: {e.message}",
                code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ) from e

    async def _require_current(self, transactional_id: str) -> None:
        """Require that no other broker has become coordinator of the id.

        The check needs an append only while another broker may lead.

        :raises OperatingError: the append failed.
        """
        if not self._may_be_deposed():
            return
        code = await self._append(self._led_of(transactional_id), _NOTHING)
        if code is not ErrorCode.NONE:
            raise OperatingError(
                f"it is not known if transactional id {transactional_id} is coordinated by this "
                "broker still",
                code=code,
            )

    def _find(self, transactional_id: str) -> tuple[_Led, Transaction | None]:
        led = self._led_of(transactional_id)
        return led, led.transactions.get(transactional_id)

    def _led_of(self, transactional_id: str) -> _Led:
        index = partition_of(self._cache.state, TRANSACTIONS_TOPIC, transactional_id)
        led = None if index is None else self._led.get(index)
        if led is None or led.phase is _Phase.FAILED:
            raise OperatingError(
                f"transactional id {transactional_id} is not coordinated by this broker",
                code=ErrorCode.NOT_COORDINATOR,
            )
        if led.phase is _Phase.LOADING:
            raise _loading(led)
        return led

    # --- timeouts and expiry ---------------------------------------------------------------------

    async def run_expirations(self) -> None:
        """Abort overdue transactions and expire unused ids at intervals, until cancelled."""
        settings = self._settings
        next_expiry_ms = self._clock.now_ms() + settings.expiry_interval_ms
        while True:
            await asyncio.sleep(settings.abort_interval_ms / 1000)
            expires = self._clock.now_ms() >= next_expiry_ms
            if expires:
                next_expiry_ms = self._clock.now_ms() + settings.expiry_interval_ms
            for led in list(self._led.values()):
                if led.phase is _Phase.ACTIVE:
                    await self._sweep(led, expires=expires)

    async def _sweep(self, led: _Led, *, expires: bool) -> None:
        kept_ms = self._settings.id_expiration_ms
        async for transaction in in_slices(led.transactions.all()):
            if not self._is_current(led):
                return
            wall_ms = self._clock.wall_ms()
            if transaction.is_overdue(wall_ms):
                await self._abort(led, transaction)
            elif expires and transaction.is_expired(wall_ms, kept_ms):
                self._carry_out(led, transaction, Expired(kept_ms))

    async def _abort(self, led: _Led, transaction: Transaction) -> None:
        fresh_id = -1
        if transaction.is_exhausted:
            try:
                fresh_id = await self._fresh_id()
            except OperatingError:
                return  # The next sweep tries again.
        if self._is_current(led):
            self._log.info(
                "transaction_timed_out",
                transactional_id=transaction.transactional_id,
                producer_id=transaction.metadata.producer_id,
                producer_epoch=transaction.metadata.producer_epoch,
                timeout_ms=transaction.metadata.timeout_ms,
            )
            self._metrics.count("TransactionsTimedOutPerSec")
            overdue = Overdue(version=self.version, fresh_producer_id=fresh_id)
            self._carry_out(led, transaction, overdue)

    # --- actions of the state machine ------------------------------------------------------------

    def _carry_out(self, led: _Led, transaction: Transaction, event: TransactionEvent) -> None:
        for action in led.transactions.handle(transaction, event, self._clock.wall_ms()):
            self._act(led, transaction, action)
        if transaction.is_void:
            led.transactions.remove(transaction)

    def _act(self, led: _Led, transaction: Transaction, action: TransactionAction) -> None:
        match action:
            case Answer(token, answer):
                assert isinstance(token, Completion), token
                token.set_result(answer)
            case Write(metadata):
                self._write(led, transaction, metadata)
            case SendMarkers(metadata):
                ending = Ending(
                    transaction.transactional_id,
                    metadata,
                    index=led.topic_partition.partition,
                    coordinator_epoch=led.leader_epoch,
                )
                self._sender.send(ending, frozenset(transaction.unmarked))
            case ResumeLater():
                loop = asyncio.get_running_loop()
                loop.call_later(
                    _RESUME_AFTER_S, self._carry_out_if_led, led, transaction, Resumed()
                )
            case _:
                assert_never(action)

    def _handle_outcome(self, outcome: Outcome) -> None:
        """Pass the outcome of markers to the transaction, unless its metadata has changed since."""
        ending = outcome.ending
        led = self._led.get(ending.index)
        transaction = None if led is None else led.transactions.get(ending.transactional_id)
        if led is None or transaction is None or transaction.metadata is not ending.metadata:
            return
        if outcome.given_up is not ErrorCode.NONE:
            self._log.warning(
                "transaction_markers_refused",
                transactional_id=ending.transactional_id,
                coordinator_epoch=ending.coordinator_epoch,
                reason=outcome.given_up.name,
            )
            return
        # In a separate event loop iteration: the sender may report this while it is called.
        loop = asyncio.get_running_loop()
        loop.call_soon(self._carry_out_if_led, led, transaction, Marked(outcome.done))

    def _carry_out_if_led(
        self, led: _Led, transaction: Transaction, event: TransactionEvent
    ) -> None:
        if self._is_current(led):
            self._carry_out(led, transaction, event)

    def _write(
        self, led: _Led, transaction: Transaction, metadata: TransactionMetadata | None
    ) -> None:
        writing = self._append(led, TransactionFact(transaction.transactional_id, metadata))
        loop = asyncio.get_running_loop()

        def ended(done: Completion[ErrorCode]) -> None:
            if done.result() is ErrorCode.NONE and metadata is not None:
                self._count_end(metadata.state)
            # In a separate event loop iteration: the machine may request another write.
            loop.call_soon(self._carry_out_if_led, led, transaction, Written(done.result()))

        writing.add_done_callback(ended)

    def _append(self, led: _Led, fact: TransactionFact) -> Completion[ErrorCode]:
        version = 1 if self.version > 0 else 0
        try:
            record = record_of(fact, version=version, now_ms=self._clock.wall_ms())
        except LocalProtocolError:
            # A name in the request is too long for a record.
            return Completion.of(ErrorCode.INVALID_REQUEST)
        appending = self._appends.append_records(
            led.topic_partition, [record], leader_epoch=led.leader_epoch
        )

        def replicated(outcome: AppendOutcome) -> ErrorCode:
            if outcome.code is not ErrorCode.NONE:
                return code_of_write(outcome.code)
            return ErrorCode.NONE if self._is_current(led) else ErrorCode.NOT_COORDINATOR

        return appending.map(replicated)

    def _count_ids(self) -> int:
        return sum(len(led.transactions) for led in self._led.values())

    def _count(self, *states: TransactionState) -> int:
        return sum(led.transactions.count(*states) for led in self._led.values())

    def _count_end(self, decided: TransactionState) -> None:
        match decided:
            case TransactionState.PREPARE_COMMIT:
                self._metrics.count("TransactionsCommittedPerSec")
            case TransactionState.PREPARE_ABORT:
                self._metrics.count("TransactionsAbortedPerSec")


def _loading(led: _Led) -> OperatingError:
    return OperatingError(
        f"{led.topic_partition} is being loaded", code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
