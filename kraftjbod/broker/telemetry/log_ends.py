"""LOOP. ``LogEnds``: high watermarks of partitions from their leaders (ListOffsets).

Partitions led here are read locally. Other leaders are asked concurrently on persistent
connections. A leader that does not respond in time is logged once and its partitions are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.replicas.hosted_replicas import HostedReplicas
from kraftjbod.broker.replicas.replica_reads import LATEST_TIMESTAMP
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import NO_LEADER, BrokerId, TopicPartition
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.messages import ListOffsetsRequest, ListOffsetsResponse

_CONSUMER: Final = -1
#: Limit per request.
_MAX_PARTITIONS: Final = 1_000
#: Timeout of the connection attempt and of each response.
_TIMEOUT_MS: Final = 2_000
_PURPOSE: Final = "log-ends"

Wire = ListOffsetsRequest
Ends = dict[TopicPartition, int]


class LogEnds:
    """Finds the high watermarks of partitions on any broker. Call ``close()`` at the end."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        cache: MetadataCache,
        replicas: HostedReplicas,
        connector: BrokerConnector,
    ) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._replicas = replicas
        self._connector = connector
        self._connections: dict[BrokerId, KafkaConnection] = {}
        #: Leaders that did not respond to the last request.
        self._silent: set[BrokerId] = set()
        self._log = get_logger(component="log_ends", broker_id=broker_id)

    async def find(self, partitions: Collection[TopicPartition]) -> Ends:
        """Return the high watermarks of ``partitions``, without those that have no leader, or whose
        leader does not respond or does not know its high watermark yet.
        """
        by_leader: dict[BrokerId, list[TopicPartition]] = {}
        ends: Ends = {}
        async for one in in_slices(partitions):
            leader = self._leader_of(one)
            if leader == self._broker_id:
                ends.update(self._own(one))
            elif leader != NO_LEADER:
                by_leader.setdefault(leader, []).append(one)
        for found in await asyncio.gather(*(self._ask(*asked) for asked in by_leader.items())):
            ends.update(found)
        for gone in self._connections.keys() - by_leader.keys():
            self._connections.pop(gone).close()
        self._silent &= by_leader.keys()
        return ends

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _leader_of(self, one: TopicPartition) -> BrokerId:
        topic = self._cache.state.topic(one.topic)
        partition = None if topic is None else topic.partitions.get(one.partition)
        return NO_LEADER if partition is None else partition.leader

    def _own(self, one: TopicPartition) -> Ends:
        replica = self._replicas.get(one)
        partition = None if replica is None else replica.partition
        if partition is None or not partition.is_leader:
            return {}
        if partition.high_watermark < partition.leader_epoch_start_offset:
            return {}  # The new leader does not know its high watermark yet.
        return {one: partition.high_watermark}

    async def _ask(self, leader: BrokerId, partitions: Sequence[TopicPartition]) -> Ends:
        ends: Ends = {}
        try:
            for at in range(0, len(partitions), _MAX_PARTITIONS):
                request = _request(partitions[at : at + _MAX_PARTITIONS])
                connection = await self._connected(leader)
                response = await connection.request(request, timeout_ms=_TIMEOUT_MS)
                ends.update(_found(response))
        except OperatingError as e:
            if leader not in self._silent:
                self._silent.add(leader)
                self._log.info("log_ends_unknown", leader=leader, reason=e.message)
        else:
            self._silent.discard(leader)
        return ends

    async def _connected(self, leader: BrokerId) -> KafkaConnection:
        connection = self._connections.get(leader)
        if connection is None or not connection.is_open:
            connection = self._connections[leader] = await self._connector.connect(
                leader, purpose=_PURPOSE, timeout_ms=_TIMEOUT_MS
            )
        return connection


def _request(partitions: Sequence[TopicPartition]) -> ListOffsetsRequest:
    topics: dict[str, list[Wire.ListOffsetsPartition]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(
            Wire.ListOffsetsPartition(partition_index=index, timestamp=LATEST_TIMESTAMP)
        )
    return Wire(
        replica_id=_CONSUMER,
        topics=[
            Wire.ListOffsetsTopic(name=name, partitions=asked) for name, asked in topics.items()
        ],
    )


def _found(response: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, int]]:
    for topic in response.topics:
        for part in topic.partitions:
            if part.error_code == ErrorCode.NONE and part.offset >= 0:
                yield TopicPartition(topic.name, part.partition_index), part.offset
