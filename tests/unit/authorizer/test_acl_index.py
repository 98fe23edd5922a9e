"""``AclIndex`` compared with a list of bindings that is searched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.authorizer.acl_index import AclIndex, canonical_host
from kraftjbod.core.acl import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    is_match,
)

NAMES = st.text(alphabet="ab*", min_size=1, max_size=4)
HOSTS = st.sampled_from(["*", "10.0.0.1", "::1", "0:0:0:0:0:0:0:1", "10.0.0.2"])
PRINCIPALS = st.sampled_from(["User:a", "User:b", "User:*"])
TYPES = st.sampled_from([AclResourceType.TOPIC, AclResourceType.GROUP])
OPERATIONS = st.sampled_from([one for one in AclOperation if one >= AclOperation.ALL])
BINDINGS = st.builds(
    AclBinding,
    TYPES,
    NAMES,
    st.sampled_from([AclPatternType.LITERAL, AclPatternType.PREFIXED]),
    PRINCIPALS,
    HOSTS,
    OPERATIONS,
    st.sampled_from([AclPermission.DENY, AclPermission.ALLOW]),
)


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[AclBinding, bool]]:
    """Draw a sequence of additions (True) and of removals of present bindings (False)."""
    present: list[AclBinding] = []
    steps: list[tuple[AclBinding, bool]] = []
    for _ in range(draw(st.integers(0, 30))):
        if present and draw(st.booleans()):
            one = present.pop(draw(st.integers(0, len(present) - 1)))
            steps.append((one, False))
        else:
            one = draw(BINDINGS)
            present.append(one)
            steps.append((one, True))
    return steps


def expected_grants(
    bindings: list[AclBinding], principal: str, host: str, kind: AclResourceType, name: str
) -> tuple[int, int] | None:
    """Return the denied and the allowed operations by a search of all bindings."""
    named = [one for one in bindings if one.resource_type is kind and is_match(one, name)]
    if not named:
        return None
    bits = {AclPermission.DENY: 0, AclPermission.ALLOW: 0}
    for one in named:
        is_host = one.host == "*" or canonical_host(one.host) == canonical_host(host)
        if one.principal in (principal, "User:*") and is_host:
            bits[one.permission] |= 1 << one.operation
    return bits[AclPermission.DENY], bits[AclPermission.ALLOW]


@given(changes(), PRINCIPALS, HOSTS, TYPES, NAMES)
def test_acl_index_after_changes_equals_search_of_remaining_bindings(
    steps: list[tuple[AclBinding, bool]],
    principal: str,
    host: str,
    kind: AclResourceType,
    name: str,
) -> None:
    index, remaining = AclIndex(), []
    for binding, is_added in steps:
        if is_added:
            index.add(binding)
            remaining.append(binding)
        else:
            index.remove(binding)
            remaining.remove(binding)
    grants = index.grants(principal, host, kind, name)
    found = None if grants is None else (grants.denied, grants.allowed)
    assert found == expected_grants(remaining, principal, host, kind, name)
    assert len(index) == len(remaining)
    assert {
        (one.resource_name, one.operation) for one in index.bindings_of("User:a", host, kind)
    } == {
        (one.resource_name, one.operation)
        for one in remaining
        if one.resource_type is kind
        and one.principal in ("User:a", "User:*")
        and (one.host == "*" or canonical_host(one.host) == canonical_host(host))
    }


@given(changes())
def test_acl_index_after_removal_of_all_bindings_is_empty(
    steps: list[tuple[AclBinding, bool]],
) -> None:
    index = AclIndex()
    added = [binding for binding, is_added in steps if is_added]
    for binding in added:
        index.add(binding)
    for binding in reversed(added):
        index.remove(binding)
    assert len(index) == 0
    for name in ("a", "b", "*", "ab"):
        assert index.grants("User:a", "::1", AclResourceType.TOPIC, name) is None


@pytest.mark.parametrize(
    ("host", "canonical"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::FFFF:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("example.com", "example.com"),
        ("*", "*"),
    ],
)
def test_canonical_host_unifies_spellings_of_addresses(host: str, canonical: str) -> None:
    assert canonical_host(host) == canonical
