"""Entities of client quotas: order of precedence and validation."""

from __future__ import annotations

import pytest

from kraftjbod.core.client_quota import (
    QuotaEntity,
    address_entity,
    candidates,
    client_entity,
    entity_of,
    why_invalid_entity,
    why_invalid_quota,
)

ALICE, APP = ("user", "alice"), ("client-id", "app")
ANY_USER, ANY_APP = ("user", None), ("client-id", None)


def test_candidates_are_in_kafkas_order_and_defaults_share_nothing() -> None:
    both: QuotaEntity = (APP, ALICE)
    assert list(candidates(client_entity("alice", "app"))) == [
        (both, both),
        ((ANY_APP, ALICE), both),
        ((ALICE,), (ALICE,)),
        ((APP, ANY_USER), both),
        ((ANY_APP, ANY_USER), both),
        ((ANY_USER,), (ALICE,)),
        ((APP,), (APP,)),
        ((ANY_APP,), (APP,)),
    ]


def test_candidates_of_an_address_are_itself_and_the_default() -> None:
    one = address_entity("10.0.0.1")
    assert list(candidates(one)) == [(one, one), ((("ip", None),), one)]


def test_client_entity_cuts_names_that_are_longer_than_any_with_a_quota() -> None:
    """A client id may have 32 KB, and nodes remember thousands."""
    assert client_entity("u" * 5000, "c") == (("client-id", "c"), ("user", "u" * 1001))
    assert client_entity("u", "c" * 5000)[0] == ("client-id", "c" * 1001)


def test_entity_of_does_not_depend_on_the_order_of_types() -> None:
    assert entity_of({"user": "alice", "client-id": "app"}) == (APP, ALICE)


@pytest.mark.parametrize(
    ("entity", "why"),
    [
        ((ALICE,), None),
        ((ANY_USER, APP), None),
        ((("ip", "10.0.0.1"),), None),
        ((("ip", None),), None),
        ((), "empty"),
        ((ALICE, ANY_USER), "once"),
        ((("group", "g"),), "Unhandled client quota entity type: group"),
        ((("ip", "10.0.0.1"), ALICE), "no other type"),
        ((("user", ""),), "1 to 1000 characters"),
        ((("user", "x" * 1001),), "1 to 1000 characters"),
        ((("ip", "broker.example"),), "numeric"),
        ((("ip", "2001:db8::1"),), None),
        ((("ip", "2001:DB8:0::1"),), "2001:db8::1"),
    ],
)
def test_why_invalid_entity_names_the_violated_rule(entity: QuotaEntity, why: str | None) -> None:
    found = why_invalid_entity(entity)
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize(
    ("types", "key", "value", "why"),
    [
        ("user", "producer_byte_rate", 1024.0, None),
        ("client-id", "consumer_byte_rate", 1.0, None),
        ("user", "producer_byte_rate", 0.0, "greater than 0"),
        ("user", "producer_byte_rate", float("nan"), "greater than 0"),
        ("user", "producer_byte_rate", float("inf"), "at most"),
        ("user", "producer_byte_rate", 1.5, "fractional"),
        ("user", "no_rate", 1.0, "Invalid configuration key no_rate"),
        ("ip", "producer_byte_rate", 1.0, "Invalid configuration key"),
        ("user", "controller_mutation_rate", 0.5, None),
        ("user", "connection_creation_rate", 1.0, "Invalid configuration key"),
        ("ip", "connection_creation_rate", 2.0**31 - 1, None),
        ("ip", "connection_creation_rate", 2.0**31, "at most 2147483647"),
    ],
)
def test_why_invalid_quota_names_the_violated_rule(
    types: str, key: str, value: float, why: str | None
) -> None:
    found = why_invalid_quota(frozenset({types}), key, value)
    assert found is None if why is None else why in str(found)
