"""LOOP. DescribeAcls, CreateAcls and DeleteAcls (KIP-11, KIP-290).

* DescribeAcls is answered from this broker's metadata, the others by the controller.
* Without an authorizer each request gets SECURITY_DISABLED, as in Kafka.
* A change takes effect on each node when the node has replayed the controller's records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from kraftjbod.broker.apis.admin.forwarding import TimeLeft, forward
from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.acl import AclBinding, AclFilter, AclPatternType, AclResourceType
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.protocol import rpc_acl_messages as rpc
from kraftjbod.protocol.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

_DISABLED: Final = ErrorCode.SECURITY_DISABLED
_NO_AUTHORIZER: Final = "No Authorizer is configured."
#: The controller compares each filter with all bindings, without a pause of its event loop.
_FILTERS_PER_PART: Final = 5

Resource = DescribeAclsResponse.DescribeAclsResource
Matching = DeleteAclsResponse.DeleteAclsMatchingAcl


class AclApis:
    def __init__(
        self,
        *,
        cache: MetadataCache,
        channel: ControllerChannel,
        is_enabled: bool,
        timeout_ms: int,
    ) -> None:
        """Create the handlers.

        :param is_enabled: whether this broker has an authorizer.
        :param timeout_ms: time limit of a request, because Kafka's requests have none.
        """
        self._cache = cache
        self._channel = channel
        self._is_enabled = is_enabled
        self._timeout_ms = timeout_ms

    async def describe_acls(
        self, request: DescribeAclsRequest, _context: RequestContext
    ) -> DescribeAclsResponse:
        if not self._is_enabled:
            return DescribeAclsResponse(error_code=_DISABLED, error_message=_NO_AUTHORIZER)
        try:
            chosen = AclFilter.from_numbers(
                request.resource_type_filter,
                request.resource_name_filter,
                request.pattern_type_filter,
                request.principal_filter,
                request.host_filter,
                request.operation,
                request.permission_type,
            )
        except OperatingError as e:
            return DescribeAclsResponse(error_code=e.code, error_message=e.message)
        found: dict[tuple[AclResourceType, str, AclPatternType], list[AclBinding]] = {}
        async for binding in in_slices(list(self._cache.state.acl_ids)):
            if chosen.matches(binding):
                pattern = (binding.resource_type, binding.resource_name, binding.pattern_type)
                found.setdefault(pattern, []).append(binding)
        return DescribeAclsResponse(
            resources=[
                Resource(
                    resource_type=resource_type,
                    resource_name=name,
                    pattern_type=pattern_type,
                    acls=[
                        DescribeAclsResponse.AclDescription(
                            principal=one.principal,
                            host=one.host,
                            operation=one.operation,
                            permission_type=one.permission,
                        )
                        for one in bindings
                    ],
                )
                for (resource_type, name, pattern_type), bindings in found.items()
            ]
        )

    async def create_acls(
        self, request: CreateAclsRequest, _context: RequestContext
    ) -> CreateAclsResponse:
        kinds = CreateAclsResponse
        if not self._is_enabled:
            refused = kinds.AclCreationResult(error_code=_DISABLED, error_message=_NO_AUTHORIZER)
            return kinds(results=[refused for _ in request.creations])
        outcomes = await forward(
            self._channel,
            map(_created, request.creations),
            ask=lambda part: rpc.CreateAclsRequestRpc(creations=part),
            outcomes=lambda response: response.results,
            refuse=lambda _, e: rpc.AclOutcome(error_code=e.code, error_message=e.message),
            timeout_ms=self._timeout_ms,
        )
        return kinds(
            results=[
                kinds.AclCreationResult(error_code=one.error_code, error_message=one.error_message)
                for one in outcomes
            ]
        )

    async def delete_acls(
        self, request: DeleteAclsRequest, _context: RequestContext
    ) -> DeleteAclsResponse:
        kinds = DeleteAclsResponse
        if not self._is_enabled:
            refused = kinds.DeleteAclsFilterResult(
                error_code=_DISABLED, error_message=_NO_AUTHORIZER
            )
            return kinds(filter_results=[refused for _ in request.filters])
        left = TimeLeft(self._timeout_ms)
        outcomes: list[rpc.DeletedAcls] = []
        for part in _parts(request.filters):
            outcomes += await forward(
                self._channel,
                map(_filter, part),
                ask=lambda filters: rpc.DeleteAclsRequestRpc(filters=filters),
                outcomes=lambda response: response.results,
                refuse=lambda _, e: rpc.DeletedAcls(error_code=e.code, error_message=e.message),
                timeout_ms=left.ms(),
            )
        return kinds(
            filter_results=[
                kinds.DeleteAclsFilterResult(
                    error_code=one.error_code,
                    error_message=one.error_message,
                    matching_acls=list(map(_matching, one.matching)),
                )
                for one in outcomes
            ]
        )


def _parts(
    filters: Iterable[DeleteAclsRequest.DeleteAclsFilter],
) -> Iterator[list[DeleteAclsRequest.DeleteAclsFilter]]:
    rest = iter(filters)
    while part := list(islice(rest, _FILTERS_PER_PART)):
        yield part


def _created(creation: CreateAclsRequest.AclCreation) -> rpc.AclBody:
    return rpc.AclBody(
        resource_type=creation.resource_type,
        resource_name=creation.resource_name,
        pattern_type=creation.resource_pattern_type,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission=creation.permission_type,
    )


def _filter(one: DeleteAclsRequest.DeleteAclsFilter) -> rpc.AclFilterBody:
    return rpc.AclFilterBody(
        resource_type=one.resource_type_filter,
        resource_name=one.resource_name_filter,
        pattern_type=one.pattern_type_filter,
        principal=one.principal_filter,
        host=one.host_filter,
        operation=one.operation,
        permission=one.permission_type,
    )


def _matching(one: rpc.AclBody) -> Matching:
    return Matching(
        resource_type=one.resource_type,
        resource_name=one.resource_name,
        pattern_type=one.pattern_type,
        principal=one.principal,
        host=one.host,
        operation=one.operation,
        permission_type=one.permission,
    )
