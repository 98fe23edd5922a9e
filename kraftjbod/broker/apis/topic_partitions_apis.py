"""LOOP. DescribeTopicPartitions (KIP-966): topics sorted by name, a limited number of partitions.

* A cursor in the response is the start of the next request, if partitions remain.
* This is the only response with the eligible leader replicas (ELR) and the last known ELR.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.broker.access import Access
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.internal.internal_topics import InternalTopics
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.security.authorized_operations import ALL_OF_TOPIC
from kraftjbod.core.acl import AclOperation, AclResourceType
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import NO_LEADER, ZERO_UUID
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.text.topic_name import code_of_absence
from kraftjbod.metadata.registrations import PartitionRegistration, TopicRegistration
from kraftjbod.protocol.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)

Response = DescribeTopicPartitionsResponse
Topic = Response.DescribeTopicPartitionsResponseTopic
Partition = Response.DescribeTopicPartitionsResponsePartition
_COMPLETE: Final = -1


class TopicPartitionsApis:
    def __init__(
        self, *, cache: MetadataCache, internal_topics: InternalTopics, max_partitions: int
    ) -> None:
        self._cache = cache
        self._internal_topics = internal_topics
        self._max_partitions = max_partitions

    async def describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> DescribeTopicPartitionsResponse:
        topics: list[Topic] = []
        response = Response(topics=topics, next_cursor=None)
        try:
            names, first = self._wanted(request)
        except OperatingError as e:
            asked = dict.fromkeys(topic.name for topic in request.topics)
            response.topics = [_refused(name, e.code) for name in asked]
            return response
        limit = request.response_partition_limit
        left = max(1, min(limit, self._max_partitions))
        access = context.access
        async for name in in_slices(names):
            if access is not None and not self._may_describe(access, request, name):
                if request.topics:
                    topics.append(_refused(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                continue
            if not left:
                response.next_cursor = Response.Cursor(topic_name=name, partition_index=0)
                break
            topic = self._cache.state.topic(name)
            if topic is None:
                if request.topics:
                    topics.append(_refused(name, code_of_absence(name)))
                continue
            described, goes_on_at = self._describe(topic, first, left, context.listener_name)
            if access is not None:
                described.topic_authorized_operations = access.operations_on(
                    AclResourceType.TOPIC, name
                )
            topics.append(described)
            left, first = left - len(described.partitions), 0
            if goes_on_at != _COMPLETE:
                response.next_cursor = Response.Cursor(topic_name=name, partition_index=goes_on_at)
                break
        return response

    def _may_describe(
        self, access: Access, request: DescribeTopicPartitionsRequest, name: str
    ) -> bool:
        check = access.may if request.topics else access.may_see
        return check(AclOperation.DESCRIBE, AclResourceType.TOPIC, name)

    def _wanted(self, request: DescribeTopicPartitionsRequest) -> tuple[list[str], int]:
        """Return the sorted topic names from the cursor on, and the first topic's first partition
        index.

        :raises OperatingError: INVALID_REQUEST: the cursor is invalid.
        """
        asked = {topic.name for topic in request.topics}
        cursor = request.cursor
        if cursor is None:
            return sorted(asked or self._cache.state.topic_ids), 0
        if cursor.partition_index < 0 or (asked and cursor.topic_name not in asked):
            raise OperatingError(
                f"the cursor points at {cursor.topic_name}-{cursor.partition_index}, which was not "
                "asked for",
                code=ErrorCode.INVALID_REQUEST,
            )
        names = asked or self._cache.state.topic_ids
        left = sorted(name for name in names if name >= cursor.topic_name)
        is_there = bool(left) and left[0] == cursor.topic_name
        return left, cursor.partition_index if is_there else 0

    def _describe(
        self, topic: TopicRegistration, first: int, limit: int, listener_name: str
    ) -> tuple[Topic, int]:
        """Return the topic with at most ``limit`` partitions from ``first`` on.

        The second result is the index of the next partition; -1 if there is none.
        """
        end = min(len(topic.partitions), first + limit)
        described = Topic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in self._internal_topics,
            partitions=[
                self._describe_partition(index, topic.partitions[index], listener_name)
                for index in range(first, end)
            ],
            topic_authorized_operations=ALL_OF_TOPIC,
        )
        return described, end if end < len(topic.partitions) else _COMPLETE

    def _describe_partition(
        self, index: int, partition: PartitionRegistration, listener_name: str
    ) -> Partition:
        leader = self._cache.leader_for(partition, listener_name)
        return Partition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
            partition_index=index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            eligible_leader_replicas=partition.elr,
            last_known_elr=partition.last_known_elr,
            offline_replicas=self._cache.offline_replicas(partition, listener_name),
        )


def _refused(name: str, code: ErrorCode) -> Topic:
    return Topic(error_code=code, name=name, topic_id=ZERO_UUID)
