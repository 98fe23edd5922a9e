"""WIRE. Requests about access control lists."""

from __future__ import annotations

from collections.abc import Sequence

from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error
from kraftjbod.core.acl import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    member_of,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest


async def describe_acls(client: ClusterClient, chosen: AclFilter) -> list[AclBinding]:
    """Return the bindings that a filter selects, as a broker knows them.

    :raises OperatingError: the request is refused, or the cluster has no authorizer.
    """
    request = DescribeAclsRequest(
        resource_type_filter=chosen.resource_type,
        resource_name_filter=chosen.resource_name,
        pattern_type_filter=chosen.pattern_type,
        principal_filter=chosen.principal,
        host_filter=chosen.host,
        operation=chosen.operation,
        permission_type=chosen.permission,
    )
    answer = await client.request_from_any_broker(request)
    _require(answer.error_code, "the access control lists", answer.error_message)
    return [
        AclBinding(
            member_of(AclResourceType, resource.resource_type),
            resource.resource_name,
            member_of(AclPatternType, resource.pattern_type),
            one.principal,
            one.host,
            member_of(AclOperation, one.operation),
            member_of(AclPermission, one.permission_type),
        )
        for resource in answer.resources
        for one in resource.acls
    ]


async def create_acls(client: ClusterClient, bindings: Sequence[AclBinding]) -> None:
    """Create bindings. A binding that exists is no error.

    :raises OperatingError: a binding is refused; the other ones may be created.
    """
    kind = CreateAclsRequest.AclCreation
    request = CreateAclsRequest(
        creations=[
            kind(
                resource_type=one.resource_type,
                resource_name=one.resource_name,
                resource_pattern_type=one.pattern_type,
                principal=one.principal,
                host=one.host,
                operation=one.operation,
                permission_type=one.permission,
            )
            for one in bindings
        ]
    )
    answer = await client.request_from_any_broker(request)
    for result, binding in zip(answer.results, bindings, strict=True):
        _require(result.error_code, binding.text(), result.error_message)


async def delete_acls(client: ClusterClient, filters: Sequence[AclFilter]) -> int:
    """Delete the bindings that the filters select, and return their number.

    :raises OperatingError: a filter is refused; bindings of other filters may be deleted.
    """
    kind = DeleteAclsRequest.DeleteAclsFilter
    request = DeleteAclsRequest(
        filters=[
            kind(
                resource_type_filter=one.resource_type,
                resource_name_filter=one.resource_name,
                pattern_type_filter=one.pattern_type,
                principal_filter=one.principal,
                host_filter=one.host,
                operation=one.operation,
                permission_type=one.permission,
            )
            for one in filters
        ]
    )
    answer = await client.request_from_any_broker(request)
    for result in answer.filter_results:
        _require(result.error_code, "the access control lists", result.error_message)
    return sum(len(result.matching_acls) for result in answer.filter_results)


def _require(code: int, what: str, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise kafka_error(code, what, message)
