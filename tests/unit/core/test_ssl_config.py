"""Keys of TLS: values, per listener, and secrecy."""

from __future__ import annotations

import pytest

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.config_model import ConfigType, config_types
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.node_principals import NO_NODES, NodePrincipals
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
        ("listeners", "OUTER://:9093", "name the one by which brokers speak to each other"),
        ("ssl_endpoint_identification_algorithm", "ldaps", "ssl.endpoint.identification.algorithm"),
        ("controller_listener_names", "", "controller.listener.names names no listener"),
        ("cluster_node_principals", "User:x", "'User:x' is no pattern of principals"),
        ("listeners", "PLAINTEXT://:1,OUTER://:2,X://:3", "no entry for X, and another listener"),
    ],
)
def test_ssl_config_with_unusable_value_is_refused_with_reason(
    key: str, value: str, problem: str
) -> None:
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


CONTROLLER = {
    "process.roles": "controller",
    "node.id": "100",
    "listeners": "CONTROLLER://:9095",
    "controller.quorum.voters": "100@127.0.0.1:9095",
}


def controller(**more: str) -> ControllerConfig:
    values = CONTROLLER | {key.replace("_", "."): value for key, value in more.items()}
    return ControllerConfig.from_properties(values, source="c.properties", base_dir="/")


def test_controller_has_keys_of_its_listener() -> None:
    config = controller(
        listener_security_protocol_map="CONTROLLER:SSL",
        ssl_client_auth="required",
        listener_name_controller_ssl_keystore_location="/k.pem",
        cluster_node_principals="User:broker-{id}",
    )
    assert config.protocol_of("CONTROLLER") == "SSL"
    assert config.node_listeners == ("CONTROLLER",)
    assert config.of_listener("CONTROLLER").ssl_keystore_location == "/k.pem"
    assert config.node_principals is not None


def test_broker_has_keys_for_the_controllers_listener() -> None:
    config = broker(
        inter_broker_listener_name="OUTER",
        listener_security_protocol_map="OUTER:SSL,CONTROLLER:SSL",
        ssl_client_auth="required",
        listener_name_controller_ssl_endpoint_identification_algorithm="",
        cluster_node_principals="User:broker-{id}",
    )
    assert config.node_listeners == ("CONTROLLER", "OUTER")
    for_nodes = NodePrincipals.parse("User:broker-{id}")
    assert config.node_principals_of("OUTER") == for_nodes
    assert config.node_principals_of("PLAINTEXT") == NO_NODES
    assert broker().node_principals_of("PLAINTEXT") is None
    assert config.of_listener("CONTROLLER").ssl_endpoint_identification_algorithm == ""
    assert config.of_listener("OUTER").ssl_endpoint_identification_algorithm == "https"


def test_broker_with_only_a_secure_listener_accepts_it_as_inter_broker_listener() -> None:
    config = broker(listeners="OUTER://:9093", inter_broker_listener_name="OUTER")
    assert config.inter_broker_listener == "OUTER"


@pytest.mark.parametrize(
    "values",
    [
        {"listener_security_protocol_map": "CONTROLLER:PLAINTEXT"},
        {"listener_security_protocol_map": "CONTROLLER:SSL", "ssl_client_auth": "requested"},
    ],
)
def test_node_principals_without_certificates_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="needs certificates on the listener CONTROLLER"):
        controller(cluster_node_principals="User:broker-{id}", **values)


def test_node_principals_replace_the_check_of_addresses_unless_hosts_are_named() -> None:
    secured = {
        "listener_security_protocol_map": "CONTROLLER:SSL",
        "ssl_client_auth": "required",
        "cluster_node_principals": "User:broker-{id}",
    }
    assert controller().allowed_hosts is None
    hosts = controller(**secured).allowed_hosts
    assert hosts is not None and hosts.is_every
    named = controller(**secured, cluster_action_allowed_hosts="10.0.0.1").allowed_hosts
    assert named is not None and not named.is_every


PUBLIC = {"listeners": "PLAINTEXT://10.0.0.1:9092,OUTER://:9093"}


def test_cluster_listener_that_other_hosts_reach_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"can reach the listener PLAINTEXT://10\.0\.0\.1:9092"):
        broker(**PUBLIC).require_closed_cluster_listeners()


@pytest.mark.parametrize("host", ["", "[::]", "[::ffff:0.0.0.0]", "[::ffff:10.0.0.1]", "[::2]"])
def test_cluster_listener_on_a_wildcard_or_global_address_is_refused(host: str) -> None:
    config = broker(listeners=f"PLAINTEXT://{host}:9092")
    with pytest.raises(ConfigError, match="other hosts can reach the listener PLAINTEXT://"):
        config.require_closed_cluster_listeners()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "127.1.2.3", "[::ffff:127.0.0.1]"]
)
def test_cluster_listener_on_a_loopback_address_is_accepted(host: str) -> None:
    """Although other hosts reach the listener of clients."""
    listeners = f"PLAINTEXT://{host}:9092,OUTER://:9093"
    broker(listeners=listeners).require_closed_cluster_listeners()


def test_cluster_listener_that_other_hosts_reach_is_accepted_if_allowed_or_secured() -> None:
    broker(**PUBLIC, allow_insecure_cluster_listener="true").require_closed_cluster_listeners()
    broker(
        **PUBLIC,
        listener_security_protocol_map="PLAINTEXT:SSL,OUTER:SSL,CONTROLLER:SSL",
        inter_broker_listener_name="PLAINTEXT",
        ssl_client_auth="required",
        cluster_node_principals="User:broker-{id}",
    ).require_closed_cluster_listeners()
