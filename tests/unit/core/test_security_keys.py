"""No listener that is configured as secure is served in plaintext."""

from __future__ import annotations

import pytest

from kraftjbod.core.config import BrokerConfig, ControllerConfig, DynamicBrokerConfig
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.sasl_config import SaslConfig
from kraftjbod.core.security_keys import names_security, protocol_of
from kraftjbod.core.ssl_config import SslConfig

COMMON = {"controller.quorum.voters": "100@127.0.0.1:9093"}
BROKER = COMMON | {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
}
CONTROLLER = COMMON | {
    "process.roles": "controller",
    "node.id": "100",
    "listeners": "CONTROLLER://127.0.0.1:9093",
}
# As in the configuration files that Kafka ships.
STOCK_MAP = (
    "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,"
    "SASL_SSL:SASL_SSL"
)
DAEMONS = pytest.mark.parametrize(
    ("kind", "base"), [(BrokerConfig, BROKER), (ControllerConfig, CONTROLLER)]
)


@DAEMONS
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listeners", "EXTERNAL_SSL://:9093"),
        ("controller.listener.names", "NODES_SSL"),
        ("inter.broker.listener.name", "NODES_SSL"),
        ("security.inter.broker.protocol", "TLS"),
        ("security.providers", "x"),
        ("ssl.provider", "x"),
        ("SSL.Keystore.Location", "/k"),
        ("principal.builder.class", "x"),
        ("password.encoder.secret", "x"),
        ("delegation.token.secret.key", "x"),
        ("zookeeper.ssl.client.enable", "true"),
    ],
)
def test_config_that_requests_security_is_refused(
    kind: type[BrokerConfig | ControllerConfig], base: dict[str, str], key: str, value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind.from_properties(base | {key: value}, source="x.properties", base_dir="/")
    said = str(caught.value)
    assert said.startswith("x.properties: ")
    assert key in said
    assert "Remove these keys and protocols" in said


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "sasl.enabled.mechanisms is not set"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "the mechanism PLAIN has no user"),
        (
            {"sasl.enabled.mechanisms": "SCRAM-SHA-512"},
            "sasl.mechanism.controller.protocol is not set",
        ),
    ],
)
def test_controller_config_with_sasl_is_refused_without_users_and_a_login(
    values: dict[str, str], reason: str
) -> None:
    protocols = {"listener.security.protocol.map": "CONTROLLER:SASL_SSL"}
    with pytest.raises(ConfigError, match=f"x: listener CONTROLLER: {reason}"):
        ControllerConfig.from_properties(CONTROLLER | protocols | values, source="x", base_dir="/")


@DAEMONS
def test_config_with_plaintext_only_is_accepted(
    kind: type[BrokerConfig | ControllerConfig], base: dict[str, str]
) -> None:
    harmless = {
        "listener.security.protocol.map": STOCK_MAP,
        "security.inter.broker.protocol": "PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.location": " ",
        "transaction.state.log.replication.factor": "1",
    }
    assert kind.from_properties(base | harmless, source="x", base_dir="/").node_id
    by_map = {
        "listeners": "MY_SSL://127.0.0.1:9092",
        "controller.listener.names": "CONTROLLER_SSL",
        "listener.security.protocol.map": "MY_SSL:PLAINTEXT,CONTROLLER_SSL:PLAINTEXT",
    }
    assert kind.from_properties(base | by_map, source="x", base_dir="/").listeners


def test_names_security_matches_keys_of_tls_sasl_and_the_authorizer() -> None:
    ours = BrokerConfig.keys() | ControllerConfig.keys()
    named = {key for key in ours if names_security(key)}
    own = {"security.inter.broker.protocol"}
    own |= {"sasl.mechanism.controller.protocol", "sasl.mechanism.inter.broker.protocol"}
    own |= {"authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"}
    assert named == SslConfig.keys() | SaslConfig.keys() | own


def test_protocol_of_listener_is_mapped_or_its_name_or_plaintext() -> None:
    items = ["A:SSL", " b : PLAINTEXT"]
    assert [protocol_of(name, items) for name in ("a", "B", "C", "SSL", "X_SASL")] == [
        "SSL",
        "PLAINTEXT",
        "PLAINTEXT",
        "SSL",
        "X_SASL",
    ]


def test_dynamic_config_that_requests_security_is_refused() -> None:
    key = "listener.name.plaintext.ssl.cipher.suites"
    with pytest.raises(ConfigError, match=f"{key} configures security"):
        DynamicBrokerConfig.from_values({key: "x"}, source="broker 1")
