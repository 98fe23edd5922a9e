"""LOOP. JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

This module handles request versions; classic_group.py has the semantics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kraftjbod.broker.groups.classic.group_events import (
    HeartbeatAnswer,
    HeartbeatReceived,
    JoinAnswer,
    JoinRequested,
    LeaveAnswer,
    LeaveRequested,
    SyncAnswer,
    SyncRequested,
)
from kraftjbod.broker.groups.coordinator.group_coordinator import GroupCoordinator
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import Uuid
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_REBALANCE_TIMEOUT_SINCE: Final = 1
_MEMBER_ID_REQUIRED_SINCE: Final = 4
_NULL_PROTOCOL_SINCE: Final = 7
_SKIP_ASSIGNMENT_SINCE: Final = 9
_NAMED_PROTOCOL_SINCE: Final = 5
_LEAVE_MANY_SINCE: Final = 3
#: Limit of a member's protocols; Kafka has no such limit.
_MAX_PROTOCOLS: Final = 100
MemberResponse = LeaveGroupResponse.MemberResponse


class GroupApis:
    def __init__(
        self,
        *,
        coordinator: GroupCoordinator,
        random_bytes: Callable[[int], bytes],
        min_session_timeout_ms: int,
        max_session_timeout_ms: int,
    ) -> None:
        self._coordinator = coordinator
        self._random_bytes = random_bytes
        self._min_session_timeout_ms = min_session_timeout_ms
        self._max_session_timeout_ms = max_session_timeout_ms

    # --- JoinGroup -------------------------------------------------------------------------------

    async def join_group(
        self, request: JoinGroupRequest, context: RequestContext
    ) -> JoinGroupResponse:
        token: Completion[JoinAnswer] = Completion()
        code = self._check_join(request)
        if code is ErrorCode.NONE:
            try:
                self._coordinator.join(
                    request.group_id, self._join_requested(request, context, token)
                )
                return _join_response(await token, context.api_version)
            except OperatingError as e:
                code = e.code
        refused = JoinAnswer(code=code, member_id=request.member_id)
        return _join_response(refused, context.api_version)

    def _check_join(self, request: JoinGroupRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        shortest, longest = self._min_session_timeout_ms, self._max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if len(request.protocols) > _MAX_PROTOCOLS:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _join_requested(
        self, request: JoinGroupRequest, context: RequestContext, token: Completion[JoinAnswer]
    ) -> JoinRequested:
        version = context.api_version
        client_id = context.client_id or ""
        rebalance_timeout_ms = request.session_timeout_ms
        if version >= _REBALANCE_TIMEOUT_SINCE:
            rebalance_timeout_ms = max(0, request.rebalance_timeout_ms)
        unique = Uuid.random(self._random_bytes).hex()
        named_after = client_id if request.group_instance_id is None else request.group_instance_id
        return JoinRequested(
            token=token,
            member_id=request.member_id,
            fresh_member_id=f"{named_after}-{_dashed(unique)}",
            instance_id=request.group_instance_id,
            client_id=client_id,
            client_host="/" + context.connection.peer.rpartition(":")[0],
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            # Copied, because they live as long as the member and must not reference the request
            # buffer.
            protocols=tuple((one.name, bytes(one.metadata)) for one in request.protocols),
            asks_again=version >= _MEMBER_ID_REQUIRED_SINCE,
            knows_skipping=version >= _SKIP_ASSIGNMENT_SINCE,
        )

    # --- SyncGroup -------------------------------------------------------------------------------

    async def sync_group(
        self, request: SyncGroupRequest, context: RequestContext
    ) -> SyncGroupResponse:
        token: Completion[SyncAnswer] = Completion()
        named = (request.protocol_type, request.protocol_name)
        if context.api_version >= _NAMED_PROTOCOL_SINCE and None in named:
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not request.group_id:
            return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        synced = SyncRequested(
            token=token,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments={one.member_id: bytes(one.assignment) for one in request.assignments},
        )
        try:
            self._coordinator.sync(request.group_id, synced)
        except OperatingError as e:
            # A load loses the rebalance, so the member has to join again. Java clients fail on
            # COORDINATOR_LOAD_IN_PROGRESS here; Kafka's coordinator answered this code until 3.x.
            is_loading = e.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            code = ErrorCode.REBALANCE_IN_PROGRESS if is_loading else e.code
            return SyncGroupResponse(error_code=code)
        answer = await token
        return SyncGroupResponse(
            error_code=answer.code,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignment=answer.assignment,
        )

    # --- Heartbeat -------------------------------------------------------------------------------

    async def heartbeat(
        self, request: HeartbeatRequest, _context: RequestContext
    ) -> HeartbeatResponse:
        token: Completion[HeartbeatAnswer] = Completion()
        if not request.group_id:
            return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        received = HeartbeatReceived(
            token=token,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
        )
        try:
            self._coordinator.heartbeat(request.group_id, received)
        except OperatingError as e:
            # As in Kafka: no member is removed while its group is being loaded.
            is_loading = e.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else e.code)
        return HeartbeatResponse(error_code=(await token).code)

    # --- LeaveGroup ------------------------------------------------------------------------------

    async def leave_group(
        self, request: LeaveGroupRequest, context: RequestContext
    ) -> LeaveGroupResponse:
        token: Completion[LeaveAnswer] = Completion()
        has_many = context.api_version >= _LEAVE_MANY_SINCE
        leaving: list[tuple[str, str | None]] = [(request.member_id, None)]
        if has_many:
            leaving = [(one.member_id, one.group_instance_id) for one in request.members]
        if not request.group_id:
            return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        if len(leaving) > MAX_ITEMS_PER_REQUEST:
            return LeaveGroupResponse(error_code=ErrorCode.INVALID_REQUEST)
        try:
            self._coordinator.leave(request.group_id, LeaveRequested(token=token, members=leaving))
        except OperatingError as e:
            return LeaveGroupResponse(error_code=e.code)
        codes = (await token).codes
        if not has_many:
            return LeaveGroupResponse(error_code=codes[0])
        return LeaveGroupResponse(
            members=[
                MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=code)
                for (member_id, instance_id), code in zip(leaving, codes, strict=True)
            ]
        )


def _join_response(answer: JoinAnswer, version: int) -> JoinGroupResponse:
    protocol_name = answer.protocol_name
    if protocol_name is None and version < _NULL_PROTOCOL_SINCE:
        protocol_name = ""
    return JoinGroupResponse(
        error_code=answer.code,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol_name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member_id, group_instance_id=instance_id, metadata=metadata
            )
            for member_id, instance_id, metadata in answer.members
        ],
    )


def _dashed(text: str) -> str:
    """Return 32 hexadecimal digits with the dashes of a UUID in Java."""
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
