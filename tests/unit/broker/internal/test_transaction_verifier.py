"""``TransactionVerifier``: batches of requests to coordinators, and their responses."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.internal.transaction_verifier import TransactionVerifier
from kraftjbod.broker.replicas.pending_append import TransactionClaim
from kraftjbod.core.errors import ConnectionLostError, ErrorCode
from kraftjbod.core.ids import NO_LEADER, BrokerId, TopicPartition
from kraftjbod.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from tests.faults.rig import ManualClock
from tests.unit.broker.gates import until

ONE, TWO = TopicPartition("t", 0), TopicPartition("u", 3)
OLD, NEW = TransactionClaim("x", False), TransactionClaim("x", True)
Answers = AddPartitionsToTxnResponse


class Coordinator:
    """A transaction coordinator that holds each request until the test answers it."""

    def __init__(self) -> None:
        self.requests: list[tuple[AddPartitionsToTxnRequest, asyncio.Future[Any]]] = []
        self.is_open = True
        self.leader = BrokerId(4)
        self.connecting = 0
        self.accepts = asyncio.Event()
        self.accepts.set()

    async def connect(self, peer: BrokerId, **_how: object) -> Coordinator:
        assert peer == self.leader
        self.connecting += 1
        await self.accepts.wait()
        return self

    async def request(self, body: AddPartitionsToTxnRequest, *, timeout_ms: int) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.requests.append((body, answer))
        return await answer

    def close(self) -> None:
        self.is_open = False
        for _, answer in self.requests:
            if not answer.done():
                answer.set_exception(ConnectionLostError("closed"))

    async def answer(self, code: ErrorCode = ErrorCode.NONE) -> AddPartitionsToTxnRequest:
        await until(lambda: self.requests)
        body, answer = self.requests.pop(0)
        answer.set_result(
            Answers(
                results_by_transaction=[
                    Answers.AddPartitionsToTxnResult(
                        transactional_id=one.transactional_id,
                        topic_results=[
                            Answers.AddPartitionsToTxnTopicResult(
                                name=topic.name,
                                results_by_partition=[
                                    Answers.AddPartitionsToTxnPartitionResult(
                                        partition_index=index, partition_error_code=code
                                    )
                                    for index in topic.partitions
                                ],
                            )
                            for topic in one.topics
                        ],
                    )
                    for one in body.transactions
                ]
            )
        )
        return body


def verifier(
    coordinator: Coordinator,
    clock: ManualClock | None = None,
    *,
    retry_backoff_ms: int = 1,
    tasks: BackgroundTasks | None = None,
) -> TransactionVerifier:
    topic = SimpleNamespace(partitions=[SimpleNamespace(leader=coordinator.leader)])
    state = SimpleNamespace(topic=lambda name: topic)
    return TransactionVerifier(
        cache=SimpleNamespace(state=state),  # type: ignore[arg-type]  # all that is used
        connector=coordinator,  # type: ignore[arg-type]  # all that is used
        clock=clock or ManualClock(),
        tasks=tasks or BackgroundTasks(),
        timeout_ms=1_000,
        retry_backoff_ms=retry_backoff_ms,
        retry_max_ms=10 * retry_backoff_ms,
    )


async def test_verifications_during_a_pending_request_share_the_next_request() -> None:
    coordinator = Coordinator()
    asks = verifier(coordinator)
    first = asks.verify(ONE, 1, 0, OLD)
    await until(lambda: coordinator.requests)
    later = [asks.verify(ONE, 1, 0, NEW), asks.verify(TWO, 1, 0, NEW), asks.verify(TWO, 1, 0, NEW)]
    other = asks.verify(ONE, 2, 0, TransactionClaim("y", False))
    body = await coordinator.answer()
    assert [one.verify_only for one in body.transactions] == [True]
    assert await first is ErrorCode.NONE
    body = await coordinator.answer(ErrorCode.TRANSACTION_ABORTABLE)
    sent = {
        (one.transactional_id, one.verify_only): {t.name: list(t.partitions) for t in one.topics}
        for one in body.transactions
    }
    assert sent == {("x", False): {"t": [0], "u": [3]}, ("y", True): {"t": [0]}}
    for one in (*later, other):
        assert await one is ErrorCode.TRANSACTION_ABORTABLE


async def test_verification_of_an_older_producer_epoch_is_fenced() -> None:
    coordinator = Coordinator()
    asks = verifier(coordinator)
    asks.verify(ONE, 9, 0, OLD)
    await until(lambda: coordinator.requests)
    old, new = asks.verify(ONE, 1, 4, OLD), asks.verify(ONE, 1, 5, OLD)
    late = asks.verify(TWO, 1, 4, OLD)
    assert (await old, await late) == (ErrorCode.PRODUCER_FENCED, ErrorCode.PRODUCER_FENCED)
    await coordinator.answer()
    (one,) = (await coordinator.answer()).transactions
    assert one.producer_epoch == 5
    assert await new is ErrorCode.NONE


async def test_adding_verification_is_retried_while_the_former_transaction_ends() -> None:
    coordinator, clock = Coordinator(), ManualClock()
    asks = verifier(coordinator, clock)
    adding = asks.verify(ONE, 1, 0, NEW)
    await coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    await coordinator.answer()
    assert await adding is ErrorCode.NONE
    adding = asks.verify(ONE, 1, 0, NEW)
    await until(lambda: coordinator.requests)
    clock.ms += 10
    await coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert await adding is ErrorCode.CONCURRENT_TRANSACTIONS
    verifying = asks.verify(ONE, 1, 0, OLD)
    await coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert await verifying is ErrorCode.CONCURRENT_TRANSACTIONS


async def test_verification_ends_with_an_error_on_lost_or_incomplete_responses() -> None:
    coordinator = Coordinator()
    asks = verifier(coordinator)
    lost = asks.verify(ONE, 1, 0, OLD)
    await until(lambda: coordinator.requests)
    coordinator.requests.pop()[1].set_exception(ConnectionLostError("gone"))
    assert await lost is ErrorCode.NETWORK_EXCEPTION
    forgotten = asks.verify(ONE, 1, 0, OLD)
    await until(lambda: coordinator.requests)
    coordinator.requests.pop()[1].set_result(Answers())
    assert await forgotten is ErrorCode.NETWORK_EXCEPTION
    refused = asks.verify(ONE, 1, 0, OLD)
    await until(lambda: coordinator.requests)
    answer = Answers(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    coordinator.requests.pop()[1].set_result(answer)
    assert await refused is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    coordinator.leader = NO_LEADER
    unled = verifier(coordinator).verify(ONE, 1, 0, OLD)
    assert await unled is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_verifier_close_ends_pending_and_later_verifications_with_network_exception() -> None:
    coordinator = Coordinator()
    asks = verifier(coordinator)
    asked = asks.verify(ONE, 1, 0, OLD)
    await until(lambda: coordinator.requests)
    waiting = asks.verify(ONE, 2, 0, OLD)
    asks.close()
    later = asks.verify(ONE, 3, 0, OLD)
    for one in (later, waiting, asked):
        assert await one is ErrorCode.NETWORK_EXCEPTION
    assert coordinator.connecting == 1 and len(coordinator.requests) == 1


async def test_verification_retry_after_close_ends_without_a_request() -> None:
    coordinator = Coordinator()
    tasks = BackgroundTasks()
    asks = verifier(coordinator, retry_backoff_ms=50, tasks=tasks)
    adding = asks.verify(ONE, 1, 0, NEW)
    await coordinator.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    await until(lambda: not len(tasks))
    asks.close()
    assert await adding is ErrorCode.NETWORK_EXCEPTION
    assert not coordinator.requests


async def test_verifier_connection_that_opens_after_close_is_closed() -> None:
    coordinator = Coordinator()
    coordinator.accepts.clear()
    asks = verifier(coordinator)
    asked = asks.verify(ONE, 1, 0, OLD)
    await until(lambda: coordinator.connecting)
    asks.close()
    coordinator.accepts.set()
    assert await asked is ErrorCode.NETWORK_EXCEPTION
    assert not coordinator.is_open and not coordinator.requests
