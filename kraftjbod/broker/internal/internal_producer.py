"""LOOP. ``InternalProducer``: sends the broker's own batches to the leaders of internal topics.

* ``send``: to the present leader, on this broker through ReplicaAppends or on another one through a
  persistent connection. One batch at a time is sent, and retried with growing pauses within the
  caller's deadline. A batch whose response was lost may be in the log twice.
* ``append_records``: once, as the leader in one epoch, for coordinators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.replicas.pending_append import AppendOutcome, TransactionClaim
from kraftjbod.broker.replicas.replica_appends import ReplicaAppends
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock, Deadline, ExponentialBackoff
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.messages import ProduceRequest

_ACKS_ALL: Final = -1
#: Limit of one attempt of ``send``.
_REQUEST_TIMEOUT_MS: Final = 2_000


class InternalProducer:
    """Writes batches of this broker to internal topics, such as ``__consumer_offsets``.
    :meth:`append_records` writes as the leader on this broker, and :meth:`send` writes to the
    leader on any broker.

    Call ``close()`` at the end.
    """

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
        purpose: str,
    ) -> None:
        """Create a producer.

        :param suspect_after_ms: ``log.dir.io.suspect.ms``: how long an append waits for its
            directory.
        :param purpose: part of the client id of its connections.
        """
        self._broker_id = broker_id
        self._cache = cache
        self._appends = appends
        self._connector = connector
        self._clock = clock
        self._backoff = backoff
        self._suspect_after_ms = suspect_after_ms
        self._purpose = purpose
        #: The connected leader and the connection.
        self._leader = NO_LEADER
        self._connection: KafkaConnection | None = None

    def max_batch_bytes(self, topic: str) -> int:
        """Return the limit of a batch in bytes: the topic's present ``max.message.bytes``."""
        return self._appends.max_batch_bytes(topic)

    def append_records(
        self,
        partition: TopicPartition,
        batch: bytes,
        *,
        leader_epoch: LeaderEpoch,
        timeout_ms: int,
        transaction: TransactionClaim | None = None,
    ) -> Completion[AppendOutcome]:
        """Append as the leader of ``leader_epoch``; complete when all in-sync replicas have the
        batch.

        Appends keep their order. The outcome is an error if this broker does not lead in that
        epoch, if the directory refuses or does not respond, or after ``timeout_ms``. After an
        error the batch may still be appended, but only in this epoch.

        :param transaction: the transaction of a transactional batch.
        """
        appending = self._appends.append_records(
            partition,
            batch,
            acks=_ACKS_ALL,
            timeout_ms=timeout_ms,
            leader_epoch=leader_epoch,
            transaction=transaction,
        )
        suspect_after_ms = min(self._suspect_after_ms, timeout_ms)
        return self._appends.outcomes([appending], _only, suspect_after_ms=suspect_after_ms)

    async def send(
        self,
        topic: str,
        batch: bytes,
        *,
        acks: int,
        deadline: Deadline,
        choose: Callable[[int], int],
    ) -> None:
        """Send ``batch`` to a partition's leader, with retries until ``deadline``. A retry after a
        lost response may append it twice.

        :param choose: returns the index of the partition from the number of partitions, per
            attempt.
        :raises OperatingError: the last failure, when no time is left for another attempt.
        """
        failures = 0
        while True:
            try:
                await self._attempt(topic, batch, acks, deadline, choose)
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

    async def _attempt(
        self,
        name: str,
        batch: bytes,
        acks: int,
        deadline: Deadline,
        choose: Callable[[int], int],
    ) -> None:
        topic = self._cache.state.topic(name)
        if topic is None:
            raise OperatingError(
                f"there is no topic {name} yet", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        partition = TopicPartition(name, choose(len(topic.partitions)))
        leader = topic.partitions[partition.partition].leader
        if leader == NO_LEADER:
            raise OperatingError(f"{partition} has no leader", code=ErrorCode.LEADER_NOT_AVAILABLE)
        timeout_ms = min(_REQUEST_TIMEOUT_MS, max(1, deadline.remaining_ms(self._clock.now_ms())))
        if leader == self._broker_id:
            await self._append(partition, batch, acks, timeout_ms)
            return
        data = ProduceRequest.PartitionProduceData(index=partition.partition, records=batch)
        request = ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=name, topic_id=topic.topic_id, partition_data=[data]
                )
            ],
        )
        await self._produce(leader, partition, request)

    async def _append(
        self, partition: TopicPartition, batch: bytes, acks: int, timeout_ms: int
    ) -> None:
        appending = self._appends.append_records(partition, batch, acks=acks, timeout_ms=timeout_ms)
        suspect_after_ms = min(self._suspect_after_ms, timeout_ms)
        outcome = await self._appends.outcomes(
            [appending], _only, suspect_after_ms=suspect_after_ms
        )
        _require_taken(partition, outcome.code, outcome.message)

    async def _produce(
        self, leader: BrokerId, partition: TopicPartition, request: ProduceRequest
    ) -> None:
        connection = await self._connected(leader, request.timeout_ms)
        response = await connection.request(request, timeout_ms=request.timeout_ms)
        assert response is not None, "acks"
        (answered,) = response.responses[0].partition_responses
        _require_taken(partition, answered.error_code, answered.error_message)

    async def _connected(self, leader: BrokerId, timeout_ms: int) -> KafkaConnection:
        if self._connection is not None and self._connection.is_open and self._leader == leader:
            return self._connection
        self.close()
        self._connection = await self._connector.connect(
            leader, purpose=self._purpose, timeout_ms=timeout_ms
        )
        self._leader = leader
        return self._connection


def _only(outcomes: Sequence[AppendOutcome]) -> AppendOutcome:
    (outcome,) = outcomes
    return outcome


def _require_taken(partition: TopicPartition, code: int, said: str | None) -> None:
    if code != ErrorCode.NONE:
        error = ErrorCode(code)
        raise OperatingError(f"{partition}: {said or error.name}", code=error)
