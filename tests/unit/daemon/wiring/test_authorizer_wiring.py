"""The configured authorizer, and which clients act as brokers."""

from __future__ import annotations

import pytest

from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.acl import STANDARD_AUTHORIZER, AclOperation, AclResourceType
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import ConfigError
from kraftjbod.daemon.wiring.authorizer_wiring import access_maker, build_authorizer
from kraftjbod.net.connection_context import ANONYMOUS, ConnectionContext


def make_config(**more: str) -> BrokerConfig:
    values = {
        "process.roles": "broker",
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:9092,INNER://127.0.0.1:9093",
        "inter.broker.listener.name": "INNER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT",
        "controller.quorum.voters": "100@127.0.0.1:9090",
        "log.dirs": "/tmp/absent",
    }
    values |= {key.replace("_", "."): value for key, value in more.items()}
    return BrokerConfig.from_properties(values, source="test", base_dir="/")


def test_build_authorizer_without_class_returns_none() -> None:
    assert build_authorizer(make_config()) is None


def test_build_authorizer_splits_super_users_at_semicolons() -> None:
    users = "User:CN=a,O=x; User:b"
    by = build_authorizer(make_config(authorizer_class_name=STANDARD_AUTHORIZER, super_users=users))
    assert by is not None
    for principal, is_super in (("User:CN=a,O=x", True), ("User:b", True), ("User:CN=a", False)):
        decision = by.decide(principal, "h", AclOperation.ALTER, AclResourceType.TOPIC, "t")
        assert decision.is_allowed is is_super


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("authorizer_class_name", "com.example.Other", "there is no authorizer com.example.Other"),
        ("super_users", "alice", "'alice' is no principal"),
    ],
)
def test_config_refuses_unknown_authorizer_and_users(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(**{key: value})


@pytest.mark.parametrize(
    ("listener", "principal", "host", "is_broker"),
    [
        ("INNER", ANONYMOUS, "127.0.0.1", True),
        ("INNER", ANONYMOUS, "10.0.0.1", False),
        ("INNER", "User:a", "127.0.0.1", False),
        ("PLAINTEXT", ANONYMOUS, "127.0.0.1", False),
    ],
)
def test_access_of_a_broker_needs_listener_address_and_no_principal(
    listener: str, principal: str, host: str, is_broker: bool
) -> None:
    config = make_config(authorizer_class_name=STANDARD_AUTHORIZER)
    by = build_authorizer(config)
    assert by is not None
    make_access = access_maker(
        config,
        by,
        is_member=lambda connection: connection.peer_host == "127.0.0.1",
        record=lambda *_: None,
    )
    connection = ConnectionContext(
        peer=f"{host}:1", peer_host=host, listener_name=listener, principal=principal
    )
    context = RequestContext(connection=connection, api_version=0, client_id=None)
    assert make_access(context, "Produce").is_broker is is_broker
