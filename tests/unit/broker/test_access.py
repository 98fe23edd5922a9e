"""``Access``: rights of brokers, records for the audit, and authorized operations."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.authorizer.standard_authorizer import StandardAuthorizer
from kraftjbod.broker.access import Access
from kraftjbod.core.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)

Op, Kind = AclOperation, AclResourceType
Granted = tuple[AclResourceType, str, AclOperation]


def make_access(*granted: Granted, is_broker: bool = False) -> tuple[Access, list[Any]]:
    by = StandardAuthorizer()
    by.replace_bindings(
        AclBinding(
            kind, name, AclPatternType.LITERAL, "User:a", "*", operation, AclPermission.ALLOW
        )
        for kind, name, operation in granted
    )
    recorded: list[Any] = []
    access = Access(
        by,
        principal="User:a",
        host="10.0.0.1",
        listener_name="CLIENTS",
        api="Produce",
        is_broker=is_broker,
        record=lambda _, *check: recorded.append((*check[:-1], check[-1].is_allowed)),
    )
    return access, recorded


def test_access_may_audits_refusals_and_administrative_acts_only() -> None:
    access, recorded = make_access((Kind.TOPIC, "t", Op.READ), (Kind.TOPIC, "t", Op.ALTER))
    assert access.may(Op.READ, Kind.TOPIC, "t")
    assert access.may(Op.ALTER, Kind.TOPIC, "t")
    assert not access.may(Op.WRITE, Kind.TOPIC, "t")
    assert not access.may_see(Op.DESCRIBE, Kind.TOPIC, "other")
    assert recorded == [(Op.ALTER, Kind.TOPIC, "t", True), (Op.WRITE, Kind.TOPIC, "t", False)]


@pytest.mark.parametrize("is_broker", [False, True])
def test_broker_has_cluster_action_and_describe_without_bindings(is_broker: bool) -> None:
    access, _ = make_access(is_broker=is_broker)
    assert access.may_on_cluster(Op.CLUSTER_ACTION) is is_broker
    assert access.may(Op.DESCRIBE, Kind.TOPIC, "t") is is_broker
    assert access.may_on_cluster(Op.DESCRIBE) is is_broker
    assert not access.may(Op.DESCRIBE, Kind.GROUP, "g")
    assert not access.may(Op.READ, Kind.TOPIC, "t")
    assert not access.may_on_cluster(Op.ALTER)


def test_access_may_on_cluster_or_audits_only_the_refusal_of_the_resource() -> None:
    access, recorded = make_access()
    assert not access.may_on_cluster_or(Op.CREATE, Kind.TOPIC, "t")
    assert recorded == [(Op.CREATE, Kind.TOPIC, "t", False)]


def test_operations_on_cluster_need_describe() -> None:
    without, _ = make_access((Kind.CLUSTER, CLUSTER_NAME, Op.CREATE))
    assert without.operations_on_cluster() == 0
    granted = [(Kind.CLUSTER, CLUSTER_NAME, one) for one in (Op.CREATE, Op.DESCRIBE)]
    assert make_access(*granted)[0].operations_on_cluster() == 1 << Op.CREATE | 1 << Op.DESCRIBE


def test_operations_on_topic_include_implied_ones() -> None:
    access, recorded = make_access((Kind.TOPIC, "t", Op.READ))
    assert access.operations_on(Kind.TOPIC, "t") == 1 << Op.READ | 1 << Op.DESCRIBE
    assert not recorded
