"""LOOP. WriteTxnMarkers and DescribeProducers: transactions as the partitions have them.

* Coordinators send markers. Each partition completes once its marker is replicated.
* A coordinator that keeps a partition's records in memory is notified of each marker as soon as
  that marker is replicated (``listeners``), without waiting for other partitions of the request.
  The response follows: a coordinator that receives it knows that committed offsets are visible.
* Any replica answers which producers it knows, and which of their transactions are open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kraftjbod.broker.answer_partitions import answer_partitions
from kraftjbod.broker.replicas.hosted_replicas import HostedReplicas
from kraftjbod.broker.replicas.pending_append import AppendOutcome, MarkerToWrite, PendingAppend
from kraftjbod.broker.replicas.replica_appends import ReplicaAppends
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.core.text.topic_name import why_illegal
from kraftjbod.net.cluster_actions import markers_response
from kraftjbod.protocol.control_records import TransactionMarker
from kraftjbod.protocol.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

#: Called with a partition, a marker that is replicated there, and the marker's offset.
MarkerListener = Callable[[TopicPartition, MarkerToWrite, int], None]
Described = DescribeProducersResponse.PartitionResponse
_TOO_MANY = AppendOutcome(ErrorCode.INVALID_REQUEST)


class TransactionLogApis:
    def __init__(
        self,
        *,
        replicas: HostedReplicas,
        appends: ReplicaAppends,
        suspect_after_ms: int,
        timeout_ms: int,
        listeners: Mapping[str, MarkerListener] = MappingProxyType({}),
    ) -> None:
        """Create the handlers.

        :param suspect_after_ms: ``log.dir.io.suspect.ms``: how long a response waits for a
            directory.
        :param timeout_ms: time limit of the replication of a marker.
        :param listeners: by topic; each is called with a marker that is replicated in the topic.
        """
        self._replicas = replicas
        self._appends = appends
        self._suspect_after_ms = suspect_after_ms
        self._timeout_ms = timeout_ms
        self._listeners = listeners

    # --- WriteTxnMarkers -------------------------------------------------------------------------

    def write_txn_markers(
        self, request: WriteTxnMarkersRequest, _context: RequestContext
    ) -> Completion[WriteTxnMarkersResponse]:
        pending: list[PendingAppend] = []
        for one in request.markers:
            marker = MarkerToWrite(
                one.producer_id,
                one.producer_epoch,
                TransactionMarker(one.transaction_result, one.coordinator_epoch),
                one.transaction_version,
            )
            for topic in one.topics:
                for index in topic.partition_indexes:
                    partition = TopicPartition(topic.name, index)
                    if len(pending) >= MAX_ITEMS_PER_REQUEST:
                        pending.append(PendingAppend.refused(partition, _TOO_MANY))
                    else:
                        pending.append(
                            self._appends.append_marker(
                                partition, marker, timeout_ms=self._timeout_ms
                            )
                        )
        return self._appends.outcomes(
            pending,
            lambda outcomes: markers_response(request, (one.code for one in outcomes)),
            suspect_after_ms=self._suspect_after_ms,
            each=self._completed,
        )

    def _completed(self, append: PendingAppend) -> None:
        outcome, marker = append.result(), append.marker
        listener = self._listeners.get(append.topic_partition.topic)
        if listener is not None and marker is not None and outcome.code is ErrorCode.NONE:
            listener(append.topic_partition, marker, outcome.base_offset)

    # --- DescribeProducers -----------------------------------------------------------------------

    async def describe_producers(
        self, request: DescribeProducersRequest, _context: RequestContext
    ) -> DescribeProducersResponse:
        asked = (
            (topic.name, index) for topic in request.topics for index in topic.partition_indexes
        )
        described = iter(
            await answer_partitions(
                asked,
                lambda one: self._describe(TopicPartition(*one)),
                refuse=lambda one: _refused(one[1], ErrorCode.INVALID_REQUEST, None),
            )
        )
        return DescribeProducersResponse(
            topics=[
                DescribeProducersResponse.TopicResponse(
                    name=topic.name,
                    partitions=[next(described) for _ in topic.partition_indexes],
                )
                for topic in request.topics
            ]
        )

    async def _describe(self, partition: TopicPartition) -> Described:
        reason = why_illegal(partition.topic)
        if reason is not None:
            return _refused(partition.partition, ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        try:
            role, handle = self._replicas.require(partition).require_open()
            role.require_replica()
            known = await handle.known_producers()
        except OperatingError as e:
            return _refused(partition.partition, e.code, e.message)
        return Described(
            partition_index=partition.partition,
            active_producers=[
                DescribeProducersResponse.ProducerState(
                    producer_id=one.producer_id,
                    producer_epoch=one.epoch,
                    last_sequence=one.last_sequence,
                    last_timestamp=one.last_timestamp_ms,
                    coordinator_epoch=one.coordinator_epoch,
                    current_txn_start_offset=one.transaction_first_offset,
                )
                for one in known
            ],
        )


def _refused(index: int, code: ErrorCode, message: str | None) -> Described:
    return Described(partition_index=index, error_code=code, error_message=message)
