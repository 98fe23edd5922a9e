"""WIRE. Sends record batches to one topic; each batch exactly once with acks=all.

* A batch is built once and sent until it is acknowledged, refused or timed out.
* With acks=all the producer is idempotent. If the response to a stored batch was lost, the leader
  recognises the repeated batch by its sequence number.
* One batch per partition is in flight at a time, so the order within a partition is kept. Different
  partitions are independent.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.messages import InitProducerIdRequest, ProduceRequest, ProduceResponse
from kraftjbod.protocol.record_batch import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Compression,
)
from kraftjbod.protocol.records import Record, build_batch

ACKS_ALL: Final = -1
ACKS_NONE: Final = 0
_NO_PRODUCER_EPOCH: Final = -1
_SEQUENCE_MASK: Final = 0x7FFFFFFF


class Producer:
    """Sends batches to partitions of ``topic``, and waits for their acknowledgements.

    With ``acks=-1``, the default, the producer is idempotent. All methods must be called in the
    same event loop.
    """

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        *,
        acks: int = ACKS_ALL,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        compression: Compression = Compression.NONE,
    ) -> None:
        self._client = client
        self._topic = topic
        self._acks = acks
        self._request_timeout_ms = request_timeout_ms
        self._delivery_timeout_ms = delivery_timeout_ms
        self._compression = compression
        self._producer: tuple[int, int] | None = None
        self._start_lock = asyncio.Lock()
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: Next sequence number by partition; -1 once it is unknown whether a batch was stored.
        self._sequences: defaultdict[int, int] = defaultdict(int)

    async def send(self, partition: int, records: Sequence[Record]) -> int:
        """Send ``records`` as one batch, and return the offset of the first one (-1 with acks=0).

        :raises OperatingError: the batch was refused or not acknowledged in time, so it may or may
            not be stored. An idempotent producer then sends no more batches to the partition.
        """
        producer_id, epoch = await self._identity()
        async with self._locks[partition]:
            sequence = self._sequences[partition]
            if sequence < 0:
                raise OperatingError(f"{self._topic}-{partition}: an earlier batch is in doubt")
            idempotent = producer_id != NO_PRODUCER_ID
            batch = build_batch(
                records,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence if idempotent else NO_SEQUENCE,
                compression=self._compression,
            )
            if idempotent:
                self._sequences[partition] = -1
            offset = await self._client.retry(
                lambda: self._produce(partition, batch),
                topics=[self._topic],
                timeout_ms=self._delivery_timeout_ms,
            )
            if idempotent:
                self._sequences[partition] = (sequence + len(records)) & _SEQUENCE_MASK
            return offset

    async def _identity(self) -> tuple[int, int]:
        async with self._start_lock:
            if self._producer is None:
                if self._acks == ACKS_ALL:
                    self._producer = await self._client.retry(self._init_producer_id)
                else:
                    self._producer = (NO_PRODUCER_ID, _NO_PRODUCER_EPOCH)
            return self._producer

    async def _init_producer_id(self) -> tuple[int, int]:
        response = await self._client.request_from_any_broker(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        )
        if response.error_code != ErrorCode.NONE:
            raise kafka_error(response.error_code, "no producer id")
        return response.producer_id, response.producer_epoch

    async def _produce(self, partition: int, batch: bytes) -> int:
        if self._acks == ACKS_NONE and not self._client.is_connected(
            self._client.metadata.leader(self._topic, partition)
        ):
            # A broker that refuses a batch with acks=0 only closes the connection. It may have lost
            # the leadership.
            await self._client.refresh_metadata([self._topic])
        metadata = self._client.metadata
        data = ProduceRequest.TopicProduceData(
            name=self._topic,
            topic_id=metadata.topic(self._topic).topic_id,
            partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=batch)],
        )
        response = await self._client.request_leader(
            self._topic,
            partition,
            ProduceRequest(acks=self._acks, timeout_ms=self._request_timeout_ms, topic_data=[data]),
            # The broker answers within the request's timeout, and the response needs time to
            # arrive.
            timeout_ms=self._request_timeout_ms + 5000,
        )
        return -1 if response is None else self._offset(response, partition)

    def _offset(self, response: ProduceResponse, partition: int) -> int:
        result = response.responses[0].partition_responses[0]
        if result.error_code != ErrorCode.NONE:
            what = f"{self._topic}-{partition}"
            said = result.error_message
            raise kafka_error(result.error_code, what, said and f"{what}: {said}")
        return result.base_offset


def now_ms() -> int:
    """Return the current time in milliseconds since 1970, for record timestamps."""
    return time.time_ns() // 1_000_000
