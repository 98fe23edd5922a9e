"""LOOP. AlterPartitionReassignments and ListPartitionReassignments, forwarded to the controller.

The broker makes no decisions here, as in topic_apis.py. A tagged field of this project has the
target directories (kafka_extensions.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from kraftjbod.broker.apis.admin.forwarding import TimeLeft, forward
from kraftjbod.broker.cluster.controller_channel import ControllerChannel, forward_timeout_ms
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.request_limits import MAX_FORWARDED_BYTES, MAX_ITEMS_PER_REQUEST
from kraftjbod.protocol import rpc_config_messages
from kraftjbod.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kraftjbod.protocol.rpc_codec import encoded_size
from kraftjbod.protocol.rpc_config_messages import (
    ReassignedPartition,
    ReassignmentOutcome,
)

Reassignable = AlterPartitionReassignmentsRequest.ReassignablePartition
Altered = AlterPartitionReassignmentsResponse
Listed = ListPartitionReassignmentsResponse
_NAMED_TWICE: Final = OperatingError(
    "the request names the partition more than once", code=ErrorCode.INVALID_REQUEST
)


class ReassignmentApis:
    def __init__(self, *, channel: ControllerChannel) -> None:
        self._channel = channel

    async def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, _context: RequestContext
    ) -> AlterPartitionReassignmentsResponse:
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
        )
        try:
            response.responses = await self._alter(request)
        except OperatingError as e:
            response.error_code, response.error_message = e.code, e.message
        return response

    async def _alter(
        self, request: AlterPartitionReassignmentsRequest
    ) -> list[Altered.ReassignableTopicResponse]:
        count = sum(len(topic.partitions) for topic in request.topics)
        if count > MAX_ITEMS_PER_REQUEST:
            raise OperatingError(
                f"{count} partitions in one request; ask for at most "
                f"{MAX_ITEMS_PER_REQUEST} at a time",
                code=ErrorCode.INVALID_REQUEST,
            )
        twice: list[ReassignmentOutcome] = []
        left = TimeLeft(request.timeout_ms)
        under_way = await self._under_way(request, left)
        outcomes = await forward(
            self._channel,
            _requested_assignments(request, twice, under_way),
            ask=lambda part: rpc_config_messages.AlterPartitionReassignmentsRequestRpc(
                partitions=part,
                allow_replication_factor_change=request.allow_replication_factor_change,
            ),
            outcomes=lambda answer: answer.partitions,
            refuse=lambda requested, error: _refused(requested.topic, requested.partition, error),
            timeout_ms=left.ms(),
            raises_first=True,
        )
        by_topic: dict[str, list[Altered.ReassignablePartitionResponse]] = defaultdict(list)
        for outcome in (*outcomes, *twice):
            by_topic[outcome.topic].append(
                Altered.ReassignablePartitionResponse(
                    partition_index=outcome.partition,
                    error_code=outcome.error_code,
                    error_message=outcome.error_message,
                )
            )
        return [
            Altered.ReassignableTopicResponse(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ]

    async def _under_way(
        self, request: AlterPartitionReassignmentsRequest, left: TimeLeft
    ) -> set[tuple[str, int]]:
        """Return the ongoing reassignments among those that the request cancels.

        With that, a retry of the forwarded request recognizes its own cancellation.
        """
        cancelled: dict[str, list[int]] = defaultdict(list)
        for topic in request.topics:
            for partition in topic.partitions:
                if partition.replicas is None:
                    cancelled[topic.name].append(partition.partition_index)
        if not cancelled:
            return set()
        asked = {name: tuple(indexes) for name, indexes in cancelled.items()}
        question = rpc_config_messages.ListPartitionReassignmentsRequestRpc(partitions=asked)
        if encoded_size(question) > MAX_FORWARDED_BYTES:
            question = rpc_config_messages.ListPartitionReassignmentsRequestRpc()
        answer = await self._channel.forward(question, timeout_ms=left.ms())
        return {(ongoing.topic, ongoing.partition) for ongoing in answer.partitions}

    async def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest, _context: RequestContext
    ) -> ListPartitionReassignmentsResponse:
        response = ListPartitionReassignmentsResponse(error_message=None)
        asked: dict[str, tuple[int, ...]] | None = None
        if request.topics is not None:
            by_name: dict[str, list[int]] = defaultdict(list)
            for topic in request.topics:
                by_name[topic.name] += topic.partition_indexes
            asked = {name: tuple(dict.fromkeys(indexes)) for name, indexes in by_name.items()}
        try:
            response.topics = await self._list(asked, request.timeout_ms)
        except OperatingError as e:
            response.error_code, response.error_message = e.code, e.message
        return response

    async def _list(
        self, asked: dict[str, tuple[int, ...]] | None, timeout_ms: int
    ) -> list[Listed.OngoingTopicReassignment]:
        forwarded = rpc_config_messages.ListPartitionReassignmentsRequestRpc(partitions=asked)
        if encoded_size(forwarded) > MAX_FORWARDED_BYTES:
            raise OperatingError(
                "these are more partitions than one request may name; ask for all of them",
                code=ErrorCode.INVALID_REQUEST,
            )
        answer = await self._channel.forward(forwarded, timeout_ms=forward_timeout_ms(timeout_ms))
        by_topic: dict[str, list[Listed.OngoingPartitionReassignment]] = defaultdict(list)
        for ongoing in answer.partitions:
            by_topic[ongoing.topic].append(
                Listed.OngoingPartitionReassignment(
                    partition_index=ongoing.partition,
                    replicas=list(ongoing.replicas),
                    adding_replicas=list(ongoing.adding_replicas),
                    removing_replicas=list(ongoing.removing_replicas),
                )
            )
        return [
            Listed.OngoingTopicReassignment(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ]


def _requested_assignments(
    request: AlterPartitionReassignmentsRequest,
    twice: list[ReassignmentOutcome],
    under_way: set[tuple[str, int]],
) -> Iterator[ReassignedPartition]:
    """Yield the controller's request for each partition.

    :param twice: gets a refusal for each repeated partition.
    :param under_way: the partitions with an ongoing reassignment.
    """
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        for partition in topic.partitions:
            key = topic.name, partition.partition_index
            if key in seen:
                twice.append(_refused(*key, _NAMED_TWICE))
                continue
            seen.add(key)
            yield _reassigned_partition(topic.name, partition, was_under_way=key in under_way)


def _refused(topic: str, partition: int, error: OperatingError) -> ReassignmentOutcome:
    return ReassignmentOutcome(
        topic=topic, partition=partition, error_code=error.code, error_message=error.message
    )


def _reassigned_partition(
    topic: str, partition: Reassignable, *, was_under_way: bool
) -> ReassignedPartition:
    replicas = partition.replicas
    return ReassignedPartition(
        topic=topic,
        partition=partition.partition_index,
        replicas=None if replicas is None else tuple(map(BrokerId, replicas)),
        target_dirs=tuple(partition.target_directories),
        was_under_way=was_under_way,
    )
