"""LOOP. FindCoordinator, DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from typing import Final

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.groups.classic_group import ClassicGroup
from kraftjbod.broker.groups.group_coordinator import GroupCoordinator
from kraftjbod.broker.groups.group_events import GroupState
from kraftjbod.broker.groups.group_records import OFFSETS_TOPIC
from kraftjbod.broker.internal.internal_topic_creator import InternalTopicCreator
from kraftjbod.broker.internal.internal_topics import InternalTopic
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import NO_LEADER, TopicPartition
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.telemetry import get_logger
from kraftjbod.metadata.records import Listener
from kraftjbod.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

_KEYS_SINCE: Final = 4
_OF_GROUP: Final = 0
#: And with it GROUP_ID_NOT_FOUND: before, a group that there is not was one that is dead.
_MESSAGE_SINCE: Final = 6
_CLASSIC: Final = "classic"
Coordinator = FindCoordinatorResponse.Coordinator
Described = DescribeGroupsResponse.DescribedGroup
Listed = ListGroupsResponse.ListedGroup


class GroupAdminApis:
    def __init__(
        self,
        *,
        coordinator: GroupCoordinator,
        cache: MetadataCache,
        creator: InternalTopicCreator,
        offsets_topic: InternalTopic,
    ) -> None:
        self._coordinator = coordinator
        self._cache = cache
        self._creator = creator
        self._offsets_topic = offsets_topic
        #: Why the topic could not be made, as it was told last.
        self._trouble = ""
        self._log = get_logger(component="group_admin_apis")

    # --- FindCoordinator -------------------------------------------------------------------------

    async def find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        has_keys = context.api_version >= _KEYS_SINCE
        keys = list(request.coordinator_keys) if has_keys else [request.key]
        if request.key_type != _OF_GROUP:
            # There are no transactions and no share groups here.
            code, why = ErrorCode.INVALID_REQUEST, "only groups have coordinators here"
            found = [_not_found(key, code, why) for key in keys]
        else:
            if self._cache.state.topic(OFFSETS_TOPIC) is None:
                await self._make_topic()
            found = [self._find(key, context) async for key in in_slices(keys)]
        if has_keys:
            for one in found:
                one.error_message = None if not one.error_code else one.error_message
            return FindCoordinatorResponse(coordinators=found)
        (one,) = found
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _find(self, key: str, context: RequestContext) -> Coordinator:
        index = self._coordinator.partition_of(key)
        why = f"{OFFSETS_TOPIC} is not there yet"
        if index is not None:
            endpoint, node_id = self._leader(index, context.listener_name)
            if endpoint is not None:
                return Coordinator(key=key, node_id=node_id, host=endpoint.host, port=endpoint.port)
            why = f"{OFFSETS_TOPIC}-{index} has no leader that can be reached"
        return _not_found(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, why)

    def _leader(self, index: int, listener_name: str) -> tuple[Listener | None, int]:
        partition = self._cache.state.partition_named(TopicPartition(OFFSETS_TOPIC, index))
        leader = NO_LEADER if partition is None else partition.leader
        return self._cache.endpoint(leader, listener_name), leader

    async def _make_topic(self) -> None:
        """Whoever asked asks again; why it cannot be made is logged once."""
        try:
            await self._creator.ensure(self._offsets_topic)
        except OperatingError as e:
            if e.message != self._trouble:
                self._trouble = e.message
                self._log.warning(
                    "offsets_topic_not_created",
                    reason=e.message,
                    replication_factor=self._offsets_topic.replication_factor,
                    do="start more brokers, or set offsets.topic.replication.factor lower",
                )
        else:
            self._trouble = ""

    # --- DescribeGroups --------------------------------------------------------------------------

    async def describe_groups(
        self, request: DescribeGroupsRequest, context: RequestContext
    ) -> DescribeGroupsResponse:
        names = dict.fromkeys(request.groups)
        return DescribeGroupsResponse(
            groups=[self._describe(name, context) async for name in in_slices(names)]
        )

    def _describe(self, group_id: str, context: RequestContext) -> Described:
        try:
            groups = self._coordinator.find(group_id)
        except OperatingError as e:
            refused = Described(error_code=e.code, group_id=group_id)
            if context.api_version >= _MESSAGE_SINCE:
                refused.error_message = e.message
            return refused
        group = groups.groups.get(group_id)
        if group is not None:
            return _described(group)
        state = groups.state_of(group_id)
        described = Described(group_id=group_id, group_state=state.value)
        if state is GroupState.DEAD and context.api_version >= _MESSAGE_SINCE:
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = f"there is no group {group_id}"
        return described

    # --- ListGroups ------------------------------------------------------------------------------

    async def list_groups(
        self, request: ListGroupsRequest, _context: RequestContext
    ) -> ListGroupsResponse:
        states = {state.strip().lower() for state in request.states_filter}
        types = {kind.strip().lower() for kind in request.types_filter}
        listed: list[Listed] = []
        if types and _CLASSIC not in types:
            return ListGroupsResponse(groups=listed)
        try:
            partitions = list(self._coordinator.all_partitions())
        except OperatingError as e:
            return ListGroupsResponse(error_code=e.code)
        for groups in partitions:
            async for group_id in in_slices(groups.group_ids()):
                state = groups.state_of(group_id)
                if states and state.value.lower() not in states:
                    continue
                group = groups.groups.get(group_id)
                protocol_type = None if group is None else group.protocol_type
                listed.append(
                    Listed(
                        group_id=group_id,
                        protocol_type=protocol_type or "",
                        group_state=state.value,
                        group_type=_CLASSIC,
                    )
                )
        return ListGroupsResponse(groups=listed)

    # --- DeleteGroups ----------------------------------------------------------------------------

    async def delete_groups(
        self, request: DeleteGroupsRequest, _context: RequestContext
    ) -> DeleteGroupsResponse:
        kinds = DeleteGroupsResponse
        return kinds(
            results=[
                kinds.DeletableGroupResult(group_id=name, error_code=await self._delete(name))
                async for name in in_slices(dict.fromkeys(request.groups_names))
            ]
        )

    async def _delete(self, group_id: str) -> ErrorCode:
        try:
            return await self._coordinator.delete(group_id)
        except OperatingError as e:
            return e.code


def _not_found(key: str, code: ErrorCode, why: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=NO_LEADER, host="", port=-1, error_code=code, error_message=why
    )


def _described(group: ClassicGroup) -> Described:
    is_stable = group.state is GroupState.STABLE
    return Described(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                client_id=one.client_id,
                client_host=one.client_host,
                member_metadata=one.metadata_for(group.protocol_name) if is_stable else b"",
                member_assignment=one.assignment,
            )
            for one in group.members.values()
        ],
    )
