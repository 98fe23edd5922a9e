"""LOOP. ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import asyncio
from typing import Final

from kraftjbod.broker.answer_partitions import answer_partitions
from kraftjbod.broker.replicas.replica_reads import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    ReplicaReads,
)
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.protocol.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

Wanted = ListOffsetsRequest.ListOffsetsPartition
Found = ListOffsetsResponse.ListOffsetsPartitionResponse
#: Earlier versions do not know OFFSET_NOT_AVAILABLE (KIP-207).
_OFFSET_NOT_AVAILABLE_SINCE: Final = 5
_LEADER_EPOCH_SINCE: Final = 4
#: First version of each special timestamp; Kafka refuses it in earlier versions.
_MEANING_SINCE: Final = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}


def _offset_refused(part: Wanted) -> Found:
    return Found(partition_index=part.partition_index, error_code=ErrorCode.INVALID_REQUEST)


class OffsetApis:
    def __init__(self, *, reads: ReplicaReads, suspect_after_ms: int) -> None:
        self._reads = reads
        self._suspect_after_s = suspect_after_ms / 1000

    async def list_offsets(
        self, request: ListOffsetsRequest, context: RequestContext
    ) -> ListOffsetsResponse:
        asked = ((topic.name, part) for topic in request.topics for part in topic.partitions)
        found = iter(
            await answer_partitions(
                asked,
                lambda one: self._find(*one, request.isolation_level, context),
                refuse=lambda one: _offset_refused(one[1]),
            )
        )
        return ListOffsetsResponse(
            topics=[
                ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=topic.name, partitions=[next(found) for _ in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    async def _find(
        self, topic: str, part: Wanted, isolation_level: int, context: RequestContext
    ) -> Found:
        listed = Found(partition_index=part.partition_index)
        if context.api_version < _MEANING_SINCE.get(part.timestamp, 0):
            listed.error_code = ErrorCode.UNSUPPORTED_VERSION
            return listed
        try:
            async with asyncio.timeout(self._suspect_after_s):
                found = await self._reads.find_offset(
                    TopicPartition(topic, part.partition_index),
                    part.timestamp,
                    current_leader_epoch=part.current_leader_epoch,
                    is_committed_only=isolation_level == READ_COMMITTED,
                )
        except TimeoutError:
            # The directory does not respond; responses for other partitions must not wait for it.
            listed.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return listed
        except OperatingError as e:
            is_unknown = e.code is ErrorCode.OFFSET_NOT_AVAILABLE and (
                context.api_version < _OFFSET_NOT_AVAILABLE_SINCE
            )
            listed.error_code = ErrorCode.LEADER_NOT_AVAILABLE if is_unknown else e.code
            return listed
        listed.timestamp, listed.offset, leader_epoch = found
        if context.api_version >= _LEADER_EPOCH_SINCE:
            listed.leader_epoch = leader_epoch
        return listed

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, _context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        self._end_of_epoch(topic.topic, part)
                        async for part in in_slices(topic.partitions)
                    ],
                )
                for topic in request.topics
            ]
        )

    def _end_of_epoch(
        self, topic: str, part: OffsetForLeaderEpochRequest.OffsetForLeaderPartition
    ) -> OffsetForLeaderEpochResponse.EpochEndOffset:
        result = OffsetForLeaderEpochResponse.EpochEndOffset(partition=part.partition)
        try:
            result.leader_epoch, result.end_offset = self._reads.end_of_epoch(
                TopicPartition(topic, part.partition),
                part.leader_epoch,
                current_leader_epoch=part.current_leader_epoch,
            )
        except OperatingError as e:
            result.error_code = e.code
        return result
