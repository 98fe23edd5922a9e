"""AlterPartitionReassignments and ListPartitionReassignments, forwarded to the controller.

The broker decides nothing here, as in topic_apis.py.
Target directories come in a tagged field of our own (kafka_extensions.py).
"""

from __future__ import annotations

from collections import defaultdict

from kraftjbod.broker.controller_channel import ControllerChannel, forward_timeout_ms
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.protocol.kafka_codec import Message, message
from kraftjbod.protocol.rpc_messages import (
    MAX_PARTITIONS_PER_REQUEST,
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ReassignedPartition,
)

AlterPartitionReassignmentsResponse = message("AlterPartitionReassignmentsResponse")
ListPartitionReassignmentsResponse = message("ListPartitionReassignmentsResponse")


class ReassignmentApis:
    def __init__(self, *, channel: ControllerChannel) -> None:
        self._channel = channel

    async def alter_partition_reassignments(
        self, request: Message, _context: RequestContext
    ) -> Message:
        response: Message = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
        )
        wishes = tuple(
            _wish(topic.name, partition)
            for topic in request.topics
            for partition in topic.partitions
        )
        try:
            response.responses = await self._alter(wishes, request)
        except OperatingError as e:
            response.error_code, response.error_message = e.code, e.message
        return response

    async def _alter(
        self, wishes: tuple[ReassignedPartition, ...], request: Message
    ) -> list[Message]:
        if len(wishes) > MAX_PARTITIONS_PER_REQUEST:
            raise OperatingError(
                f"{len(wishes)} partitions in one request; ask for at most "
                f"{MAX_PARTITIONS_PER_REQUEST} at a time",
                code=ErrorCode.INVALID_REQUEST,
            )
        forwarded = AlterPartitionReassignmentsRequest(
            partitions=wishes,
            allow_replication_factor_change=request.allow_replication_factor_change,
        )
        answer = await self._channel.call(
            forwarded, timeout_ms=forward_timeout_ms(request.timeout_ms)
        )
        kind = AlterPartitionReassignmentsResponse
        by_topic: dict[str, list[Message]] = defaultdict(list)
        for outcome in answer.partitions:
            by_topic[outcome.topic].append(
                kind.ReassignablePartitionResponse(
                    partition_index=outcome.partition,
                    error_code=outcome.error_code,
                    error_message=outcome.error_message,
                )
            )
        return [
            kind.ReassignableTopicResponse(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ]

    async def list_partition_reassignments(
        self, request: Message, _context: RequestContext
    ) -> Message:
        response: Message = ListPartitionReassignmentsResponse(error_message=None)
        asked: dict[str, tuple[int, ...]] | None = None
        if request.topics is not None:
            asked = {}
            for topic in request.topics:
                asked[topic.name] = (*asked.get(topic.name, ()), *topic.partition_indexes)
        try:
            response.topics = await self._list(asked, request.timeout_ms)
        except OperatingError as e:
            response.error_code, response.error_message = e.code, e.message
        return response

    async def _list(
        self, asked: dict[str, tuple[int, ...]] | None, timeout_ms: int
    ) -> list[Message]:
        answer = await self._channel.call(
            ListPartitionReassignmentsRequest(partitions=asked),
            timeout_ms=forward_timeout_ms(timeout_ms),
        )
        kind = ListPartitionReassignmentsResponse
        by_topic: dict[str, list[Message]] = defaultdict(list)
        for ongoing in answer.partitions:
            by_topic[ongoing.topic].append(
                kind.OngoingPartitionReassignment(
                    partition_index=ongoing.partition,
                    replicas=list(ongoing.replicas),
                    adding_replicas=list(ongoing.adding_replicas),
                    removing_replicas=list(ongoing.removing_replicas),
                )
            )
        return [
            kind.OngoingTopicReassignment(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ]


def _wish(topic: str, partition: Message) -> ReassignedPartition:
    replicas = partition.replicas
    return ReassignedPartition(
        topic=topic,
        partition=partition.partition_index,
        replicas=None if replicas is None else tuple(map(BrokerId, replicas)),
        target_dirs=tuple(partition.target_directories),
    )
