"""A broker that leads ``__transaction_state``, and requests of producers over the wire."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from kraftjbod.broker.transactions.transaction_records import TRANSACTIONS_TOPIC, TransactionState
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.unit.broker.broker_rig import BrokerRig, brokers, partition, topic
from tests.unit.broker.gates import until

STATE_ID = TopicId(b"s" * 16)
STATE = TopicPartition(TRANSACTIONS_TOPIC, 0)
ID = "x"
OLD, NEW = 4, 5
QUICK = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": "20"}


@contextlib.asynccontextmanager
async def coordinator(**overrides: Any) -> AsyncIterator[BrokerRig]:
    """A broker that leads the only partition, and a topic ``t`` with two partitions."""
    async with brokers(1, **{**QUICK, **overrides}) as (rig,):
        await lead(rig, 0)
        await rig.follow(topic(), partition(), partition(1))
        await loaded(rig)
        yield rig


class Partitions:
    """Leaders of the partitions of a transaction, which answer markers with ``code``."""

    def __init__(self) -> None:
        self.markers: list[WriteTxnMarkersRequest.WritableTxnMarker] = []
        self.code = ErrorCode.NONE

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.markers += request.markers
        kinds = WriteTxnMarkersResponse
        return kinds(
            markers=[
                kinds.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        kinds.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                kinds.WritableTxnMarkerPartitionResult(
                                    partition_index=index, error_code=self.code
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    @property
    def sent_markers(self) -> list[tuple[int, bool, int, int]]:
        """Producer epoch, result, coordinator epoch and version of each marker."""
        return [
            (m.producer_epoch, m.transaction_result, m.coordinator_epoch, m.transaction_version)
            for m in self.markers
        ]


@contextlib.asynccontextmanager
async def marked_by(partitions: Partitions, **overrides: Any) -> AsyncIterator[BrokerRig]:
    async with coordinator(**overrides) as rig:
        rig.handlers[WriteTxnMarkersRequest] = partitions.write
        yield rig


def state_of(rig: BrokerRig) -> TransactionState:
    described = rig.parts.transaction_coordinator.describe(ID)
    assert described is not None
    return described.state


async def lead(rig: BrokerRig, epoch: int, leader: int = 1, isr: tuple[int, ...] = (1,)) -> None:
    both: dict[str, Any] = {"replicas": (1, 2), "isr": isr, "topic_id": STATE_ID}
    records = [partition(leader=leader, epoch=epoch, **both)]
    if epoch == 0:
        records.insert(0, topic(TRANSACTIONS_TOPIC, STATE_ID))  # type: ignore[arg-type]  # a record
    await rig.follow(*records)


def is_loaded(rig: BrokerRig) -> bool:
    """Return whether the broker coordinates the transactional id of the tests."""
    try:
        rig.parts.transaction_coordinator.describe(ID)
    except OperatingError:
        return False
    return True


async def loaded(rig: BrokerRig) -> None:
    await until(lambda: is_loaded(rig))


async def init(
    rig: BrokerRig, *, timeout_ms: int = 60_000, version: int = 5, **more: Any
) -> tuple[int, int]:
    """Request a producer id and return it with its epoch, or -1 and the error code."""
    request = InitProducerIdRequest(
        transaction_timeout_ms=timeout_ms,
        **{"transactional_id": ID, "producer_id": -1, "producer_epoch": -1, **more},
    )
    answer = await rig.ask(request, version)
    return answer.producer_id, answer.error_code or answer.producer_epoch


def add(producer: tuple[int, int], *indexes: int, name: str = "t") -> AddPartitionsToTxnRequest:
    """A request of a producer, up to version 3."""
    asked = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=list(indexes))
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[asked],
    )


async def adding(
    rig: BrokerRig, producer: tuple[int, int], *indexes: int, name: str = "t", version: int = 3
) -> list[int]:
    answer = await rig.ask(add(producer, *indexes, name=name), version)
    (result,) = answer.results_by_topic_v3_and_below
    return [part.partition_error_code for part in result.results_by_partition]


async def verifying(rig: BrokerRig, producer: tuple[int, int], *indexes: int) -> list[int]:
    """Verify partitions as their leaders do, and return the error codes."""
    kinds = AddPartitionsToTxnRequest
    asked = kinds.AddPartitionsToTxnTopic(name="t", partitions=list(indexes))
    one = kinds.AddPartitionsToTxnTransaction(
        transactional_id=ID,
        producer_id=producer[0],
        producer_epoch=producer[1],
        verify_only=True,
        topics=[asked],
    )
    answer = await rig.ask(kinds(transactions=[one]), 5)
    (transaction,) = answer.results_by_transaction
    (result,) = transaction.topic_results
    return [part.partition_error_code for part in result.results_by_partition]


async def end(
    rig: BrokerRig, producer: tuple[int, int], *, commits: bool = True, version: int = OLD
) -> Any:
    return await rig.ask(end_of(producer, commits=commits), version)


def end_of(producer: tuple[int, int], *, commits: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=ID,
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=commits,
    )
