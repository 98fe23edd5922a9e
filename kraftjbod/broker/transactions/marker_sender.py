"""LOOP. ``MarkerSender``: sends transaction markers to partition leaders (WriteTxnMarkers).

One request per broker is in flight at a time, on a persistent connection. marker_queue.py decides
about contents and retries. A marker whose response was lost may be written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.broker.transactions.marker_queue import Batch, Ending, MarkerQueue, Outcome
from kraftjbod.broker.transactions.transaction_records import by_topic
from kraftjbod.core import buggify
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

#: Added to the leader's ``request.timeout.ms``, within which it responds.
_SLACK_MS: Final = 2_000
_CONNECT_TIMEOUT_MS: Final = 2_000
#: Timeout of a request that a simulation shortens at random.
_EARLY_TIMEOUT_MS: Final = 50


class MarkerSender:
    """Sends queued markers to the partition leaders. Call ``close()`` at the end."""

    def __init__(
        self,
        *,
        queue: MarkerQueue,
        connector: BrokerConnector,
        tasks: BackgroundTasks,
        clock: Clock,
        request_timeout_ms: int,
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        """Create a sender.

        :param request_timeout_ms: the time within which a partition leader responds.
        :param on_outcome: called with each outcome; must not await.
        """
        self._queue = queue
        self._connector = connector
        self._tasks = tasks
        self._clock = clock
        self._timeout_ms = request_timeout_ms + _SLACK_MS
        self._on_outcome = on_outcome
        self._connections: dict[BrokerId, KafkaConnection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._log = get_logger(component="marker_sender")

    def send(self, ending: Ending, partitions: Collection[TopicPartition]) -> None:
        """Queue a marker for each of ``partitions``, and return at once.

        Sending is repeated until the partition has a marker, is deleted, or has a newer producer or
        coordinator.
        """
        gone = self._queue.put(ending, partitions, self._clock.now_ms())
        if gone:
            self._on_outcome(Outcome(ending, gone))
        self._send_due()

    def drop_partition(self, index: int) -> None:
        """Stop sending markers of transactions in partition ``index`` of
        ``__transaction_state``."""
        self._queue.drop_partition(index)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _send_due(self) -> None:
        if self._is_closed:
            return
        for broker_id in self._queue.idle_brokers():
            batch = self._queue.take(broker_id)
            if batch:
                self._begin(broker_id, batch)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ms = self._queue.next_ms
        if next_ms is not None:
            delay_s = max(0, next_ms - self._clock.now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self._deliver_outcomes(self._queue.retry(self._clock.now_ms()))
        self._send_due()

    def _begin(self, broker_id: BrokerId, batch: Batch) -> None:
        self._tasks.attempt(lambda: self._ask(broker_id, batch), f"markers-{broker_id}")

    async def _ask(self, broker_id: BrokerId, batch: Batch) -> None:
        codes: dict[tuple[int, TopicPartition], ErrorCode] = {}
        timeout_ms = self._timeout_ms
        if buggify.is_on and buggify.fires("broker.early_marker_timeout"):
            timeout_ms = _EARLY_TIMEOUT_MS
        try:
            connection = await self._connected(broker_id)
            response = await connection.request(_request(batch), timeout_ms=timeout_ms)
            if not (buggify.is_on and buggify.fires("broker.marker_answer_lost")):
                codes = _codes(response)
        except OperatingError as e:
            # All markers are retried with the leaders of that time.
            self._log.info("markers_not_sent", broker_id=broker_id, reason=e.message)
        finally:
            self._deliver_outcomes(self._queue.answered(broker_id, codes, self._clock.now_ms()))
            self._send_due()

    async def _connected(self, broker_id: BrokerId) -> KafkaConnection:
        connection = self._connections.get(broker_id)
        if connection is None or not connection.is_open:
            connection = self._connections[broker_id] = await self._connector.connect(
                broker_id, purpose="markers", timeout_ms=_CONNECT_TIMEOUT_MS
            )
        return connection

    def _deliver_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._on_outcome(outcome)


def _request(batch: Batch) -> WriteTxnMarkersRequest:
    kinds = WriteTxnMarkersRequest
    return kinds(
        markers=[
            kinds.WritableTxnMarker(
                producer_id=ending.metadata.producer_id,
                producer_epoch=ending.metadata.producer_epoch,
                transaction_result=ending.commits,
                topics=[
                    kinds.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                    for name, indexes in by_topic(partitions).items()
                ],
                coordinator_epoch=ending.coordinator_epoch,
                transaction_version=ending.metadata.client_version,
            )
            for ending, partitions in batch.items()
        ]
    )


def _codes(response: WriteTxnMarkersResponse) -> dict[tuple[int, TopicPartition], ErrorCode]:
    return {
        (marker.producer_id, TopicPartition(topic.name, part.partition_index)): ErrorCode(
            part.error_code
        )
        for marker in response.markers
        for topic in marker.topics
        for part in topic.partitions
    }
