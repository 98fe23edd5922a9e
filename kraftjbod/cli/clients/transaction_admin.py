"""WIRE. Requests about transactions, to coordinators and to leaders of partitions.

Each function sends one kind of request, and turns error codes into :class:`OperatingError`. Callers
repeat failed requests by :meth:`ClusterClient.retry`. The functions work with any Kafka cluster.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from kraftjbod.cli.clients.cluster_admin import require_ok
from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error
from kraftjbod.cli.clients.group_admin import by_topic
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)

_TRANSACTIONS: Final = 1
#: FindCoordinator: first version with several keys in one request.
_KEYS_SINCE: Final = 4
#: ListTransactions: first versions with these filters.
_DURATION_SINCE: Final = 1
_PATTERN_SINCE: Final = 2
NONE_OPEN: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    """A transactional id, the broker id of its coordinator, its producer id and its state.

    ``state`` is Kafka's name.
    """

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTransaction:
    """A transactional id and its transaction; ``started_ms`` is -1 without an open transaction.

    ``partitions`` are sorted.
    """

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """A producer as one replica knows it; unknown values are -1."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int
    """First offset of its open transaction; :data:`NONE_OPEN` without one."""


async def list_transactions(
    client: ClusterClient,
    *,
    producer_ids: Collection[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> list[ListedTransaction]:
    """Return the transactions of all coordinators, sorted by broker and transactional id.

    :param producer_ids: only transactions of these producers; empty for all.
    :param longer_than_ms: only transactions that are open for longer; negative for all.
    :param pattern: a regular expression for the whole transactional id; None for all.
    :raises OperatingError: INVALID_REGULAR_EXPRESSION; UNSUPPORTED_VERSION if a broker lacks a
        filter; or a broker does not respond, or reports an error.
    """
    request = ListTransactionsRequest(producer_id_filters=list(producer_ids))
    needed = 0
    if longer_than_ms >= 0:
        request.duration_filter, needed = longer_than_ms, _DURATION_SINCE
    if pattern:
        request.transactional_id_pattern, needed = pattern, _PATTERN_SINCE

    async def listed_by(node_id: int) -> list[ListedTransaction]:
        response = await client.request(node_id, request, min_version=needed)
        if response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            raise kafka_error(response.error_code, repr(pattern))
        require_ok(response, f"the transactions of broker {node_id}")
        return [
            ListedTransaction(
                transactional_id=one.transactional_id,
                coordinator=node_id,
                producer_id=one.producer_id,
                state=one.transaction_state,
            )
            for one in response.transaction_states
        ]

    answers = await asyncio.gather(*map(listed_by, sorted(client.metadata.brokers)))
    return [
        one for answer in answers for one in sorted(answer, key=lambda each: each.transactional_id)
    ]


async def find_coordinator(client: ClusterClient, transactional_id: str) -> int:
    """Return the broker id of the coordinator of a transactional id.

    :raises OperatingError: COORDINATOR_NOT_AVAILABLE, which is retriable, and others; or no broker
        responds.
    """
    request = FindCoordinatorRequest(key_type=_TRANSACTIONS, coordinator_keys=[transactional_id])
    response = await client.request_from_any_broker(request, min_version=_KEYS_SINCE)
    (found,) = response.coordinators
    require_ok(found, f"coordinator of transactional id {transactional_id}")
    return found.node_id


async def describe_transaction(
    client: ClusterClient, transactional_id: str
) -> DescribedTransaction | None:
    """Return the transaction of a transactional id; None if its coordinator does not know the id.

    :raises OperatingError: there is no coordinator, or it does not respond, or reports an error.
    """
    node_id = await find_coordinator(client, transactional_id)
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (one,) = (await client.request(node_id, request)).transaction_states
    if one.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    require_ok(one, f"transactional id {transactional_id}")
    return DescribedTransaction(
        transactional_id=transactional_id,
        coordinator=node_id,
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        state=one.transaction_state,
        timeout_ms=one.transaction_timeout_ms,
        started_ms=one.transaction_start_time_ms,
        partitions=tuple(
            sorted(
                TopicPartition(topic.topic, index)
                for topic in one.topics
                for index in topic.partitions
            )
        ),
    )


async def describe_producers(
    client: ClusterClient,
    partitions: Iterable[TopicPartition],
    *,
    broker_id: int | None = None,
) -> dict[TopicPartition, list[ActiveProducer]]:
    """Return the producers of each partition, as its leader knows them.

    :param broker_id: ask the replicas on this broker instead.
    :raises OperatingError: an error of a partition.
    """
    by_node: dict[int, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        node_id = broker_id
        if node_id is None:
            node_id = client.metadata.leader(partition.topic, partition.partition)
        by_node[node_id].append(partition)
    found: dict[TopicPartition, list[ActiveProducer]] = {}
    for node_id, own in by_node.items():
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(
                    name=topic, partition_indexes=[one.partition for one in group]
                )
                for topic, group in by_topic(own).items()
            ]
        )
        for topic in (await client.request(node_id, request)).topics:
            for part in topic.partitions:
                partition = TopicPartition(topic.name, part.partition_index)
                require_ok(part, str(partition))
                found[partition] = [_producer(one) for one in part.active_producers]
    return found


def _producer(one: DescribeProducersResponse.ProducerState) -> ActiveProducer:
    return ActiveProducer(
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        coordinator_epoch=one.coordinator_epoch,
        last_sequence=one.last_sequence,
        last_timestamp_ms=one.last_timestamp,
        start_offset=one.current_txn_start_offset,
    )


async def abort_at(
    client: ClusterClient,
    partition: TopicPartition,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> None:
    """Abort a producer's transaction in one partition, by writing a marker to its leader.

    The coordinator is not involved: this is for transactions that it does not know. The client's
    metadata must include the topic.

    :raises OperatingError: the partition has no leader, or the leader refuses the marker.
    """
    kind = WriteTxnMarkersRequest
    marker = kind.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        coordinator_epoch=coordinator_epoch,
        topics=[
            kind.WritableTxnMarkerTopic(
                name=partition.topic, partition_indexes=[partition.partition]
            )
        ],
    )
    leader = client.metadata.leader(partition.topic, partition.partition)
    response = await client.request(leader, kind(markers=[marker]))
    for ended in response.markers:
        for topic in ended.topics:
            for part in topic.partitions:
                require_ok(part, str(partition))


async def fence(client: ClusterClient, transactional_id: str, *, timeout_ms: int) -> None:
    """Abort the open transaction of a transactional id, and fence its producer.

    :param timeout_ms: transaction timeout in the InitProducerId request, for the new epoch.
    :raises OperatingError: CONCURRENT_TRANSACTIONS, which is retriable: the abort is in progress.
    """
    node_id = await find_coordinator(client, transactional_id)
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
    )
    response = await client.request(node_id, request)
    require_ok(response, f"transactional id {transactional_id}")
