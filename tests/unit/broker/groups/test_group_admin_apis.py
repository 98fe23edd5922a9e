"""FindCoordinator, ListGroups, DescribeGroups and DeleteGroups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kraftjbod.broker.security.authorized_operations import NOT_ASKED
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.kafka_codec import SUPPORTED, ApiKey, api_name, message
from kraftjbod.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kraftjbod.protocol.schemas.kafka_message import Message
from tests.unit.broker.broker_rig import brokers
from tests.unit.broker.groups.group_rig import committing, coordinator, enter

E = ErrorCode


GROUP_APIS = (
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
)


def _error_codes(part: object) -> Iterator[int]:
    """Yield the error codes at all levels of a response."""
    if isinstance(part, Message):
        for name in type(part).__slots__:
            value = getattr(part, name)
            if name == "error_code":
                yield value
            else:
                yield from _error_codes(value)
    elif isinstance(part, list):
        for one in part:
            yield from _error_codes(one)


async def test_group_apis_except_list_groups_return_an_error_without_coordinator() -> None:
    async with brokers() as (rig,):
        connection = await rig.connect()
        for key in GROUP_APIS:
            name = api_name(key)
            kind: Any = message(f"{name}Request")
            least, greatest = SUPPORTED[key]
            for version in range(least, greatest + 1):
                named = {"DescribeGroups": "groups", "DeleteGroups": "groups_names"}
                request = kind(**{named[name]: ["g"]} if name in named else {})
                if name == "OffsetFetch" and version < 8:
                    topic = kind.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
                    request.topics = [topic]
                elif name == "OffsetFetch":
                    request.groups = [kind.OffsetFetchRequestGroup(group_id="g", topics=[])]
                elif name == "FindCoordinator" and version >= 4:
                    request.coordinator_keys = ["g"]
                elif name == "OffsetCommit":
                    partition = kind.OffsetCommitRequestPartition(partition_index=0)
                    request.topics = [
                        kind.OffsetCommitRequestTopic(name="t", partitions=[partition])
                    ]
                answer = await connection.request(request, timeout_ms=20_000, version=version)
                has_error = any(_error_codes(answer))
                # A broker that coordinates no group lists none, which is no error.
                assert has_error == (name != "ListGroups"), (name, version)


async def listed(rig: Any, **filters: Any) -> dict[str, str]:
    answer = await rig.ask(ListGroupsRequest(**filters), 5)
    assert answer.error_code == 0
    return {group.group_id: group.group_state for group in answer.groups}


async def test_list_and_describe_groups_return_states_and_members() -> None:
    async with coordinator() as rig:
        member_id, _ = await enter(rig)
        request = DescribeGroupsRequest(groups=["g", "gone"])
        (stable, gone) = (await rig.ask(request, 6)).groups
        (member,) = stable.members
        assert (stable.group_state, stable.protocol_type) == ("Stable", "consumer")
        assert stable.protocol_data == "range"
        assert (member.member_id, member.client_id) == (member_id, "test")
        assert member.client_host == "/127.0.0.1"
        assert (bytes(member.member_assignment), len(member.member_metadata)) == (b"all", 6)
        assert (gone.group_state, gone.error_code) == ("Dead", E.GROUP_ID_NOT_FOUND)
        assert (await rig.ask(request, 5)).groups[1].error_code == 0
        assert await listed(rig) == {"g": "Stable"}
        assert await listed(rig, states_filter=[" stable "]) == {"g": "Stable"}
        assert await listed(rig, states_filter=["Empty"]) == {}
        assert await listed(rig, types_filter=["Classic"]) == {"g": "Stable"}
        assert await listed(rig, types_filter=["consumer"]) == {}
        refused = await rig.ask(DeleteGroupsRequest(groups_names=["g"]))
        assert refused.results[0].error_code == E.NON_EMPTY_GROUP


async def test_group_with_commits_only_is_listed_as_empty() -> None:
    async with coordinator() as rig:
        assert await committing(rig, 1) == 0
        assert await listed(rig) == {"g": "Empty"}
        request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
        (described,) = (await rig.ask(request)).groups
        assert (described.group_state, described.members) == ("Empty", [])
        assert described.authorized_operations == 3400
        request.groups = ["nowhere"]
        # An absent group has no operations; older versions return "Dead" without an error.
        (absent,) = (await rig.ask(request, 6)).groups
        assert absent.authorized_operations == NOT_ASKED
        (absent,) = (await rig.ask(request, 5)).groups
        assert absent.authorized_operations == 3400


async def test_list_groups_while_loading_returns_coordinator_load_in_progress() -> None:
    async with coordinator() as rig:
        led = rig.parts.coordinator.led_of("g")
        led.phase = type(led.phase).LOADING
        answer = await rig.ask(ListGroupsRequest())
        assert answer.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        (described,) = (await rig.ask(DescribeGroupsRequest(groups=["g"]))).groups
        assert described.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        deleted = await rig.ask(DeleteGroupsRequest(groups_names=["g"]))
        assert deleted.results[0].error_code == E.COORDINATOR_LOAD_IN_PROGRESS
