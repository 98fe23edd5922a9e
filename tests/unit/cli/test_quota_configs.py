"""``kraftjbod-configs --entity-type users|clients|ips``: names, keys, and Kafka's lines."""

from __future__ import annotations

import click
import pytest

from kraftjbod.cli.clients.quota_admin import ANY_NAME
from kraftjbod.cli.quota_configs import alter_entity, entity_names, java_double, quota_line
from kraftjbod.cli.terminal.command import ClusterAddress

NOWHERE = ClusterAddress(bootstrap_server="127.0.0.1:1")


def test_entity_names_pairs_types_and_names_in_order() -> None:
    both = ["clients", "users"]
    assert entity_names(["users"], ["alice"]) == {"user": "alice"}
    assert entity_names(both, ["app", ""]) == {"client-id": "app", "user": None}
    assert entity_names(both, ["app"]) == {"client-id": "app", "user": ANY_NAME}
    assert entity_names(["ips"], []) == {"ip": ANY_NAME}


@pytest.mark.parametrize("kinds", [["users", "ips"], ["users", "users"], ["topics", "users"]])
def test_entity_names_refuses_types_that_cannot_be_combined(kinds: list[str]) -> None:
    with pytest.raises(click.UsageError, match="Only users and clients"):
        entity_names(kinds, [])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1024.0, "1024.0"),
        (0.5, "0.5"),
        (0.001, "0.001"),
        (9_999_999.0, "9999999.0"),
        (10_485_760.0, "1.048576E7"),
        (1e10, "1.0E10"),
        (0.00025, "2.5E-4"),
    ],
)
def test_java_double_writes_numbers_as_kafkas_tool(value: float, text: str) -> None:
    assert java_double(value) == text


def test_quota_line_names_users_before_clients_and_defaults() -> None:
    entity = (("client-id", None), ("user", "alice"))
    assert quota_line(entity, {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0}) == (
        "Quota configs for user-principal 'alice', the default client-id are "
        "producer_byte_rate=1.0, consumer_byte_rate=2.0"
    )


@pytest.mark.parametrize(
    ("kinds", "names", "adds", "problem"),
    [
        (["users"], [], {"producer_byte_rate": "1"}, "for each --entity-type"),
        (["users"], ["a"], {}, "needs --add-config"),
        (["users"], ["a"], {"x": "1"}, "Only quota and SCRAM credential configs can be added"),
        (["clients"], ["a"], {"SCRAM-SHA-256": "password=b"}, "Only quota configs"),
        (["ips"], ["1.1.1.1"], {"producer_byte_rate": "1"}, "Only connection quota configs"),
        (["users"], [""], {"SCRAM-SHA-256": "password=b"}, "belong to a user"),
        (
            ["users"],
            ["a"],
            {"SCRAM-SHA-256": "password=b", "producer_byte_rate": "1"},
            "Cannot alter both quota and SCRAM",
        ),
    ],
)
async def test_alter_entity_refuses_values_that_do_not_fit(
    kinds: list[str], names: list[str], adds: dict[str, str], problem: str
) -> None:
    with pytest.raises(click.UsageError, match=problem):
        await alter_entity(NOWHERE, kinds, entity_names(kinds, names), adds, ())
