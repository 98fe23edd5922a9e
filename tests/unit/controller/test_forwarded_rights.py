"""Rights of clients for the requests that brokers forward."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.authorizer.standard_authorizer import StandardAuthorizer
from kraftjbod.controller.forwarded_rights import Right, require_rights, rights_of
from kraftjbod.core.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId, TopicId
from kraftjbod.metadata.records import ResourceType
from kraftjbod.protocol import rpc_acl_messages as a
from kraftjbod.protocol import rpc_config_messages as c
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.protocol import rpc_quorum_messages as q
from tests.golden.transcript import World

Op, Kind = AclOperation, AclResourceType
TOPIC, CLUSTER = Kind.TOPIC, Kind.CLUSTER
CREATE_T: dict[str, Any] = {"topics": (m.NewTopic(name="t"),), "topic_ids": ()}


def world_with_topic() -> tuple[World, TopicId]:
    world = World()
    for line in ("feature 1001", "up 1 dirs=a", "topic t replicas=1"):
        list(world.run(line))
    return world, world.state.topic_ids["t"]


def alter_configs(kind: ResourceType, name: str) -> c.IncrementalAlterConfigsRequestRpc:
    resource = c.AlteredResource(resource_type=kind, name=name, changes=())
    return c.IncrementalAlterConfigsRequestRpc(resources=(resource,))


def cases() -> list[tuple[m.RpcRequest, list[Right]]]:
    by_id = m.TopicRef(topic_id=world_with_topic()[1])
    grown = m.MorePartitions(name="t", count=2)
    alters = [Right(Op.ALTER, CLUSTER, CLUSTER_NAME)]
    configs = Op.ALTER_CONFIGS
    return [
        (m.CreateTopicsRequestRpc(**CREATE_T), [Right(Op.CREATE, TOPIC, "t", True)]),
        (m.DeleteTopicsRequestRpc(topics=(by_id,)), [Right(Op.DELETE, TOPIC, "t", True)]),
        (m.DeleteTopicsRequestRpc(topics=(m.TopicRef(topic_id=TopicId(b"?" * 16)),)), []),
        (m.CreatePartitionsRequestRpc(topics=(grown,)), [Right(Op.ALTER, TOPIC, "t")]),
        (alter_configs(ResourceType.TOPIC, "t"), [Right(configs, TOPIC, "t")]),
        (alter_configs(ResourceType.GROUP, "g"), [Right(configs, Kind.GROUP, "g")]),
        (alter_configs(ResourceType.BROKER, "1"), [Right(configs, CLUSTER, CLUSTER_NAME)]),
        (c.UnregisterBrokerRequestRpc(broker_id=BrokerId(1)), alters),
        (
            q.RemoveRaftVoterRequestRpc(voter_id=BrokerId(1), directory_id=DirectoryId(b"d" * 16)),
            alters,
        ),
        (a.CreateAclsRequestRpc(creations=()), alters),
        (q.DescribeQuorumRequestRpc(), [Right(Op.DESCRIBE, CLUSTER, CLUSTER_NAME)]),
        (m.FindTopicsRequest(topics=()), []),
    ]


@pytest.mark.parametrize(("request_", "rights"), cases(), ids=lambda one: type(one).__name__)
def test_rights_of_request_are_those_of_its_items(
    request_: m.RpcRequest, rights: list[Right]
) -> None:
    world, topic_id = world_with_topic()
    if isinstance(request_, m.DeleteTopicsRequestRpc) and rights:
        request_ = m.DeleteTopicsRequestRpc(topics=(m.TopicRef(topic_id=topic_id),))
    assert list(rights_of(request_, world.state)) == rights


def authorizer_with(
    kind: AclResourceType, name: str, operation: AclOperation
) -> StandardAuthorizer:
    by = StandardAuthorizer()
    literal, allow = AclPatternType.LITERAL, AclPermission.ALLOW
    by.replace_bindings([AclBinding(kind, name, literal, "User:a", "10.0.0.1", operation, allow)])
    return by


@pytest.mark.parametrize(
    ("by", "principal", "host", "code"),
    [
        (authorizer_with(TOPIC, "t", Op.CREATE), "User:a", "10.0.0.1", None),
        (authorizer_with(CLUSTER, CLUSTER_NAME, Op.CREATE), "User:a", "10.0.0.1", None),
        (StandardAuthorizer(), None, None, None),
        (authorizer_with(TOPIC, "t", Op.CREATE), "User:a", "10.0.0.2", 29),
        (authorizer_with(TOPIC, "t", Op.CREATE), "User:b", "10.0.0.1", 29),
        (authorizer_with(TOPIC, "t", Op.READ), "User:a", "10.0.0.1", 29),
    ],
)
def test_require_rights_uses_the_client_of_the_request(
    by: StandardAuthorizer, principal: str | None, host: str | None, code: int | None
) -> None:
    request = m.CreateTopicsRequestRpc(**CREATE_T, client_principal=principal, client_host=host)
    if code is None:
        require_rights(by, request, World().state)
        return
    with pytest.raises(OperatingError) as refused:
        require_rights(by, request, World().state)
    assert refused.value.code is ErrorCode(code)


def test_control_managers_authorize_by_replayed_bindings() -> None:
    """The controller's authorizer follows the records, and forgets a deleted binding."""
    world = World(make_authorizer=StandardAuthorizer)
    named = {"client_principal": "User:a", "client_host": "10.0.0.1"}
    request = a.CreateAclsRequestRpc(creations=(), **named)
    list(world.run("feature 1001"))
    with pytest.raises(OperatingError):
        world.managers.require_rights(request)
    list(world.run("acl CLUSTER LITERAL kafka-cluster User:a * ALTER ALLOW"))
    world.managers.require_rights(request)
    list(world.run("delete_acl CLUSTER LITERAL kafka-cluster User:a * ALTER ALLOW"))
    with pytest.raises(OperatingError):
        world.managers.require_rights(request)
