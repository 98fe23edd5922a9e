"""LOOP. DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from typing import Final

from kraftjbod.broker.groups.classic.classic_group import ClassicGroup
from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.coordinator.group_coordinator import GroupCoordinator
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.security.authorized_operations import ALL_OF_GROUP, NOT_ASKED
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

#: From this version on there are error messages and GROUP_ID_NOT_FOUND; before, a missing group was
#: reported as dead.
_MESSAGE_SINCE: Final = 6
_CLASSIC: Final = "classic"
#: The type of a group and the protocol type.
_CONSUMER: Final = "consumer"
Described = DescribeGroupsResponse.DescribedGroup
Listed = ListGroupsResponse.ListedGroup


class GroupAdminApis:
    def __init__(self, *, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    # --- DescribeGroups --------------------------------------------------------------------------

    async def describe_groups(
        self, request: DescribeGroupsRequest, context: RequestContext
    ) -> DescribeGroupsResponse:
        names = dict.fromkeys(request.groups)
        operations = ALL_OF_GROUP if request.include_authorized_operations else NOT_ASKED
        return DescribeGroupsResponse(
            groups=[self._describe(name, operations, context) async for name in in_slices(names)]
        )

    def _describe(self, group_id: str, operations: int, context: RequestContext) -> Described:
        try:
            groups = self._coordinator.find(group_id)
        except OperatingError as e:
            refused = Described(error_code=e.code, group_id=group_id)
            if context.api_version >= _MESSAGE_SINCE:
                refused.error_message = e.message
            return refused
        group = groups.groups.get(group_id)
        if group is not None:
            return _described(group, operations)
        state = groups.state_of(group_id)
        if group_id in groups.consumer_groups:
            # Only ConsumerGroupDescribe knows consumer groups; here the group does not exist, as in
            # Kafka.
            state = GroupState.DEAD
        described = Described(
            group_id=group_id, group_state=state.value, authorized_operations=operations
        )
        if state is GroupState.DEAD and context.api_version >= _MESSAGE_SINCE:
            described.authorized_operations = NOT_ASKED
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = f"there is no classic group {group_id}"
        return described

    # --- ListGroups ------------------------------------------------------------------------------

    async def list_groups(
        self, request: ListGroupsRequest, _context: RequestContext
    ) -> ListGroupsResponse:
        states = {state.strip().lower() for state in request.states_filter}
        types = {kind.strip().lower() for kind in request.types_filter}
        listed: list[Listed] = []
        try:
            partitions = list(self._coordinator.all_partitions())
        except OperatingError as e:
            return ListGroupsResponse(error_code=e.code)
        for groups in partitions:
            async for group_id in in_slices(groups.group_ids()):
                state = groups.state_of(group_id)
                is_consumer = group_id in groups.consumer_groups
                kind = _CONSUMER if is_consumer else _CLASSIC
                if (states and state.value.lower() not in states) or (types and kind not in types):
                    continue
                group = groups.groups.get(group_id)
                protocol_type = _CONSUMER if is_consumer else None
                if group is not None:
                    protocol_type = group.protocol_type
                listed.append(
                    Listed(
                        group_id=group_id,
                        protocol_type=protocol_type or "",
                        group_state=state.value,
                        group_type=kind,
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


def _described(group: ClassicGroup, operations: int) -> Described:
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
        authorized_operations=operations,
    )
