"""Keys of OAUTHBEARER: required ones, Kafka's classes, and URLs."""

from __future__ import annotations

import pytest

from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.jaas import OAUTHBEARER_MODULE
from kraftjbod.core.oauthbearer_config import require_url

BASE = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.voters": "100@127.0.0.1:9093",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CLIENTS://127.0.0.1:9094",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "https://identity.example.com/jwks?tenant=7",
    "sasl.oauthbearer.expected.audience": "kafka, other",
    "sasl.oauthbearer.expected.issuer": "https://identity.example.com",
}
JAAS = "listener.name.clients.oauthbearer.sasl.jaas.config"
HANDLER = "listener.name.clients.oauthbearer.sasl.server.callback.handler.class"


def parse(changed: dict[str, str | None]) -> BrokerConfig:
    given = {key: value for key, value in (BASE | changed).items() if value is not None}
    return BrokerConfig.from_properties(given, source="x.properties", base_dir="/")


def test_oauthbearer_config_accepts_the_keys_of_a_kafka_broker() -> None:
    package = "org.apache.kafka.common.security.oauthbearer"
    config = parse(
        {
            JAAS: f"{OAUTHBEARER_MODULE} required ;",
            HANDLER: f"{package}.OAuthBearerValidatorCallbackHandler",
            "sasl.oauthbearer.jwt.validator.class": f"{package}.DefaultJwtValidator",
            "listener.name.clients.sasl.oauthbearer.sub.claim.name": "email",
        }
    ).of_listener("CLIENTS")
    assert config.sasl_oauthbearer_expected_audience == ("kafka", "other")
    assert config.sasl_oauthbearer_sub_claim_name == "email"
    assert config.sasl_oauthbearer_clock_skew_seconds == 30


def test_oauthbearer_config_may_allow_unverified_audience_and_issuer() -> None:
    parse(
        {
            "sasl.oauthbearer.expected.audience": None,
            "sasl.oauthbearer.expected.issuer": None,
            "sasl.oauthbearer.allow.unverified.audience": "true",
            "sasl.oauthbearer.allow.unverified.issuer": "true",
        }
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": None}, "has no keys that verify tokens"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "ftp://x/jwks"}, "begins with https://"),
        ({"sasl.oauthbearer.expected.audience": None}, "expected.audience is not set"),
        ({"sasl.oauthbearer.expected.issuer": ""}, "expected.issuer is not set"),
        ({"sasl.oauthbearer.sub.claim.name": " "}, "name of a claim is empty"),
        ({"sasl.oauthbearer.clock.skew.seconds": "-1"}, "clock.skew.seconds"),
        ({JAAS: "org.example.Other required;"}, "the login module is not"),
        (
            {JAAS: f'{OAUTHBEARER_MODULE} required unsecuredLoginStringClaim_sub="a";'},
            "unsigned tokens",
        ),
        ({HANDLER: "org.example.Handler"}, "Java classes are not loaded"),
        ({"sasl.oauthbearer.jwt.validator.class": "org.example.V"}, "Java classes"),
        ({"sasl.oauthbearer.jwt.retriever.class": "x"}, "configures security"),
        (
            {
                "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
                "inter.broker.listener.name": "CLIENTS",
            },
            "name the mechanism by which nodes log in, of PLAIN",
        ),
    ],
)
def test_oauthbearer_config_error_names_the_key_and_the_remedy(
    changed: dict[str, str | None], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse(changed)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/jwks.json",
        "file://localhost/etc/jwks.json",
        "http://[::1]:80/x",
        "https://a.example.com/jwks?tenant=7",
    ],
)
def test_require_url_accepts_files_and_servers(url: str) -> None:
    assert require_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/etc/jwks.json",
        "file://",
        "file://host/x",
        "https:///x",
        "https://u:p@h/x",
        "http://h:x",
    ],
)
def test_require_url_refuses_other_urls(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|expected|Port"):
        require_url(url)
