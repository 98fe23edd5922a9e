"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup in all of Kafka's versions."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tests.unit.broker.broker_rig import brokers
from tests.unit.broker.groups.group_rig import (
    PROTOCOL,
    beat,
    committing,
    coordinator,
    enter,
    fetched,
    join,
)

E = ErrorCode


async def joined(rig: Any, version: int, **more: Any) -> Any:
    """Join as a new member, with a second request if a member id is required."""
    answer = await rig.ask(join(**more), version)
    if answer.error_code == E.MEMBER_ID_REQUIRED:
        answer = await rig.ask(join(answer.member_id, **more), version)
    return answer


@pytest.mark.parametrize("version", range(10))
async def test_classic_member_joins_syncs_heartbeats_and_leaves_in_all_versions(
    version: int,
) -> None:
    async with coordinator() as rig:
        answer = await joined(rig, version)
        assert (answer.error_code, answer.generation_id) == (0, 1)
        assert answer.protocol_name == "range"
        assert answer.leader == answer.member_id == answer.members[0].member_id
        member_id = answer.member_id
        assert member_id.startswith("test-") and len(member_id) == len("test-") + 36
        kind = SyncGroupRequest
        given = [kind.SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")]
        sync = kind(
            group_id="g",
            generation_id=1,
            member_id=member_id,
            protocol_type="consumer" if version >= 5 else None,
            protocol_name="range" if version >= 5 else None,
            assignments=given,
        )
        synced = await rig.ask(sync, min(version, 5))
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")
        assert (await rig.ask(beat(member_id, 1), min(version, 4))).error_code == 0
        leave = LeaveGroupRequest(group_id="g", member_id=member_id if version < 3 else "")
        if version >= 3:
            leave.members = [LeaveGroupRequest.MemberIdentity(member_id=member_id)]
        left = await rig.ask(leave, min(version, 5))
        codes = [left.error_code, *(member.error_code for member in left.members)]
        assert set(codes) == {0}
        again = await rig.ask(leave, min(version, 5))
        of_member = again.members[0].error_code if version >= 3 else again.error_code
        assert of_member == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"group_id": ""}, E.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5}, E.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ({"protocols": [PROTOCOL] * 101}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "m"}, E.UNKNOWN_MEMBER_ID),
    ],
)
async def test_join_group_with_invalid_fields_is_rejected(
    more: dict[str, Any], code: ErrorCode
) -> None:
    async with coordinator() as rig:
        answer = await rig.ask(join(**more), 9)
        assert (answer.error_code, answer.generation_id) == (code, -1)
        assert rig.parts.coordinator.find("g").group_ids() == [] or "protocols" in more


async def test_group_requests_return_not_coordinator_invalid_group_id_or_unknown_member_id() -> (
    None
):
    kinds = (JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, LeaveGroupRequest)
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    async with brokers() as (rig,):
        for kind in kinds:
            more: dict[str, object] = {**named} if kind is SyncGroupRequest else {}
            if kind is JoinGroupRequest:
                more = {"session_timeout_ms": 10_000}
            answer = await rig.ask(kind(group_id="g", **more))
            assert answer.error_code == E.NOT_COORDINATOR, kind
            answer = await rig.ask(kind(group_id="", **more))
            assert answer.error_code == E.INVALID_GROUP_ID, kind
    async with coordinator() as rig:
        unknown = await rig.ask(SyncGroupRequest(group_id="g", member_id="m", **named))
        assert unknown.error_code == E.UNKNOWN_MEMBER_ID
        unnamed = await rig.ask(SyncGroupRequest(group_id="g", member_id="m"))
        assert unnamed.error_code == E.INCONSISTENT_GROUP_PROTOCOL
        assert (await rig.ask(beat("m", 1))).error_code == E.UNKNOWN_MEMBER_ID


async def test_offset_commit_by_a_classic_member_needs_its_generation() -> None:
    async with coordinator() as rig:
        member_id, generation = await enter(rig)
        assert await committing(rig, 9, member_id, generation) == 0
        assert await committing(rig, 5, member_id, generation - 1) == E.ILLEGAL_GENERATION
        assert await committing(rig, 5, "stranger", generation) == E.UNKNOWN_MEMBER_ID
        assert await fetched(rig) == {("t", 0): 9}
