"""Requests about access control lists, to a scripted broker."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.cli.clients.acl_admin import create_acls, delete_acls, describe_acls
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.acl import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.net.kafka_server import kafka_server
from kraftjbod.protocol import messages as m

BINDING = AclBinding(
    AclResourceType.TOPIC,
    "t",
    AclPatternType.LITERAL,
    "User:alice",
    "*",
    AclOperation.READ,
    AclPermission.ALLOW,
)
REFUSED = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def describe_response(code: int) -> Any:
    if code:
        return m.DescribeAclsResponse(error_code=code, error_message="Refused.")
    one = m.DescribeAclsResponse.AclDescription(
        principal="User:alice", host="*", operation=3, permission_type=3
    )
    resource = m.DescribeAclsResponse.DescribeAclsResource(
        resource_type=2, resource_name="t", pattern_type=3, acls=[one]
    )
    return m.DescribeAclsResponse(resources=[resource])


def create_response(code: int) -> Any:
    result = m.CreateAclsResponse.AclCreationResult(error_code=code, error_message="Refused.")
    return m.CreateAclsResponse(results=[result])


def delete_response(code: int) -> Any:
    kinds = m.DeleteAclsResponse
    matching = kinds.DeleteAclsMatchingAcl(
        resource_type=2,
        resource_name="t",
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )
    result = kinds.DeleteAclsFilterResult(
        error_code=code, error_message="Refused.", matching_acls=[matching]
    )
    return kinds(filter_results=[result])


RESPONSES = {
    m.DescribeAclsRequest: describe_response,
    m.CreateAclsRequest: create_response,
    m.DeleteAclsRequest: delete_response,
}


@pytest.mark.parametrize("code", [0, REFUSED])
async def test_requests_about_acls_return_bindings_or_raise_the_refusal(code: int) -> None:
    async def handle(_header: Any, body: Any, _context: Any) -> Any:
        return RESPONSES[type(body)](code)

    server = kafka_server(host="127.0.0.1", port=0, handler=handle)
    await server.start()
    try:
        async with ClusterClient(f"127.0.0.1:{server.port}") as client:
            calls = (
                lambda: describe_acls(client, AclFilter()),
                lambda: create_acls(client, [BINDING]),
                lambda: delete_acls(client, [AclFilter()]),
            )
            if code:
                for call in calls:
                    with pytest.raises(OperatingError, match="Refused") as refused:
                        await call()
                    assert refused.value.code == REFUSED
            else:
                assert [await call() for call in calls] == [[BINDING], None, 1]
    finally:
        await server.close(timeout_ms=1000)
