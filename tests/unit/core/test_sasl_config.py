"""Keys of SASL, for all listeners and for one, and errors without secrets."""

from __future__ import annotations

import pytest

from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.jaas import PLAIN_MODULE, SCRAM_MODULE
from kraftjbod.core.sasl_config import NodeLogin, plain_users

CANARY = "canary-password"
USERS = f'{PLAIN_MODULE} required user_alice="{CANARY}" user_bob="b" username="broker";'
BASE = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.voters": "100@127.0.0.1:9093",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CLIENTS://127.0.0.1:9094",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
}
JAAS = "listener.name.clients.plain.sasl.jaas.config"


def parse(**changed: str | None) -> BrokerConfig:
    values = BASE | {key.replace("_", "."): value for key, value in changed.items()}
    given = {key: value for key, value in values.items() if value is not None}
    return BrokerConfig.from_properties(given, source="x.properties", base_dir="/")


def test_sasl_config_of_listener_has_its_users_and_others_have_none() -> None:
    config = parse(**{JAAS: USERS, "listener.name.clients.connections.max.reauth.ms": "60000"})
    clients = config.of_listener("CLIENTS")
    assert plain_users(clients) == {"alice": CANARY, "bob": "b"}
    assert clients.connections_max_reauth_ms == 60_000
    assert plain_users(config.of_listener("PLAINTEXT")) == {}
    assert config.connections_max_reauth_ms == 0


def test_sasl_config_without_listener_prefix_is_for_all_listeners() -> None:
    config = parse(plain_sasl_jaas_config=USERS)
    assert plain_users(config.of_listener("CLIENTS")) == {"alice": CANARY, "bob": "b"}


def test_sasl_config_shows_no_secret() -> None:
    config = parse(**{JAAS: USERS, "plain.sasl.jaas.config": USERS})
    shown = f"{config!r} {config.of_listener('CLIENTS')!r} {config.by_key()}"
    assert CANARY not in shown


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, "listener CLIENTS: the mechanism PLAIN has no user"),
        ({JAAS: USERS, "sasl.enabled.mechanisms": None}, "sasl.enabled.mechanisms is not set"),
        ({JAAS: USERS, "sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI is not served: use PLAIN"),
        ({JAAS: USERS.replace("required", "")}, f"{JAAS.partition('.plain')[0]}"),
        ({JAAS: USERS.replace("Plain", "Jndi")}, f"the login module is not {PLAIN_MODULE}"),
        ({JAAS: USERS.replace("alice", "*")}, "the user *"),
        ({JAAS: USERS.replace("alice", "")}, "without a name"),
        ({JAAS: USERS.replace('"b"', '""')}, "without a name or password"),
        ({JAAS.replace("clients", "client"): USERS}, "did you mean CLIENTS?"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "sasl.oauthbearer.jwks.endpoint.url"),
        ({"sasl.jaas.config": USERS}, "sasl.jaas.config configures security"),
        ({JAAS: USERS, "inter.broker.listener.name": "CLIENTS"}, "nodes log in, of PLAIN"),
    ],
)
def test_sasl_config_error_names_the_key_and_contains_no_secret(
    changed: dict[str, str | None], reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**changed)
    assert reason in str(caught.value)
    assert CANARY not in str(caught.value)


def test_user_of_plain_with_name_of_a_node_is_refused() -> None:
    """Such a client would have the principal that ACLs and audit files attribute to a broker."""
    secured = {
        "listeners": "NODES://127.0.0.1:9093,CLIENTS://127.0.0.1:9094",
        "listener.security.protocol.map": "CONTROLLER:SSL,NODES:SSL,CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "NODES",
        "listener.name.nodes.ssl.client.auth": "required",
        "cluster.node.principals": "User:broker-{id}",
    }
    parse(**secured, **{JAAS: USERS.replace("alice", "broker-x")})
    with pytest.raises(ConfigError, match="has the user broker-7, whose principal") as caught:
        parse(**secured, **{JAAS: USERS.replace("alice", "broker-7")})
    assert CANARY not in str(caught.value)


NODE_JAAS = (
    f'{PLAIN_MODULE} required username="broker-1" password="{CANARY}" user_broker-1="{CANARY}";'
)
SCRAM_JAAS = f'{SCRAM_MODULE} required username="broker-1" password="{CANARY}";'
BETWEEN = {
    "inter.broker.listener.name": "CLIENTS",
    JAAS: NODE_JAAS,
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
}
CONTROLLER_SASL = {
    "listener.security.protocol.map": "CONTROLLER:SASL_SSL,CLIENTS:SASL_SSL",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": NODE_JAAS,
}


def test_login_of_listener_between_nodes_has_user_and_password_of_its_mechanism() -> None:
    config = parse(
        **BETWEEN,
        **CONTROLLER_SASL,
        **{
            "sasl.mechanism.inter.broker.protocol": "scram-sha-512",
            "listener.name.clients.scram-sha-512.sasl.jaas.config": SCRAM_JAAS,
        },
    )
    broker, controller = config.login_of("CLIENTS"), config.login_of("CONTROLLER")
    assert broker == NodeLogin("SCRAM-SHA-512", "broker-1", CANARY)
    assert controller == NodeLogin("PLAIN", "broker-1", CANARY)
    assert CANARY not in f"{broker!r} {config!r} {config.of_listener('CLIENTS')!r}"
    assert parse(**{JAAS: USERS}).login_of("PLAINTEXT") is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "is GSSAPI: name the mechanism"),
        (
            {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"},
            "set scram-sha-512.sasl.jaas.config to",
        ),
        (
            {"sasl.mechanism.inter.broker.protocol": "PLAIN", JAAS: USERS},
            "this node has no user to log in with: set plain.sasl.jaas.config",
        ),
        (
            {
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                **CONTROLLER_SASL,
                "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
                "scram-sha-512.sasl.jaas.config": SCRAM_JAAS,
            },
            "controllers serve PLAIN only",
        ),
        ({"scram-sha-512.sasl.jaas.config": NODE_JAAS}, f"the login module is not {SCRAM_MODULE}"),
    ],
)
def test_login_of_listener_between_nodes_that_cannot_work_is_refused(
    changed: dict[str, str], reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**{**BETWEEN, **changed})
    assert reason in str(caught.value)
    assert CANARY not in str(caught.value)


def test_security_inter_broker_protocol_chooses_the_listener_with_that_protocol() -> None:
    config = parse(
        **{
            **BETWEEN,
            "inter.broker.listener.name": None,
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
        }
    )
    assert config.inter_broker_listener == "CLIENTS"


def test_sasl_between_nodes_without_encryption_is_for_loopback_only() -> None:
    open_listeners = "PLAINTEXT://127.0.0.1:9092,CLIENTS://0.0.0.0:9094"
    own = {
        **BETWEEN,
        "listeners": open_listeners,
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "cluster.node.principals": None,
    }
    with pytest.raises(ConfigError, match="log in without encryption"):
        parse(**own).require_closed_cluster_listeners()
    parse(**own, **{"allow.insecure.cluster.listener": "true"}).require_closed_cluster_listeners()


def test_client_certificates_of_sasl_listener_need_the_listener_prefix() -> None:
    """As in Kafka, so that a broker-wide ssl.client.auth does not lock SASL clients out."""
    config = parse(
        **{
            JAAS: USERS,
            "listener.security.protocol.map": "CLIENTS:SASL_SSL",
            "ssl.client.auth": "required",
        }
    )
    assert config.of_listener("CLIENTS").ssl_client_auth == "none"
    config = parse(
        **{
            JAAS: USERS,
            "listener.security.protocol.map": "CLIENTS:SASL_SSL",
            "listener.name.clients.ssl.client.auth": "required",
        }
    )
    assert config.of_listener("CLIENTS").ssl_client_auth == "required"
