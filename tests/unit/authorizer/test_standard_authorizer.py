"""``StandardAuthorizer`` compared with Kafka's rules, written down as a search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.authorizer.standard_authorizer import MAX_CACHED_DECISIONS, StandardAuthorizer
from kraftjbod.core.acl import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    is_match,
)
from tests.unit.authorizer.test_acl_index import (
    BINDINGS,
    HOSTS,
    NAMES,
    OPERATIONS,
    PRINCIPALS,
    TYPES,
    changes,
    expected_grants,
)

Op = AclOperation
TOPIC = AclResourceType.TOPIC
HOST = "10.0.0.1"


def acl(
    name: str,
    operation: AclOperation,
    *,
    permission: AclPermission = AclPermission.ALLOW,
    pattern: AclPatternType = AclPatternType.LITERAL,
    principal: str = "User:a",
    host: str = "*",
) -> AclBinding:
    return AclBinding(TOPIC, name, pattern, principal, host, operation, permission)


def authorizer(*bindings: AclBinding, is_open: bool = False) -> StandardAuthorizer:
    made = StandardAuthorizer(
        super_users=["User:root", "User:CN=ops,O=x"], allow_everyone_if_no_acl_found=is_open
    )
    made.replace_bindings(bindings)
    return made


def may(
    by: StandardAuthorizer,
    operation: AclOperation,
    name: str,
    principal: str = "User:a",
    host: str = HOST,
) -> bool:
    return by.decide(principal, host, operation, TOPIC, name).is_allowed


def test_standard_authorizer_operation_all_needs_a_binding_of_all() -> None:
    by = authorizer(acl("t", Op.ALL))
    assert may(by, Op.ALL, "t") and may(by, Op.READ, "t")
    by = authorizer(acl("t", Op.READ))
    assert may(by, Op.READ, "t") and not may(by, Op.ALL, "t")


def expected(
    bindings: list[AclBinding],
    principal: str,
    host: str,
    operation: AclOperation,
    kind: AclResourceType,
    name: str,
) -> bool | None:
    """Return Kafka's decision; None if no binding names the resource."""
    grants = expected_grants(bindings, principal, host, kind, name)
    if grants is None:
        return None
    denied, allowed = grants
    implying = {
        Op.DESCRIBE: [Op.READ, Op.WRITE, Op.DELETE, Op.ALTER],
        Op.DESCRIBE_CONFIGS: [Op.ALTER_CONFIGS],
    }
    if any(denied >> one & 1 for one in (operation, Op.ALL)):
        return False
    return any(allowed >> one & 1 for one in (operation, Op.ALL, *implying.get(operation, [])))


@given(changes(), PRINCIPALS, HOSTS.filter("*".__ne__), OPERATIONS, TYPES, NAMES, st.booleans())
def test_standard_authorizer_decides_as_search_of_all_bindings(
    steps: list[tuple[AclBinding, bool]],
    principal: str,
    host: str,
    operation: AclOperation,
    kind: AclResourceType,
    name: str,
    is_open: bool,
) -> None:
    """The decision is requested after each change, so that a stale cache is found."""
    by, remaining = authorizer(is_open=is_open), []
    for binding, is_added in steps:
        if is_added:
            by.change_bindings(added=[binding])
            remaining.append(binding)
        else:
            by.change_bindings(removed=[binding])
            remaining.remove(binding)
        wanted = expected(remaining, principal, host, operation, kind, name)
        found = by.decide(principal, host, operation, kind, name)
        assert found.is_allowed is (is_open if wanted is None else wanted)
        assert by.decide("User:root", host, operation, kind, name).is_allowed


@given(st.lists(BINDINGS, max_size=12), HOSTS.filter("*".__ne__), OPERATIONS, TYPES)
def test_standard_authorizer_decide_by_type_decides_as_kafkas_search(
    bindings: list[AclBinding], host: str, operation: AclOperation, kind: AclResourceType
) -> None:
    by = authorizer(*bindings)
    mine = [
        one
        for one in bindings
        if one.resource_type is kind
        and one.principal in ("User:a", "User:*")
        and (one.host == "*" or is_same_host(one.host, host))
        and one.operation in (operation, Op.ALL)
    ]
    denies = [one for one in mine if one.permission is AclPermission.DENY]

    def is_dominated(allow: AclBinding) -> bool:
        is_literal = allow.pattern_type is AclPatternType.LITERAL
        return any(
            allow.resource_name.startswith(deny.resource_name)
            if deny.pattern_type is AclPatternType.PREFIXED
            else is_literal and deny.resource_name == allow.resource_name
            for deny in denies
        )

    is_all_denied = any(
        one.resource_name == "*" and one.pattern_type is AclPatternType.LITERAL for one in denies
    )
    is_wanted = not is_all_denied and any(
        (one.resource_name == "*" and one.pattern_type is AclPatternType.LITERAL)
        or not is_dominated(one)
        for one in mine
        if one.permission is AclPermission.ALLOW
    )
    by_name = by.decide("User:a", host, operation, kind, "hardcode").is_allowed
    found = by.decide_by_type("User:a", host, operation, kind)
    assert found.is_allowed is (is_wanted or by_name)
    assert by.decide_by_type("User:a", host, operation, kind) == found


def is_same_host(host: str, other: str) -> bool:
    one_address = {"::1", "0:0:0:0:0:0:0:1"}
    return host == other or {host, other} == one_address


def test_standard_authorizer_deny_of_describe_beats_allow_that_implies_it() -> None:
    by = authorizer(acl("t", Op.READ), acl("t", Op.DESCRIBE, permission=AclPermission.DENY))
    assert may(by, Op.READ, "t")
    assert not may(by, Op.DESCRIBE, "t")


def test_standard_authorizer_deny_of_read_does_not_deny_describe() -> None:
    by = authorizer(acl("t", Op.WRITE), acl("t", Op.READ, permission=AclPermission.DENY))
    assert may(by, Op.DESCRIBE, "t")


def test_standard_authorizer_deny_of_all_denies_each_operation() -> None:
    by = authorizer(
        acl("*", Op.ALL),
        acl("secret-", Op.ALL, permission=AclPermission.DENY, pattern=AclPatternType.PREFIXED),
    )
    assert may(by, Op.READ, "public")
    assert not any(may(by, one, "secret-1") for one in (Op.READ, Op.DESCRIBE, Op.ALTER_CONFIGS))


def test_standard_authorizer_prefixed_star_is_no_wildcard() -> None:
    by = authorizer(acl("*", Op.READ, pattern=AclPatternType.PREFIXED))
    assert not may(by, Op.READ, "t")
    assert may(by, Op.READ, "*t")


def test_standard_authorizer_acl_of_another_user_ends_allow_everyone_for_its_topic() -> None:
    by = authorizer(acl("t", Op.READ, principal="User:b"), is_open=True)
    assert not may(by, Op.READ, "t")
    assert may(by, Op.READ, "u")


def test_standard_authorizer_super_user_is_compared_exactly() -> None:
    by = authorizer(acl("t", Op.ALL, principal="User:*", permission=AclPermission.DENY))
    assert may(by, Op.READ, "t", principal="User:CN=ops,O=x")
    assert not may(by, Op.READ, "t", principal="user:root")
    assert not may(by, Op.READ, "t", principal="Group:root")


def test_standard_authorizer_host_in_java_spelling_matches_address() -> None:
    by = authorizer(acl("t", Op.READ, host="0:0:0:0:0:0:0:1"))
    assert may(by, Op.READ, "t", host="::1")
    assert not may(by, Op.READ, "t", host="::2")


def test_standard_authorizer_decides_the_same_after_its_cache_overflowed() -> None:
    by = authorizer(acl("t", Op.READ))
    assert may(by, Op.READ, "t")
    for index in range(MAX_CACHED_DECISIONS + 10):
        assert not may(by, Op.READ, f"other-{index}")
    assert may(by, Op.READ, "t")


@given(BINDINGS, NAMES)
def test_is_match_agrees_with_authorizer(binding: AclBinding, name: str) -> None:
    by = authorizer(binding)
    rule = by.decide("User:a", HOST, Op.READ, binding.resource_type, name).rule
    assert (rule == "DefaultDeny") is not is_match(binding, name)
