"""Keys of TLS: values, per listener, and secrecy."""

from __future__ import annotations

import pytest

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.config_model import ConfigType, config_types
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ssl_config import SslConfig

BROKER = {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,OUTER://:9093",
    "listener.security.protocol.map": "OUTER:SSL",
    "controller.quorum.voters": "100@127.0.0.1:9095",
}


def broker(**more: str) -> BrokerConfig:
    values = BROKER | {key.replace("_", "."): value for key, value in more.items()}
    return BrokerConfig.from_properties(values, source="b.properties", base_dir="/")


def test_ssl_keys_of_one_listener_override_those_of_all_listeners() -> None:
    config = broker(
        ssl_keystore_type="pem",
        ssl_client_auth="required",
        listener_name_outer_ssl_client_auth="requested",
        listener_name_outer_ssl_keystore_location="/k.pem",
    )
    assert config.protocol_of("OUTER") == "SSL"
    assert config.inter_broker_listener == "PLAINTEXT"
    outer = config.of_listener("OUTER")
    assert (outer.ssl_client_auth, outer.ssl_keystore_location) == ("requested", "/k.pem")
    assert outer.ssl_keystore_type == "PEM"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("ssl_enabled_protocols", "TLSv1.1,TLSv1.2", "TLSv1.1 is not served: use TLSv1.2 or"),
        ("ssl_enabled_protocols", "", "no version is not served"),
        ("ssl_client_auth", "need", "ssl.client.auth"),
        ("ssl_keystore_type", "BKS", "ssl.keystore.type"),
        ("ssl_principal_mapping_rules", "RULE:x", "'RULE:x' is no rule"),
        ("listener_name_outer_ssl_client_auth", "maybe", "listener.name.outer: ssl.client.auth"),
        ("inter_broker_listener_name", "OUTER", "whose protocol is SSL"),
        ("listeners", "OUTER://:9093", "no listener whose protocol is PLAINTEXT"),
        ("listeners", "PLAINTEXT://:1,OUTER://:2,X://:3", "no entry for X, and another listener"),
    ],
)
def test_unusable_values_are_refused(key: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        broker(**{key: value})
    assert problem in str(caught.value)


def test_passwords_are_in_no_text_of_the_configuration() -> None:
    secrets = {
        key: f"canary-{number}"
        for number, key in enumerate(
            ("ssl_keystore_password", "ssl_key_password", "ssl_keystore_key")
        )
    }
    config = broker(**secrets, listener_name_outer_ssl_key_password="canary-x")
    shown = f"{config!r} {config.by_key()} {config.of_listener('OUTER')!r}"
    assert "canary" not in shown
    with pytest.raises(ConfigError) as caught:
        broker(ssl_key_password="canary\0")
    assert "canary" not in str(caught.value)
    kinds = config_types(SslConfig)
    assert kinds["ssl.keystore.key"] is ConfigType.PASSWORD


def test_controller_refuses_keys_of_tls() -> None:
    values = {
        "process.roles": "controller",
        "node.id": "100",
        "listeners": "CONTROLLER://:9095",
        "controller.quorum.voters": "100@127.0.0.1:9095",
        "ssl.keystore.location": "/k.pem",
    }
    with pytest.raises(ConfigError, match="names security, which is not served yet"):
        ControllerConfig.from_properties(values, source="c", base_dir="/")
