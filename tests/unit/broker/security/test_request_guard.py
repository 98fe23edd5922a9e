"""``RequestGuard``: order of the answers, and calls of handlers.

``tests/integration/security/test_authorization.py`` sends each API to a broker.
"""

from __future__ import annotations

from typing import Any

from kraftjbod.authorizer.standard_authorizer import StandardAuthorizer
from kraftjbod.broker.access import Access
from kraftjbod.broker.cluster.forwarded_client import FORWARDED_CLIENT
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.security.request_guard import RequestGuard, unguarded
from kraftjbod.core.acl import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.protocol import messages as m

T29 = ErrorCode.TOPIC_AUTHORIZATION_FAILED
CONTEXT = RequestContext(
    connection=ConnectionContext(
        peer="10.0.0.1:5000",
        peer_host="10.0.0.1",
        listener_name="CLIENTS",
        principal="User:a",
    ),
    api_version=1,
    client_id=None,
)


def make_guard(*topics: str) -> RequestGuard:
    """Return a guard that lets ``User:a`` read ``topics``."""
    by = StandardAuthorizer()
    by.replace_bindings(
        AclBinding(
            AclResourceType.TOPIC,
            name,
            AclPatternType.LITERAL,
            "User:a",
            "*",
            AclOperation.READ,
            AclPermission.ALLOW,
        )
        for name in topics
    )

    def make_access(context: RequestContext, api: str) -> Access:
        return Access(
            by,
            principal=context.connection.principal,
            host=context.connection.peer_host,
            listener_name=context.listener_name,
            api=api,
            is_broker=False,
            record=lambda *_: None,
        )

    return RequestGuard(cache=MetadataCache(cluster_id="c"), make_access=make_access)


def list_offsets(*names: str) -> m.ListOffsetsRequest:
    part = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    kind = m.ListOffsetsRequest.ListOffsetsTopic
    return m.ListOffsetsRequest(topics=[kind(name=name, partitions=[part]) for name in names])


async def answer_offsets(request: m.ListOffsetsRequest, _context: RequestContext) -> Any:
    kinds = m.ListOffsetsResponse
    return kinds(
        topics=[
            kinds.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[kinds.ListOffsetsPartitionResponse(partition_index=0, offset=7)],
            )
            for topic in request.topics
        ]
    )


async def test_guard_merges_refusals_in_the_order_of_the_request() -> None:
    guard = make_guard("b", "d")
    answer: Any = await guard.handle(list_offsets("a", "b", "c", "d"), CONTEXT, answer_offsets)
    found = [(topic.name, topic.partitions[0].error_code) for topic in answer.topics]
    assert found == [("a", T29), ("b", 0), ("c", T29), ("d", 0)]


async def test_guard_calls_no_handler_if_each_item_is_refused() -> None:
    async def handler(_request: Any, _context: RequestContext) -> Any:
        raise AssertionError("the handler is called")

    answer: Any = await make_guard().handle(list_offsets("a"), CONTEXT, handler)
    assert [topic.partitions[0].error_code for topic in answer.topics] == [T29]


async def test_guard_sets_forwarded_client_until_the_handler_returns() -> None:
    seen: list[Any] = []

    async def handler(request: Any, context: RequestContext) -> Any:
        seen.append((FORWARDED_CLIENT.get(), context.access))
        return await answer_offsets(request, context)

    await make_guard("t").handle(list_offsets("t"), CONTEXT, handler)
    ((client, access),) = seen
    assert client == ("User:a", "10.0.0.1")
    assert access is not None
    assert FORWARDED_CLIENT.get() is None


def test_unguarded_returns_names_of_requests_without_guard() -> None:
    assert unguarded([m.ProduceRequest, m.ApiVersionsRequest]) == ["ApiVersionsRequest"]
