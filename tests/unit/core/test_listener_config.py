"""Listeners by name: Kafka's rules, and keys of a single listener."""

from __future__ import annotations

import pytest

from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.listener_config import (
    listener_values,
    require_addresses,
    require_protocol_map,
    served_listener_keys,
    upper_names,
)

BROKER = {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,outer://:9093",
    "controller.quorum.voters": "100@127.0.0.1:9095",
}


def broker(**more: str) -> BrokerConfig:
    values = BROKER | {key.replace("_", "."): value for key, value in more.items()}
    return BrokerConfig.from_properties(values, source="b.properties", base_dir="/")


@pytest.mark.parametrize(
    ("listeners", "advertised", "problem"),
    [
        ("A://:1,a://:2", "", "listeners has the name A twice"),
        ("A://:1", "A://h:1,A://h:2", r"advertised\.listeners has the name A twice"),
        ("A://:1,B://:1", "", "A and B on port 1"),
        ("A://h:1,B://h:1", "", "A and B on port 1"),
        ("A://:1,B://10.0.0.1:1", "", "A and B on port 1"),
        ("A://:1,B://h:1", "", "A and B on port 1"),
        ("A://:1", "B://h:1", r"has B, which listeners does not have"),
        ("A://:1", "A://:1", "to which no client can connect"),
        ("A://:1", "A://[::]:1", "to which no client can connect"),
        ("A://:1", "A://[0::0]:1", "to which no client can connect"),
        ("A://[::1]:1,B://[0:0::1]:1", "", "A and B on port 1"),
        ("A://[::]:1,B://[::1]:1", "", "A and B on port 1"),
        ("A://:1,B://[::ffff:127.0.0.1]:1", "", "A and B on port 1"),
    ],
)
def test_addresses_that_kafka_refuses_are_refused(
    listeners: str, advertised: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        broker(listeners=listeners, advertised_listeners=advertised)


@pytest.mark.parametrize(
    ("listeners", "advertised"),
    [
        ("A://:0,B://:0", ""),
        ("A://:1,B://[::1]:1", "A://h:5,B://h:5"),
        ("A://:1,B://[::]:1", ""),
        ("A://10.0.0.1:1,B://10.0.0.2:1", ""),
        ("A://:1,B://:2", "A://h:1"),
    ],
)
def test_distinct_addresses_are_accepted(listeners: str, advertised: str) -> None:
    config = broker(listeners=listeners, advertised_listeners=advertised)
    require_addresses(config.listeners, config.advertised_listeners)


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        (["A"], "write NAME:PROTOCOL"),
        ([":SSL"], "write NAME:PROTOCOL"),
        (["A:TLS"], "the protocol TLS: use PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        (["A:SSL", "a:PLAINTEXT"], "A has two protocols"),
    ],
)
def test_protocol_map_with_unusable_item_is_refused(items: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        require_protocol_map(items)
    with pytest.raises(ConfigError, match="protocol"):
        broker(listener_security_protocol_map=",".join(items))


def test_names_of_listeners_are_compared_in_upper_case() -> None:
    assert upper_names(("a", "B")) == ("A", "B")
    assert upper_names("inner") == "INNER"
    assert upper_names(None) is None
    config = broker(inter_broker_listener_name="outer", controller_listener_names="ctl")
    assert config.inter_broker_listener == "OUTER"
    assert config.controller_listener_names == ("CTL",)


def test_broker_with_listener_of_controllers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"controller\.listener\.names reserves"):
        broker(controller_listener_names="OUTER")


def test_key_of_one_listener_overrides_the_key_of_all() -> None:
    config = broker(max_connections="7", listener_name_outer_max_connections="5")
    assert config.of_listener("OUTER").max_connections == 5
    assert config.of_listener("PLAINTEXT").max_connections == 7


def test_key_of_missing_listener_is_refused_with_hint() -> None:
    with pytest.raises(ConfigError, match="did you mean OUTER"):
        broker(listener_name_oter_max_connections="5")
    keys = {"listener.name.x.max.connections": "1", "listener.name.x.other": "1"}
    assert served_listener_keys(keys, {"max.connections"}) == ["listener.name.x.max.connections"]
    found = listener_values(keys, {"max.connections"}, listeners={"X"}, source="f")
    assert found == {"X": {"max.connections": "1"}}


def test_wrong_value_of_one_listener_names_file_and_listener() -> None:
    with pytest.raises(ConfigError, match=r"b\.properties: listener\.name\.outer: max\.conn"):
        broker(listener_name_outer_max_connections="0")
