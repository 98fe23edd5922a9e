"""The file of ``--command-config``."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.client_settings import ClientSettings
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE
from kraftjbod.core.properties import parse_properties
from kraftjbod.net.dialer import PLAIN
from kraftjbod.net.plain_credential import PlainCredential

SASL = "security.protocol=SASL_PLAINTEXT\n"


def settings(text: str) -> ClientSettings:
    values = parse_properties(text, "client.properties")
    return ClientSettings.from_values(values, "client.properties")


def test_settings_without_security_use_plaintext_and_no_login() -> None:
    found = settings("client.id=x\nrequest.timeout.ms=5\ncompression.type=lz4\n")
    assert (found.client_id, found.request_timeout_ms) == ("x", 5)
    assert found.make_dialer("f") is PLAIN
    assert found.make_login("f") is None


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", PLAIN_MODULE), ("SCRAM-SHA-256", SCRAM_MODULE), ("SCRAM-SHA-512", SCRAM_MODULE)],
)
def test_login_has_user_and_password_of_jaas_entry(mechanism: str, module: str) -> None:
    entry = f'{module} required username="alice" password="x y";'
    login = settings(f"{SASL}sasl.mechanism={mechanism}\nsasl.jaas.config={entry}\n").make_login(
        "f"
    )
    assert login is not None
    assert (login.mechanism, login.user, login.password) == (mechanism, "alice", "x y")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "sasl.mechanism is GSSAPI: use PLAIN, SCRAM-SHA-256"),
        ("sasl.mechanism=PLAIN\n", "a login needs a user and a password: set sasl.jaas.config"),
        (f"sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN_MODULE} required;\n", "does not fit"),
        (
            f"sasl.mechanism=PLAIN\nsasl.jaas.config={SCRAM_MODULE} required "
            "username=a password=canary;\n",
            "does not fit",
        ),
        (f"sasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN_MODULE} canary\n", "expected one of"),
    ],
)
def test_login_that_cannot_be_used_is_refused_without_quoting_it(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        settings(SASL + text).make_login("f")
    assert "canary" not in str(refused.value)


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"client\.properties: security\.protocol"):
        settings("security.protocol=TLS\n")


def test_tls_without_truststore_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"f: connections with TLS need ssl\.truststore"):
        settings("security.protocol=SSL\n").make_dialer("f")


def test_make_controller_dialer_accepts_plain_and_no_login_and_refuses_scram() -> None:
    with pytest.raises(ConfigError, match="controllers serve the mechanism PLAIN only"):
        settings(SASL + "sasl.mechanism=SCRAM-SHA-512\n").make_controller_dialer("f")
    plain = settings(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN_MODULE} required username="broker-1" password="canary";\n'
    )
    found = plain.make_controller_dialer("f")
    assert found.credential == PlainCredential("broker-1", "canary")
    assert "canary" not in repr(found.credential)
    assert settings("").make_controller_dialer("f") is PLAIN


TOKENS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": "https://identity.example.com/token",
}
CREDENTIALS = "sasl.oauthbearer.client.credentials.client."


def test_source_of_tokens_has_the_client_of_the_keys_or_of_jaas() -> None:
    by_keys = TOKENS | {
        f"{CREDENTIALS}id": "robot",
        f"{CREDENTIALS}secret": "canary",
        "sasl.oauthbearer.scope": "kafka",
    }
    by_jaas = TOKENS | {
        "sasl.jaas.config": f'{OAUTHBEARER_MODULE} required clientId="robot" '
        'clientSecret="canary" scope="kafka";'
    }
    for values in (by_keys, by_jaas):
        settings = ClientSettings.from_values(values, "x")
        found = settings.make_token_source("x")
        assert (found.client_id, found.client_secret, found.scope) == ("robot", "canary", "kafka")
        assert "canary" not in f"{settings!r} {found!r}"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, "credentials of a client"),
        ({"sasl.oauthbearer.token.endpoint.url": ""}, "needs sasl.oauthbearer.token.endpoint.url"),
        ({"sasl.jaas.config": "org.example.Other required;"}, "does not fit the mechanism"),
    ],
)
def test_source_of_tokens_without_its_keys_is_a_configuration_error(
    changed: dict[str, str], reason: str
) -> None:
    settings = ClientSettings.from_values(TOKENS | changed, "x")
    with pytest.raises(ConfigError, match=reason):
        settings.make_login("x")
