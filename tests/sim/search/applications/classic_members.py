"""``ClassicMembers``: members of a group whose leader assigns the partitions."""

from __future__ import annotations

from typing import Final

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tests.sim.search.applications.group_members import (
    NAME,
    PARTITIONS,
    REBALANCE_MS,
    SESSION_MS,
    TRIES,
    GroupMembers,
    Member,
)
from tests.sim.search.applications.transactional_producer import GROUP

_TYPE: Final = "positions"
_PROTOCOL: Final = "in turn"


class ClassicMembers(GroupMembers):
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

    async def _join(self, member: Member) -> None:
        joined = await self._ask_to_join(member)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            member.member_id = joined.member_id
            joined = await self._ask_to_join(member)
        self._judge_code(member, joined.error_code)
        member.member_id = joined.member_id
        partitions = await self._sync(member, joined)
        member.generation, member.positions = joined.generation_id, {}
        self._found(self.invariants.assigned(member.member_id, member.generation, partitions))
        await self._find(member, partitions)

    async def _ask_to_join(self, member: Member) -> JoinGroupResponse:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=_PROTOCOL, metadata=b"")
        request = JoinGroupRequest(
            group_id=NAME,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member.member_id,
            protocol_type=_TYPE,
            protocols=[protocol],
        )
        return await member.coordinators.ask(GROUP, NAME, request)

    async def _sync(self, member: Member, joined: JoinGroupResponse) -> list[int]:
        given: list[SyncGroupRequest.SyncGroupRequestAssignment] = []
        if joined.leader == member.member_id:
            ids = sorted(one.member_id for one in joined.members)
            given = [
                SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=one, assignment=bytes(range(PARTITIONS)[at :: len(ids)])
                )
                for at, one in enumerate(ids)
            ]
        request = SyncGroupRequest(
            group_id=NAME,
            generation_id=joined.generation_id,
            member_id=member.member_id,
            protocol_type=_TYPE,
            protocol_name=_PROTOCOL,
            assignments=given,
        )
        answer = await member.coordinators.ask(GROUP, NAME, request)
        self._judge_code(member, answer.error_code)
        return list(bytes(answer.assignment))

    async def _beat(self, member: Member) -> None:
        request = HeartbeatRequest(
            group_id=NAME, member_id=member.member_id, generation_id=member.generation
        )
        for _ in range(TRIES):
            answer = await member.coordinators.ask(GROUP, NAME, request)
            if not self._is_passing(member, answer.error_code):
                self._judge_code(member, answer.error_code)
                return
            await self._recover(member)

    async def _leave(self, member: Member) -> None:
        identity = LeaveGroupRequest.MemberIdentity(member_id=member.member_id)
        request = LeaveGroupRequest(group_id=NAME, members=[identity])
        try:
            await member.coordinators.ask(GROUP, NAME, request)
        except OperatingError as e:
            self._around.note(f"member {member.number} leaves without a farewell: {e}")
