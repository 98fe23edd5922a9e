"""LOOP. ``TransactionVerifier``: asks coordinators if partitions are in transactions (KIP-890).

* A partition's leader asks before it appends the first batch of a transaction. For a client that
  knows KIP-890 the request adds the partition; for others it only verifies the addition.
* One request per coordinator is in flight; new questions are sent together with the next one.
* If two incarnations of a producer ask concurrently, the older one is fenced here.
* A transaction that is just ending accepts no partitions. The question is repeated for a short
  time before the client gets the error.

Every question completes with a code: NETWORK_EXCEPTION if the coordinator does not respond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.internal.coordinators import partition_of
from kraftjbod.broker.replicas.pending_append import TransactionClaim
from kraftjbod.core.errors import ConnectionLostError, ErrorCode, OperatingError
from kraftjbod.core.ids import NO_LEADER, BrokerId, TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

_TRANSACTIONS_TOPIC: Final = "__transaction_state"
#: Limit of the questions that wait for one coordinator.
_MAX_QUESTIONS: Final = 10_000
_PURPOSE: Final = "transaction-verifier"

_Asking = dict[TopicPartition, list[Completion[ErrorCode]]]
Wire = AddPartitionsToTxnRequest


class _Key(NamedTuple):
    """Questions with equal keys share an entry of the request.

    ``verifies_only``: the entry asks whether the partitions are in the transaction instead of
    adding them.
    """

    transactional_id: str
    producer_id: int
    verifies_only: bool


class _Question:
    """A question about partitions of one transaction, with the completions that wait for each of
    them."""

    __slots__ = ("asking", "began_ms", "producer_epoch")

    def __init__(self, producer_epoch: int, began_ms: int) -> None:
        self.producer_epoch = producer_epoch
        self.began_ms = began_ms
        self.asking: _Asking = {}

    def end(self, code: ErrorCode) -> None:
        for answers in self.asking.values():
            for one in answers:
                one.set_result(code)


class _Coordinator:
    """A broker that coordinates transactions: its waiting questions and its connection."""

    def __init__(self) -> None:
        self.waiting: dict[_Key, _Question] = {}
        self.connection: KafkaConnection | None = None
        self.is_asked = False


class TransactionVerifier:
    """Asks coordinators whether partitions are in the ongoing transactions of producers (KIP-890).

    For a client that supports epoch bumps, the coordinator adds a missing partition to the
    transaction. Call ``close()`` at the end.
    """

    def __init__(
        self,
        *,
        cache: MetadataCache,
        connector: BrokerConnector,
        clock: Clock,
        tasks: BackgroundTasks,
        timeout_ms: int,
        retry_backoff_ms: int,
        retry_max_ms: int,
    ) -> None:
        """Create a verifier.

        :param timeout_ms: time limit of one request.
        :param retry_backoff_ms: pause before a question about an ending transaction is repeated.
        :param retry_max_ms: time after which such a question is not repeated.
        """
        self._cache = cache
        self._connector = connector
        self._clock = clock
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._retry_max_ms = retry_max_ms
        self._coordinators: dict[BrokerId, _Coordinator] = {}
        self._is_closed = False

    def verify(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        claim: TransactionClaim,
    ) -> Completion[ErrorCode]:
        """Ask whether the partition is in the producer's ongoing transaction.

        For a client that knows KIP-890 the coordinator adds the partition.

        :return: completes with NONE if it is, else with an error code: the coordinator's,
            PRODUCER_FENCED, COORDINATOR_NOT_AVAILABLE, or NETWORK_EXCEPTION without a response.
        """
        answer: Completion[ErrorCode] = Completion()
        key = _Key(claim.transactional_id, producer_id, not claim.supports_epoch_bump)
        question = _Question(producer_epoch, self._clock.now_ms())
        question.asking[partition] = [answer]
        self._put(key, question)
        return answer

    def close(self) -> None:
        """Close the connections. All questions, also later ones, complete with
        NETWORK_EXCEPTION."""
        self._is_closed = True
        for coordinator in self._coordinators.values():
            waiting, coordinator.waiting = coordinator.waiting, {}
            for question in waiting.values():
                question.end(ErrorCode.NETWORK_EXCEPTION)
            if coordinator.connection is not None:
                coordinator.connection.close()

    def _put(self, key: _Key, question: _Question) -> None:
        if self._is_closed:
            question.end(ErrorCode.NETWORK_EXCEPTION)
            return
        broker_id = self._coordinator_of(key.transactional_id)
        if broker_id is None:
            question.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        coordinator = self._coordinators.setdefault(broker_id, _Coordinator())
        if len(coordinator.waiting) >= _MAX_QUESTIONS:
            question.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        _queue(coordinator.waiting, key, question)
        if not coordinator.is_asked:
            coordinator.is_asked = True
            name = f"{_PURPOSE}-{broker_id}"
            self._tasks.attempt(lambda: self._ask_all(broker_id, coordinator), name)

    def _coordinator_of(self, transactional_id: str) -> BrokerId | None:
        index = partition_of(self._cache.state, _TRANSACTIONS_TOPIC, transactional_id)
        topic = self._cache.state.topic(_TRANSACTIONS_TOPIC)
        if index is None or topic is None:
            return None
        leader = topic.partitions[index].leader
        return None if leader == NO_LEADER else leader

    async def _ask_all(self, broker_id: BrokerId, coordinator: _Coordinator) -> None:
        """Send one request after the other to the coordinator until no question waits."""
        try:
            while coordinator.waiting:
                asked, coordinator.waiting = coordinator.waiting, {}
                try:
                    await self._ask(broker_id, coordinator, asked)
                finally:
                    # Questions without a response fail; a completed question is not completed
                    # again.
                    for question in asked.values():
                        question.end(ErrorCode.NETWORK_EXCEPTION)
        finally:
            coordinator.is_asked = False

    async def _ask(
        self, broker_id: BrokerId, coordinator: _Coordinator, asked: dict[_Key, _Question]
    ) -> None:
        try:
            connection = await self._connected(broker_id, coordinator)
            response = await connection.request(_request(asked), timeout_ms=self._timeout_ms)
        except OperatingError:
            return
        if response.error_code != ErrorCode.NONE:
            for question in asked.values():
                question.end(ErrorCode(response.error_code))
            return
        self._take(asked, response)

    async def _connected(self, broker_id: BrokerId, coordinator: _Coordinator) -> KafkaConnection:
        if coordinator.connection is None or not coordinator.connection.is_open:
            coordinator.connection = await self._connector.connect(
                broker_id, purpose=_PURPOSE, timeout_ms=self._timeout_ms
            )
            if self._is_closed:
                coordinator.connection.close()
                raise ConnectionLostError("the verifier was closed while it connected")
        return coordinator.connection

    def _take(self, asked: dict[_Key, _Question], response: AddPartitionsToTxnResponse) -> None:
        # In the order of the request: one id may occur twice, to be added and to be verified.
        for (key, question), result in zip(
            asked.items(), response.results_by_transaction, strict=False
        ):
            if result.transactional_id != key.transactional_id:
                return
            for topic in result.topic_results:
                for part in topic.results_by_partition:
                    partition = TopicPartition(topic.name, part.partition_index)
                    answers = question.asking.get(partition, [])
                    self._answer(
                        key, question, partition, answers, ErrorCode(part.partition_error_code)
                    )

    def _answer(
        self,
        key: _Key,
        question: _Question,
        partition: TopicPartition,
        answers: list[Completion[ErrorCode]],
        code: ErrorCode,
    ) -> None:
        is_ending = code is ErrorCode.CONCURRENT_TRANSACTIONS and not key.verifies_only
        waited_ms = self._clock.now_ms() - question.began_ms
        if not is_ending or waited_ms + self._retry_backoff_ms > self._retry_max_ms:
            for one in answers:
                one.set_result(code)
            return
        again = _Question(question.producer_epoch, question.began_ms)
        again.asking[partition] = question.asking.pop(partition)
        asyncio.get_running_loop().call_later(self._retry_backoff_ms / 1000, self._put, key, again)


def _queue(waiting: dict[_Key, _Question], key: _Key, question: _Question) -> None:
    """Add ``question`` to ``waiting``, or merge it with a waiting question of the same key.

    If their producer epochs differ, the question of the older epoch ends with PRODUCER_FENCED.
    """
    known = waiting.get(key)
    if known is None or known.producer_epoch < question.producer_epoch:
        waiting[key] = question
        if known is not None:
            known.end(ErrorCode.PRODUCER_FENCED)
    elif known.producer_epoch > question.producer_epoch:
        question.end(ErrorCode.PRODUCER_FENCED)
    else:
        known.began_ms = min(known.began_ms, question.began_ms)
        for partition, answers in question.asking.items():
            known.asking.setdefault(partition, []).extend(answers)


def _request(asked: dict[_Key, _Question]) -> AddPartitionsToTxnRequest:
    return Wire(
        transactions=[
            Wire.AddPartitionsToTxnTransaction(
                transactional_id=key.transactional_id,
                producer_id=key.producer_id,
                producer_epoch=question.producer_epoch,
                verify_only=key.verifies_only,
                topics=_topics(question.asking),
            )
            for key, question in asked.items()
        ]
    )


def _topics(partitions: Iterable[TopicPartition]) -> list[Wire.AddPartitionsToTxnTopic]:
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    return [
        Wire.AddPartitionsToTxnTopic(name=name, partitions=indexes)
        for name, indexes in by_topic.items()
    ]
