"""Transactions at a partition leader: verification, isolation, markers and DescribeProducers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftjbod.broker.internal.transaction_verifier import TransactionVerifier
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.protocol.messages import (
    DescribeProducersRequest,
    ListOffsetsRequest,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
from kraftjbod.protocol.records import Record, build_batch
from tests.faults.rig import headers_of
from tests.unit.broker.broker_rig import (
    BrokerRig,
    brokers,
    fetch,
    only,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import until

BY_NAME = 12
READ_COMMITTED = 1
PID = 7


def transactional(sequence: int, producer_id: int = PID, epoch: int = 0) -> Any:
    data = build_batch(
        [Record(key=b"k", value=b"v", timestamp_ms=1_000)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    request = produce(data)
    assert isinstance(request, ProduceRequest)
    request.transactional_id = f"tx-{producer_id}"
    return request


async def end(
    rig: BrokerRig, *, commits: bool, producer_id: int = PID, epoch: int = 1, coordinator: int = 0
) -> int:
    kind = WriteTxnMarkersRequest
    marker = kind.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commits,
        topics=[kind.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        coordinator_epoch=coordinator,
        transaction_version=2,
    )
    answer = await rig.ask(kind(markers=[marker]), 2)
    return int(answer.markers[0].topics[0].partitions[0].error_code)


class Coordinator:
    """Replaces the verification; a test answers each request."""

    def __init__(self) -> None:
        self.asked: list[tuple[TopicPartition, int, int, Completion[ErrorCode]]] = []

    def verify(self, tp: TopicPartition, pid: int, epoch: int, claim: object) -> Any:
        answer: Completion[ErrorCode] = Completion()
        self.asked.append((tp, pid, epoch, answer))
        return answer

    async def answer(self, code: ErrorCode = ErrorCode.NONE) -> None:
        await until(lambda: self.asked)
        self.asked.pop(0)[3].set_result(code)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    made = Coordinator()
    monkeypatch.setattr(TransactionVerifier, "verify", lambda _, *about: made.verify(*about))
    return made


async def read(rig: BrokerRig, offset: int = 0, **more: Any) -> Any:
    request = fetch(offset, **more)
    request.isolation_level = READ_COMMITTED
    return only(await rig.ask(request, BY_NAME))


async def latest(rig: BrokerRig, isolation_level: int) -> int:
    kind = ListOffsetsRequest
    part = kind.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [kind.ListOffsetsTopic(name="t", partitions=[part])]
    request = kind(replica_id=-1, isolation_level=isolation_level, topics=topics)
    return int((await rig.ask(request, 8)).topics[0].partitions[0].offset)


async def test_open_transaction_is_hidden_until_its_marker_completes_waiting_fetches(
    coordinator: Coordinator,
) -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        first = asyncio.create_task(rig.ask(transactional(0), BY_NAME))
        await until(lambda: coordinator.asked)
        second = asyncio.create_task(rig.ask(transactional(1), BY_NAME))
        await coordinator.answer()
        assert [only(await one).base_offset for one in (first, second)] == [0, 1]
        third = only(await rig.ask(transactional(2), BY_NAME))
        assert (third.error_code, third.base_offset) == (0, 2)
        assert not coordinator.asked, "an open transaction is verified once"

        hidden = await read(rig)
        assert (hidden.last_stable_offset, hidden.high_watermark) == (0, 3)
        assert not hidden.records and hidden.aborted_transactions == []
        shown = only(await rig.ask(fetch(), BY_NAME))
        assert len(headers_of(shown.records)) == 3 and shown.aborted_transactions is None
        assert (await latest(rig, 0), await latest(rig, READ_COMMITTED)) == (3, 0)

        # The fetch waits for more bytes than the marker has; the transaction provides them.
        waiting = asyncio.create_task(read(rig, max_wait_ms=60_000, min_bytes=150))
        await until(lambda: len(rig.parts.hosted.stable_fetches))
        assert await end(rig, commits=False) == ErrorCode.NONE
        got = await waiting
        assert [one.base_offset for one in headers_of(got.records)] == [0, 1, 2]
        aborted = [(one.producer_id, one.first_offset) for one in got.aborted_transactions]
        assert aborted == [(PID, 0)] and got.last_stable_offset == 4
        assert await latest(rig, READ_COMMITTED) == 4
        assert (await read(rig, 4)).aborted_transactions == []


async def test_produce_refused_by_the_transaction_coordinator_is_not_appended(
    coordinator: Coordinator,
) -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        for code, version, refusal in (
            (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
            (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
            (ErrorCode.PRODUCER_FENCED, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
            (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
            (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
            (ErrorCode.NETWORK_EXCEPTION, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
            (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ):
            sending = asyncio.create_task(rig.ask(transactional(0), version))
            await coordinator.answer(code)
            assert only(await sending).error_code == refusal, (code, version)
        without = transactional(0)
        without.transactional_id = None
        refused = only(await rig.ask(without, BY_NAME))
        assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await latest(rig, 0) == 0


async def test_marker_during_the_verification_rejects_the_batch(
    coordinator: Coordinator,
) -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        sending = asyncio.create_task(rig.ask(transactional(0, epoch=3), BY_NAME))
        await until(lambda: coordinator.asked)
        assert await end(rig, commits=False, epoch=4) == ErrorCode.NONE
        await coordinator.answer()
        assert only(await sending).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await latest(rig, 0) == 1, "the log has only the marker"
        assert await latest(rig, READ_COMMITTED) == 1


async def test_produce_without_answer_of_the_coordinator_returns_a_retriable_error(
    coordinator: Coordinator,
) -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        sending = asyncio.create_task(rig.ask(transactional(0), BY_NAME))
        await until(lambda: coordinator.asked)
        assert only(await sending).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        await coordinator.answer()  # The answer is late, and no request waits for it.
        again = asyncio.create_task(rig.ask(transactional(0), BY_NAME))
        await coordinator.answer()
        assert only(await again).base_offset == 0


async def test_describe_producers_returns_open_transactions_and_old_coordinators_are_fenced(
    coordinator: Coordinator,
) -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        before_ms = rig.around.clock.wall_ms()
        sending = asyncio.create_task(rig.ask(transactional(0), BY_NAME))
        await coordinator.answer()
        await sending

        async def described(name: str = "t") -> Any:
            kind = DescribeProducersRequest
            topics = [kind.TopicRequest(name=name, partition_indexes=[0])]
            return (await rig.ask(kind(topics=topics), 0)).topics[0].partitions[0]

        (known,) = (await described()).active_producers
        assert (known.producer_id, known.producer_epoch, known.last_sequence) == (PID, 0, 0)
        assert (known.current_txn_start_offset, known.coordinator_epoch) == (0, -1)
        now_ms = rig.around.clock.wall_ms()
        late = rig.parts.hosted.count_late_transactions
        assert (late(before_ms=before_ms), late(before_ms=now_ms + 1)) == (0, 1)
        assert await end(rig, commits=True, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await end(rig, commits=True, coordinator=5) == ErrorCode.NONE
        assert late(before_ms=now_ms + 1) == 0
        fenced = await end(rig, commits=True, coordinator=4)
        assert fenced == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        (known,) = (await described()).active_producers
        assert (known.producer_epoch, known.coordinator_epoch) == (1, 5)
        assert (known.current_txn_start_offset, known.last_sequence) == (-1, -1)
        unknown = (await described("absent")).error_code
        assert unknown == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await described("a b")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
