"""Principals of brokers and controllers."""

from __future__ import annotations

import pytest

from kraftjbod.core.node_principals import NodePrincipals


@pytest.mark.parametrize(
    ("principal", "node_id"),
    [
        ("User:broker-1", 1),
        ("User:broker-0", 0),
        ("User:CN=controller-100,OU=kafka", 100),
        ("User:broker-01", None),
        ("User:broker-", None),
        ("User:broker-1x", None),
        ("User:broker-1\n", None),
        ("User:Xbroker-1", None),
        ("User:CN=controller-100,OU=kafkaX", None),
        ("User:broker-12345678901", None),
        ("User:ANONYMOUS", None),
    ],
)
def test_node_of_returns_the_id_in_the_place_of_the_pattern(
    principal: str, node_id: int | None
) -> None:
    principals = NodePrincipals.parse("User:broker-{id}; User:CN=controller-{id},OU=kafka")
    assert principals.node_of(principal) == node_id


def test_node_principal_pattern_characters_are_literal() -> None:
    assert NodePrincipals.parse("User:b.*{id}").node_of("User:bxx1") is None
    assert NodePrincipals.parse("User:b.*{id}").node_of("User:b.*1") == 1


@pytest.mark.parametrize("text", ["", " ; ", "User:broker", "User:{id}-{id}", "broker-{id}"])
def test_node_principal_pattern_without_exactly_one_id_or_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write User:"):
        NodePrincipals.parse(text)
