"""Filters of access control lists."""

from __future__ import annotations

import pytest

from kraftjbod.core.acl import (
    OPERATIONS_OF,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)

LITERAL, PREFIXED = AclPatternType.LITERAL, AclPatternType.PREFIXED
ANY, MATCH = AclPatternType.ANY, AclPatternType.MATCH


def binding(name: str = "t1", pattern: AclPatternType = LITERAL) -> AclBinding:
    return AclBinding(
        AclResourceType.TOPIC,
        name,
        pattern,
        "User:alice",
        "*",
        AclOperation.READ,
        AclPermission.ALLOW,
    )


@pytest.mark.parametrize(
    ("name", "pattern", "found"),
    [
        ("t1", LITERAL, ["t1"]),
        ("t1", ANY, ["t1"]),
        ("t", ANY, ["t+"]),
        ("t1", MATCH, ["t1", "t+", "*"]),
        ("*", MATCH, ["*"]),
        ("*", LITERAL, ["*"]),
        (None, PREFIXED, ["t+"]),
        (None, MATCH, ["t1", "t+", "*"]),
    ],
)
def test_acl_filter_selects_patterns_by_type(
    name: str | None, pattern: AclPatternType, found: list[str]
) -> None:
    present = {"t1": binding(), "t+": binding("t", PREFIXED), "*": binding("*")}
    chosen = AclFilter(resource_name=name, pattern_type=pattern)
    assert [key for key, one in present.items() if chosen.matches(one)] == found


@pytest.mark.parametrize(
    ("chosen", "is_found"),
    [
        (AclFilter(), True),
        (AclFilter(resource_type=AclResourceType.GROUP), False),
        (AclFilter(principal="User:alice"), True),
        (AclFilter(principal="User:bob"), False),
        (AclFilter(host="10.0.0.1"), False),
        (AclFilter(operation=AclOperation.ALL), False),
        (AclFilter(permission=AclPermission.DENY), False),
        (AclFilter(permission=AclPermission.ALLOW, operation=AclOperation.READ), True),
    ],
)
def test_acl_filter_compares_each_field(chosen: AclFilter, is_found: bool) -> None:
    assert chosen.matches(binding()) is is_found


def test_operations_of_cluster_are_those_of_kafka() -> None:
    operations = {one.name for one in OPERATIONS_OF[AclResourceType.CLUSTER]}
    assert operations == {
        *("CREATE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
        *("IDEMPOTENT_WRITE", "ALTER", "DESCRIBE"),
    }


def test_acl_binding_text_names_pattern_and_grant() -> None:
    assert binding("t", PREFIXED).text() == "TOPIC:PREFIXED:t ALLOW READ to User:alice from *"
