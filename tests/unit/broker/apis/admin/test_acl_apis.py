"""DescribeAcls, CreateAcls and DeleteAcls: conversions, parts and errors.

The controller's decisions are those of the real control managers.
"""

from __future__ import annotations

from typing import Any

from kraftjbod.broker.apis.admin.acl_apis import AclApis
from kraftjbod.core.errors import ErrorCode, RequestTimedOutError
from kraftjbod.protocol import rpc_acl_messages as rpc
from kraftjbod.protocol.messages import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from tests.golden.transcript import World

TOPIC, LITERAL, READ, ALLOW = 2, 3, 3, 3
ANY = DescribeAclsRequest(
    resource_type_filter=1,
    resource_name_filter=None,
    pattern_type_filter=1,
    principal_filter=None,
    host_filter=None,
    operation=1,
    permission_type=1,
)


class Controller:
    """Stands for the channel to a controller and for the metadata cache: both show one state."""

    def __init__(self) -> None:
        self.world = World()
        list(self.world.run("feature 1001"))
        self.sizes: list[int] = []
        self.is_silent = False

    @property
    def state(self) -> Any:
        return self.world.state

    async def forward(self, request: Any, *, timeout_ms: int) -> Any:
        if self.is_silent:
            raise RequestTimedOutError("no controller")
        is_creation = isinstance(request, rpc.CreateAclsRequestRpc)
        self.sizes.append(len(request.creations if is_creation else request.filters))
        return self.world.ask(request)


def make_apis(controller: Any, *, is_enabled: bool = True) -> AclApis:
    return AclApis(cache=controller, channel=controller, is_enabled=is_enabled, timeout_ms=1000)


CONTEXT: Any = None


def creation(name: str, principal: str = "User:alice") -> CreateAclsRequest.AclCreation:
    return CreateAclsRequest.AclCreation(
        resource_type=TOPIC,
        resource_name=name,
        resource_pattern_type=LITERAL,
        principal=principal,
        host="*",
        operation=READ,
        permission_type=ALLOW,
    )


def filter_of(name: str | None) -> DeleteAclsRequest.DeleteAclsFilter:
    return DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter=name,
        pattern_type_filter=LITERAL,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


def names(response: Any) -> list[str]:
    return [one.resource_name for one in response.resources]


async def test_create_acls_answers_per_creation_and_describe_acls_groups_by_pattern() -> None:
    controller = Controller()
    apis = make_apis(controller)
    wanted = [creation("t"), creation("t", "User:bob"), creation(""), creation("u")]
    created = await apis.create_acls(CreateAclsRequest(creations=wanted), CONTEXT)
    assert [one.error_code for one in created.results] == [0, 0, ErrorCode.INVALID_REQUEST, 0]
    described = await apis.describe_acls(ANY, CONTEXT)
    assert names(described) == ["t", "u"]
    assert [one.principal for one in described.resources[0].acls] == ["User:alice", "User:bob"]
    only_t = DescribeAclsRequest(
        resource_type_filter=TOPIC,
        resource_name_filter="t",
        pattern_type_filter=LITERAL,
        principal_filter="User:bob",
        host_filter=None,
        operation=READ,
        permission_type=ALLOW,
    )
    (found,) = (await apis.describe_acls(only_t, CONTEXT)).resources
    assert [one.principal for one in found.acls] == ["User:bob"]


async def test_describe_acls_with_unknown_element_is_refused() -> None:
    response = await make_apis(Controller()).describe_acls(DescribeAclsRequest(), CONTEXT)
    assert response.error_code == ErrorCode.INVALID_REQUEST


async def test_delete_acls_sends_at_most_five_filters_per_request_and_answers_in_order() -> None:
    controller = Controller()
    apis = make_apis(controller)
    letters = "abcdefg"
    wanted = CreateAclsRequest(creations=list(map(creation, letters)))
    await apis.create_acls(wanted, CONTEXT)
    request = DeleteAclsRequest(filters=list(map(filter_of, [*letters, "absent"])))
    response = await apis.delete_acls(request, CONTEXT)
    found = [[one.resource_name for one in each.matching_acls] for each in response.filter_results]
    assert found == [["a"], ["b"], ["c"], ["d"], ["e"], ["f"], ["g"], []]
    assert controller.sizes == [7, 5, 3]
    assert names(await apis.describe_acls(ANY, CONTEXT)) == []


async def test_acl_apis_without_controller_answer_a_timeout_for_each_item() -> None:
    controller = Controller()
    controller.is_silent = True
    apis = make_apis(controller)
    created = await apis.create_acls(CreateAclsRequest(creations=[creation("t")] * 2), CONTEXT)
    deleted = await apis.delete_acls(DeleteAclsRequest(filters=[filter_of(None)] * 2), CONTEXT)
    timed_out = [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert [one.error_code for one in created.results] == timed_out
    assert [one.error_code for one in deleted.filter_results] == timed_out


async def test_acl_apis_without_authorizer_answer_security_disabled() -> None:
    apis = make_apis(Controller(), is_enabled=False)
    disabled = ErrorCode.SECURITY_DISABLED
    assert (await apis.describe_acls(ANY, CONTEXT)).error_code == disabled
    created = await apis.create_acls(CreateAclsRequest(creations=[creation("t")] * 2), CONTEXT)
    assert [one.error_code for one in created.results] == [disabled] * 2
    deleted = await apis.delete_acls(DeleteAclsRequest(filters=[filter_of(None)]), CONTEXT)
    assert [one.error_code for one in deleted.filter_results] == [disabled]
