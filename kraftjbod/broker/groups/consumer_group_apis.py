"""LOOP. ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848).

This module validates requests; consumer_group.py has the semantics. Both are refused as unsupported
until the cluster's level of ``group.version`` is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.groups.consumer.consumer_group import ConsumerGroup
from kraftjbod.broker.groups.consumer.consumer_group_events import (
    AWAY,
    JOINING,
    LEAVING,
    ConsumerAnswer,
    ConsumerHeartbeat,
)
from kraftjbod.broker.groups.coordinator.group_coordinator import GroupCoordinator
from kraftjbod.broker.groups.records.consumer_group_records import (
    ConsumerMember,
    Partitions,
    by_topic,
)
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.security.authorized_operations import ALL_OF_GROUP, NOT_ASKED
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicId, TopicIdPartition, Uuid
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.metadata_version import GROUP_VERSION
from kraftjbod.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

#: From this version on, a member generates its own id.
_OWN_ID_SINCE: Final = 1
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1
Described = ConsumerGroupDescribeResponse.DescribedGroup


class ConsumerGroupApis:
    def __init__(
        self,
        *,
        coordinator: GroupCoordinator,
        cache: MetadataCache,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._coordinator = coordinator
        self._cache = cache
        self._random_bytes = random_bytes

    def _require_level(self) -> None:
        if not self._cache.state.features.get(GROUP_VERSION, 0):
            raise OperatingError(
                f"the cluster's level of {GROUP_VERSION} is 0; raise it with kraftjbod-features",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )

    # --- ConsumerGroupHeartbeat ------------------------------------------------------------------

    async def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse:
        token: Completion[ConsumerAnswer] = Completion()
        try:
            self._require_level()
            _require_sense(request, context)
            asked = self._asked(request, context, token)
            self._coordinator.consumer_heartbeat(request.group_id, asked)
        except OperatingError as e:
            return ConsumerGroupHeartbeatResponse(error_code=e.code, error_message=e.message)
        return _response(await token)

    def _asked(
        self,
        request: ConsumerGroupHeartbeatRequest,
        context: RequestContext,
        token: Completion[ConsumerAnswer],
    ) -> ConsumerHeartbeat:
        names, owned = request.subscribed_topic_names, request.topic_partitions
        return ConsumerHeartbeat(
            token=token,
            member_id=request.member_id or str(Uuid.random(self._random_bytes)),
            epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topic_names=None if names is None else frozenset(names),
            topic_regex=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=None if owned is None else _owned(owned),
            client_id=context.client_id or "",
            client_host="/" + context.connection.peer.rpartition(":")[0],
        )

    # --- ConsumerGroupDescribe -------------------------------------------------------------------

    async def describe(
        self, request: ConsumerGroupDescribeRequest, _context: RequestContext
    ) -> ConsumerGroupDescribeResponse:
        operations = ALL_OF_GROUP if request.include_authorized_operations else NOT_ASKED
        groups = []
        async for group_id in in_slices(dict.fromkeys(request.group_ids)):
            try:
                groups.append(self._described(self._found(group_id), operations))
            except OperatingError as e:
                refused = Described(error_code=e.code, error_message=e.message, group_id=group_id)
                groups.append(refused)
        return ConsumerGroupDescribeResponse(groups=groups)

    def _found(self, group_id: str) -> ConsumerGroup:
        self._require_level()
        if not group_id:
            raise OperatingError("a group has a name", code=ErrorCode.INVALID_GROUP_ID)
        group = self._coordinator.find(group_id).consumer_groups.get(group_id)
        if group is None:
            raise OperatingError(
                f"there is no consumer group {group_id}", code=ErrorCode.GROUP_ID_NOT_FOUND
            )
        return group

    def _described(self, group: ConsumerGroup, operations: int) -> Described:
        state = group.state
        return Described(
            group_id=group.group_id,
            group_state=state.phase.value,
            group_epoch=state.epoch,
            assignment_epoch=state.assignment_epoch,
            assignor_name=group.assignor,
            members=[self._member(group, one) for one in state.members.values()],
            authorized_operations=operations,
        )

    def _member(
        self, group: ConsumerGroup, member: ConsumerMember
    ) -> ConsumerGroupDescribeResponse.Member:
        current = group.state.current(member.member_id)
        return ConsumerGroupDescribeResponse.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=current.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            subscribed_topic_regex=member.topic_regex or None,
            assignment=self._assignment((*current.assigned, *current.revoking)),
            target_assignment=self._assignment(group.state.target(member.member_id)),
            member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
        )

    def _assignment(
        self, partitions: Iterable[TopicIdPartition]
    ) -> ConsumerGroupDescribeResponse.Assignment:
        """Return the partitions, grouped by topic, without those of deleted topics."""
        topics = self._cache.state.topics
        return ConsumerGroupDescribeResponse.Assignment(
            topic_partitions=[
                ConsumerGroupDescribeResponse.TopicPartitions(
                    topic_id=topic_id, topic_name=topics[topic_id].name, partitions=indexes
                )
                for topic_id, indexes in by_topic(partitions)
                if topic_id in topics
            ]
        )


def _require_sense(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> None:
    wrong = _validation_error(request, context)
    if wrong is not None:
        raise OperatingError(wrong, code=ErrorCode.INVALID_REQUEST)


def _validation_error(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> str | None:
    """Return the error message for a request that is invalid for any group; None if it is valid."""
    epoch, is_own = request.member_epoch, context.api_version >= _OWN_ID_SINCE
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    is_joining = epoch == JOINING
    for text, what in ((request.instance_id, "InstanceId"), (request.rack_id, "RackId")):
        if text is not None and not text.strip():
            return f"{what} can't be empty."
    if not request.group_id.strip():
        return "GroupId can't be empty."
    if not request.member_id.strip() and (is_own or not is_joining):
        return "MemberId can't be empty."
    if epoch < AWAY:
        return f"MemberEpoch is {epoch}, but must be greater than or equal to {AWAY}."
    if epoch == AWAY and request.instance_id is None:
        return "InstanceId can't be null."
    if is_joining and request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if is_joining and (request.topic_partitions is None or request.topic_partitions):
        return "TopicPartitions must be empty when (re-)joining."
    if is_joining and names is None and regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when joining."
    if epoch not in (LEAVING, AWAY) and request.server_assignor == "":
        return "ServerAssignor can't be empty."
    return None


def _owned(
    topics: Iterable[ConsumerGroupHeartbeatRequest.TopicPartitions],
) -> Partitions:
    return frozenset(
        TopicIdPartition(TopicId(bytes(one.topic_id)), index)
        for one in topics
        for index in one.partitions
    )


def _response(answer: ConsumerAnswer) -> ConsumerGroupHeartbeatResponse:
    kind = ConsumerGroupHeartbeatResponse
    assignment = None
    if answer.assignment is not None:
        assignment = kind.Assignment(
            topic_partitions=[
                kind.TopicPartitions(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in by_topic(answer.assignment)
            ]
        )
    return kind(
        error_code=answer.code,
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment,
    )
