"""ConsumerGroupHeartbeat and ConsumerGroupDescribe over the wire."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from tests.unit.broker.groups.group_rig import (
    committing,
    consumer,
    consumer_coordinator,
    coordinator,
    fetched,
    given,
    has,
)

E = ErrorCode


async def described(rig: Any, group_id: str = "g", version: int = 1) -> Any:
    request = ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=True)
    (group,) = (await rig.ask(request, version)).groups
    return group


@pytest.mark.parametrize("version", [0, 1])
async def test_consumer_group_heartbeats_divide_a_topic_between_two_members(version: int) -> None:
    async with consumer_coordinator(group_consumer_assignment_interval_ms="0") as rig:
        first = await rig.ask(consumer("a" if version else ""), version)
        a, assigned = first.member_id, given(first)
        assert (a == "a" or (version == 0 and len(a) == 22)) and assigned == [0, 1]
        assert (first.member_epoch, first.heartbeat_interval_ms) == (2, 5_000)
        second = await rig.ask(consumer("b"), version)
        assert given(second) == []
        kept = given(await rig.ask(consumer(a, 2), version))
        assert len(kept) == 1
        assert (await rig.ask(consumer(a, 2, **has(*kept)), version)).member_epoch == 3
        assert given(await rig.ask(consumer("b", second.member_epoch), version)) != kept

        group = await described(rig, version=version)
        assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 3, 3)
        assert group.assignor_name == "uniform" and group.authorized_operations > 0
        one = group.members[0]
        assert (one.member_id, one.client_id, one.client_host) == (a, "test", "/127.0.0.1")
        assert one.assignment.topic_partitions[0].topic_name == "t"
        assert one.assignment == one.target_assignment
        assert one.member_type == (1 if version else -1)

        left = await rig.ask(consumer(a, -1), version)
        assert (left.error_code, left.member_epoch) == (0, -1)


async def test_consumer_group_heartbeat_with_invalid_fields_returns_kafkas_reason() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"group_id": " "}, "GroupId can't be empty."),
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({"epoch": -2}, "InstanceId can't be null."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        (has(0), "TopicPartitions must be empty when (re-)joining."),
        (
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when joining.",
        ),
        ({"server_assignor": ""}, "ServerAssignor can't be empty."),
    ]
    async with consumer_coordinator() as rig:
        for more, reason in refused:
            answer = await rig.ask(consumer(**{"member_id": "a", **more}), 1)
            assert (answer.error_code, answer.error_message) == (E.INVALID_REQUEST, reason)
        answer = await rig.ask(consumer("a", 4), 1)
        assert answer.error_code == E.GROUP_ID_NOT_FOUND


async def test_consumer_group_apis_without_feature_level_return_unsupported_version() -> None:
    async with coordinator() as rig:
        for answer in (await rig.ask(consumer("a"), 1), await described(rig)):
            assert answer.error_code == E.UNSUPPORTED_VERSION
            assert "kraftjbod-features" in answer.error_message


async def test_offset_commit_by_a_consumer_member_needs_its_epoch() -> None:
    async with consumer_coordinator() as rig:
        await rig.ask(consumer("a"), 1)
        assert await committing(rig, 5, "a", 2) == 0
        assert await committing(rig, 6, "a", 3) == E.STALE_MEMBER_EPOCH
        assert await committing(rig, 6, "z", 2) == E.UNKNOWN_MEMBER_ID
        assert await committing(rig, 6, "a", 2, version=8) == E.UNSUPPORTED_VERSION
        assert await fetched(rig) == {("t", 0): 5}


async def test_consumer_group_is_listed_described_and_deleted_by_tools() -> None:
    async with consumer_coordinator() as rig:
        await rig.ask(consumer("a"), 1)
        for filters, found in (
            ({}, 1),
            ({"types_filter": ["Consumer"]}, 1),
            ({"types_filter": ["classic"]}, 0),
            ({"states_filter": ["stable"]}, 1),
            ({"states_filter": ["Empty"]}, 0),
        ):
            listed = (await rig.ask(ListGroupsRequest(**filters), 5)).groups  # type: ignore[arg-type]  # lists of names
            assert len(listed) == found, filters
        figures = rig.around.metrics.snapshot()
        assert (figures["NumConsumerGroups"], figures["NumGroupMembers"]) == (1, 1)
        (listed,) = (await rig.ask(ListGroupsRequest(), 5)).groups
        assert (listed.group_type, listed.protocol_type) == ("consumer", "consumer")
        (old,) = (await rig.ask(DescribeGroupsRequest(groups=["g"]), 6)).groups
        assert old.error_code == E.GROUP_ID_NOT_FOUND, "only ConsumerGroupDescribe finds the group"
        assert (await described(rig, "absent")).error_code == E.GROUP_ID_NOT_FOUND
        assert (await described(rig, "")).error_code == E.INVALID_GROUP_ID
        deleting = DeleteGroupsRequest(groups_names=["g"])
        (result,) = (await rig.ask(deleting, 2)).results
        assert result.error_code == E.NON_EMPTY_GROUP
        await rig.ask(consumer("a", -1), 1)
        assert (await described(rig)).group_state == "Empty"
        (result,) = (await rig.ask(deleting, 2)).results
        assert result.error_code == 0
        assert (await described(rig)).error_code == E.GROUP_ID_NOT_FOUND
