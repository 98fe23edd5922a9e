"""LOOP. ``StorageTelemetrySender``: brings one batch of samples to whoever leads its partition.

A broker's batches all go to one partition, so that a round is one conversation: with this broker's
own replica, by the way that producers' batches go, or with another broker on a connection that is
kept. One batch at a time; what the leader does not take is tried again, at longer and longer
intervals, for as long as the caller has time. A batch whose answer was lost may be there twice.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.replicas.replica_appends import ReplicaAppends
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import NO_LEADER, BrokerId, TopicPartition
from kraftjbod.core.loop.timing import Clock, Deadline, ExponentialBackoff
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.messages import ProduceRequest
from kraftjbod.protocol.storage_telemetry import TOPIC

#: The leader alone answers: samples are not worth waiting for followers.
_ACKS: Final = 1
#: How long one attempt may take, however much time there is.
_REQUEST_TIMEOUT_MS: Final = 2_000


class StorageTelemetrySender:
    """``await send(batch, deadline)``, one at a time; ``close()`` at the end."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        cache: MetadataCache,
        appends: ReplicaAppends,
        connector: BrokerConnector,
        clock: Clock,
        backoff: ExponentialBackoff,
        suspect_after_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._appends = appends
        self._connector = connector
        self._clock = clock
        self._backoff = backoff
        self._suspect_after_ms = suspect_after_ms
        #: To whom, and the connection.
        self._leader = NO_LEADER
        self._connection: KafkaConnection | None = None

    async def send(self, batch: bytes, deadline: Deadline) -> None:
        """:raises OperatingError: what went wrong last; there is no time for another attempt."""
        failures = 0
        while True:
            try:
                await self._attempt(batch, deadline)
            except OperatingError:
                failures += 1
                wait_ms = self._backoff.wait_ms(failures)
                if wait_ms >= deadline.remaining_ms(self._clock.now_ms()):
                    raise
            else:
                return
            await asyncio.sleep(wait_ms / 1000)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _attempt(self, batch: bytes, deadline: Deadline) -> None:
        topic = self._cache.state.topic(TOPIC)
        if topic is None:
            raise OperatingError(
                f"there is no topic {TOPIC} yet", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        partition = TopicPartition(TOPIC, self._broker_id % len(topic.partitions))
        leader = topic.partitions[partition.partition].leader
        if leader == NO_LEADER:
            raise OperatingError(f"{partition} has no leader", code=ErrorCode.LEADER_NOT_AVAILABLE)
        timeout_ms = min(_REQUEST_TIMEOUT_MS, max(1, deadline.remaining_ms(self._clock.now_ms())))
        if leader == self._broker_id:
            await self._append(partition, batch, timeout_ms)
        else:
            await self._produce(leader, partition, topic.topic_id, batch, timeout_ms)

    async def _append(self, partition: TopicPartition, batch: bytes, timeout_ms: int) -> None:
        appending = self._appends.append(partition, batch, acks=_ACKS, timeout_ms=timeout_ms)
        suspect_after_ms = min(self._suspect_after_ms, timeout_ms)
        (outcome,) = await self._appends.outcomes([appending], suspect_after_ms=suspect_after_ms)
        _require_taken(partition, outcome.code, outcome.message)

    async def _produce(
        self,
        leader: BrokerId,
        partition: TopicPartition,
        topic_id: bytes,
        batch: bytes,
        timeout_ms: int,
    ) -> None:
        data = ProduceRequest.PartitionProduceData(index=partition.partition, records=batch)
        request = ProduceRequest(
            acks=_ACKS,
            timeout_ms=timeout_ms,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=TOPIC, topic_id=topic_id, partition_data=[data]
                )
            ],
        )
        connection = await self._connected(leader, timeout_ms)
        response = await connection.request(request, timeout_ms=timeout_ms)
        assert response is not None, "acks"
        (answered,) = response.responses[0].partition_responses
        _require_taken(partition, answered.error_code, answered.error_message)

    async def _connected(self, leader: BrokerId, timeout_ms: int) -> KafkaConnection:
        if self._connection is not None and self._connection.is_open and self._leader == leader:
            return self._connection
        self.close()
        self._connection = await self._connector.connect(
            leader, purpose="storage-telemetry", timeout_ms=timeout_ms
        )
        self._leader = leader
        return self._connection


def _require_taken(partition: TopicPartition, code: int, said: str | None) -> None:
    if code != ErrorCode.NONE:
        error = ErrorCode(code)
        raise OperatingError(f"{partition}: {said or error.name}", code=error)
