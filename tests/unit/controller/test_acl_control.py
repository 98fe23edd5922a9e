"""Limits of access control lists; ``tests/golden/acls.txt`` has the decisions."""

from __future__ import annotations

import pytest

from kraftjbod.controller import acl_control
from kraftjbod.core.acl import AclOperation, AclPatternType, AclPermission, AclResourceType
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol import rpc_acl_messages as a
from tests.golden.transcript import World

ALL = a.AclFilterBody(resource_type=1, pattern_type=1, operation=1, permission=1)


def binding(name: str) -> a.AclBody:
    return a.AclBody(
        resource_type=AclResourceType.TOPIC,
        resource_name=name,
        pattern_type=AclPatternType.LITERAL,
        principal="User:alice",
        host="*",
        operation=AclOperation.READ,
        permission=AclPermission.ALLOW,
    )


def make_world() -> World:
    world = World()
    list(world.run("feature 1001"))
    return world


def test_delete_acls_beyond_limit_is_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_control, "MAX_DELETED", 2)
    world = make_world()
    world.ask(a.CreateAclsRequestRpc(creations=tuple(map(binding, "abc"))))
    with pytest.raises(OperatingError, match="more than 2 acls") as refused:
        world.ask(a.DeleteAclsRequestRpc(filters=(ALL,)))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert len(world.state.acls) == 3


def test_create_acls_beyond_limit_refuses_the_excess_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_control, "MAX_ACLS", 2)
    world = make_world()
    answer = world.ask(a.CreateAclsRequestRpc(creations=tuple(map(binding, "aabc"))))
    assert [one.error_code for one in answer.results] == [0, 0, 0, ErrorCode.POLICY_VIOLATION]
    assert sorted(one.resource_name for one in world.state.acl_ids) == ["a", "b"]


def test_delete_acls_lists_a_binding_under_each_filter_and_removes_it_once() -> None:
    world = make_world()
    world.ask(a.CreateAclsRequestRpc(creations=(binding("t"),)))
    exact = a.AclFilterBody(**binding("t").model_dump())
    answer = world.ask(a.DeleteAclsRequestRpc(filters=(ALL, exact)))
    assert [one.matching for one in answer.results] == [(binding("t"),), (binding("t"),)]
    assert not world.state.acls
    assert not world.state.acl_ids
