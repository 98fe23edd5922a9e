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
        ("controller.listener.names", "SASL_SSL"),
        ("inter.broker.listener.name", "SASL_SSL"),
        ("security.inter.broker.protocol", "SSL"),
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
    require_refused(kind, base, key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listeners", "SASL_SSL://:9093"),
        ("listeners", "PLAINTEXT://:9092,sasl_plaintext://:9094"),
        ("advertised.listeners", "SASL_SSL://kafka.example:9093"),
        ("listener.security.protocol.map", "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL"),
        ("sasl.enabled.mechanisms", "PLAIN"),
        ("listener.name.plaintext.sasl.enabled.mechanisms", "PLAIN"),
    ],
)
def test_controller_config_that_requests_sasl_is_refused(key: str, value: str) -> None:
    require_refused(ControllerConfig, CONTROLLER, key, value)


def require_refused(
    kind: type[BrokerConfig | ControllerConfig], base: dict[str, str], key: str, value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind.from_properties(base | {key: value}, source="x.properties", base_dir="/")
    said = str(caught.value)
    names = {key} if key != "listener.security.protocol.map" else {"listeners"}
    assert said.startswith("x.properties: ")
    assert all(name in said for name in names)
    assert "Remove these keys and protocols" in said


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
    own = {"security.inter.broker.protocol", "sasl.server.max.unauthenticated.bytes"}
    own |= {"authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"}
    assert named == SslConfig.keys() | SaslConfig.keys() | own


def test_protocol_of_listener_is_mapped_or_its_name() -> None:
    items = ["A:SSL", " b : PLAINTEXT"]
    assert [protocol_of(name, items) for name in ("a", "B", "C", "SSL", "X_SASL")] == [
        "SSL",
        "PLAINTEXT",
        "PLAINTEXT",
        "SSL",
        "X_SASL",
    ]


def test_dynamic_config_that_requests_security_is_refused() -> None:
    key = "listener.name.plaintext.ssl.keystore.location"
    with pytest.raises(ConfigError, match=f"{key} configures security"):
        DynamicBrokerConfig.from_values({key: "/k"}, source="broker 1")
