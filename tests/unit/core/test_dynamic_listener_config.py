"""Keys of single listeners that change while a broker runs."""

from __future__ import annotations

import pytest

from kraftjbod.core.config import BrokerConfig, DynamicBrokerConfig, require_dynamic
from kraftjbod.core.dynamic_listener_config import (
    DYNAMIC_LISTENER_KEYS,
    DYNAMIC_STORE_KEYS,
    is_dynamic_listener_key,
    is_dynamic_store_key,
    require_dynamic_listeners,
)
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.listener_config import ListenerConfig

PREFIX = "listener.name.outer."
REFERENCE = "${file:/s:a}"
BROKER = {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092,OUTER://127.0.0.1:9093",
    "controller.quorum.voters": "100@127.0.0.1:9093",
    "max.connections": "9",
}


def test_dynamic_listener_keys_are_keys_of_listeners() -> None:
    assert DYNAMIC_STORE_KEYS < DYNAMIC_LISTENER_KEYS < ListenerConfig.keys()
    assert is_dynamic_listener_key(f"{PREFIX}max.connections")
    assert not is_dynamic_store_key(f"{PREFIX}max.connections")
    assert is_dynamic_store_key(f"{PREFIX}ssl.keystore.type")
    for key in ("ssl.keystore.type", f"{PREFIX}ssl.client.auth", "max.connections"):
        assert not is_dynamic_listener_key(key)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("ssl.keystore.password", "canary", "would have this secret in plain text"),
        ("ssl.keystore.key", f"canary{REFERENCE}", "would have this secret in plain text"),
        ("ssl.keystore.location", REFERENCE, "only keys with secrets can have a reference"),
        ("ssl.truststore.certificates", "-----BEGIN PRIVATE KEY-----", "has a private key"),
        ("ssl.keystore.type", "JKS2", "listener.name.outer: ssl.keystore.type"),
        ("max.connections", "0", "listener.name.outer: max.connections"),
    ],
)
def test_dynamic_value_that_leaks_or_has_a_wrong_form_is_refused(
    key: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        require_dynamic_listeners({PREFIX + key: value}, source="broker 1")
    assert "canary" not in str(caught.value)


def test_dynamic_store_key_is_accepted_for_one_listener_and_refused_for_all() -> None:
    values = {
        f"{PREFIX}ssl.keystore.type": "pem",
        f"{PREFIX}ssl.keystore.key": REFERENCE,
        f"{PREFIX}ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----",
        f"{PREFIX}max.connections": "5",
        "max.connections.per.ip": "3",
    }
    require_dynamic(values, DynamicBrokerConfig, source="broker 1")
    with pytest.raises(ConfigError, match="can change only for one listener"):
        require_dynamic({"ssl.keystore.type": "PEM"}, DynamicBrokerConfig, source="broker 1")


def test_broker_config_with_dynamic_values_has_those_of_its_listeners() -> None:
    config = BrokerConfig.from_properties(BROKER, source="test", base_dir="/")
    dynamic = DynamicBrokerConfig.from_values({"max.connections": "7"}, source="test")
    values = {f"{PREFIX}max.connections": "5", "listener.name.gone.max.connections": "6"}
    changed = config.with_dynamic(dynamic, values)
    assert changed.of_listener("OUTER").max_connections == 5
    assert changed.of_listener("PLAINTEXT").max_connections == 7
    assert config.of_listener("OUTER").max_connections == 9
