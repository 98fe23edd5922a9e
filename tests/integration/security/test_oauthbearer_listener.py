"""Clients that are not ours log in by OAUTHBEARER with tokens of an identity provider."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiokafka
import aiokafka.abc
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.errors
import kafka.net.sasl.oauth
import pytest

from tests.identity_provider import (
    AUDIENCE,
    CLIENT_ID,
    CLIENT_SECRET,
    ISSUER,
    IdentityProvider,
)
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.security.listeners import add_listeners, produce_and_consume
from tests.integration.tools import called

pytestmark = [pytest.mark.process, pytest.mark.clients]

MakeToken = Callable[[], str]
#: Listeners whose keys come from a file and from a server.
LISTENERS: Final = ("OAUTHFILE", "OAUTHHTTP")
every_listener = pytest.mark.parametrize("listener", LISTENERS)


@dataclass(frozen=True)
class Guarded:
    """A cluster of one broker with the listeners PLAINTEXT, OAUTHFILE and OAUTHHTTP."""

    cluster: Cluster
    provider: IdentityProvider
    url: str
    jwks_path: Path
    ports: dict[str, int]

    def librdkafka(self, listener: str, make_token: MakeToken) -> dict[str, Any]:
        lifetime_s = self.provider.lifetime_s
        return {
            "bootstrap.servers": f"127.0.0.1:{self.ports[listener]}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (make_token(), time.time() + lifetime_s),
        }

    def python(self, listener: str, provider: object) -> dict[str, Any]:
        """Return the settings of kafka-python and aiokafka."""
        return {
            "bootstrap_servers": f"127.0.0.1:{self.ports[listener]}",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": provider,
        }

    def write_keys(self) -> None:
        self.jwks_path.write_bytes(self.provider.jwks())

    def can_log_in(self, listener: str, make_token: MakeToken) -> bool:
        admin = confluent_kafka.admin.AdminClient(self.librdkafka(listener, make_token))
        admin.poll(0)  # calls oauth_cb
        try:
            return bool(admin.list_topics(timeout=5).brokers)
        except confluent_kafka.KafkaException:
            return False

    def require_present_key(self, listener: str) -> None:
        """Wait until the broker has read the key with which the provider signs now."""
        self.cluster.wait("the present key", lambda: self.can_log_in(listener, self.provider.token))

    @property
    def events(self) -> str:
        return self.cluster.brokers[1].files.telemetry_path.read_text()


class AsyncTokens(aiokafka.abc.AbstractTokenProvider):
    def __init__(self, make_token: MakeToken) -> None:
        self._make_token = make_token

    async def token(self) -> str:
        return self._make_token()


class Tokens(kafka.net.sasl.oauth.AbstractTokenProvider):
    def __init__(self, make_token: MakeToken) -> None:
        super().__init__()
        self._make_token = make_token

    def token(self) -> str:
        return self._make_token()


@pytest.fixture(scope="module")
def guarded(
    make_shared_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    provider = IdentityProvider()
    path = tmp_path_factory.mktemp("oauth") / "jwks.json"
    path.write_bytes(provider.jwks())
    cluster = make_shared_cluster(brokers=1, dirs=1, start=False)
    with provider.serving() as url:
        ports = add_listeners(
            cluster,
            dict.fromkeys(LISTENERS, "SASL_PLAINTEXT"),
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "listener.name.oauthfile.sasl.oauthbearer.jwks.endpoint.url": f"file://{path}",
                "listener.name.oauthhttp.sasl.oauthbearer.jwks.endpoint.url": f"{url}/jwks",
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                "sasl.oauthbearer.expected.issuer": ISSUER,
                "sasl.oauthbearer.clock.skew.seconds": "0",
            },
        )
        cluster.start()
        yield Guarded(cluster, provider, url, path, ports)


@every_listener
def test_librdkafka_logs_in_by_token_and_produces_and_consumes(
    guarded: Guarded, listener: str
) -> None:
    config = guarded.librdkafka(listener, guarded.provider.token)
    found = produce_and_consume(config, f"librdkafka-{listener}")
    assert found == [str(number).encode() * 1000 for number in range(100)]


def test_librdkafka_logs_in_by_client_credentials(guarded: Guarded) -> None:
    config = {
        "bootstrap.servers": f"127.0.0.1:{guarded.ports['OAUTHHTTP']}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.token.endpoint.url": f"{guarded.url}/token",
    }
    assert len(produce_and_consume(config, "librdkafka-oidc")) == 100


async def test_aiokafka_logs_in_by_token_and_produces_and_consumes(guarded: Guarded) -> None:
    security = guarded.python("OAUTHHTTP", AsyncTokens(guarded.provider.token))
    async with aiokafka.AIOKafkaProducer(**security) as producer:
        for number in range(10):
            await producer.send_and_wait("aiokafka", str(number).encode())
    async with aiokafka.AIOKafkaConsumer(
        "aiokafka", auto_offset_reset="earliest", group_id="aiokafka", **security
    ) as consumer:
        found = [(await consumer.getone()).value for _ in range(10)]
    assert found == [str(number).encode() for number in range(10)]


def test_kafka_python_logs_in_by_token_and_produces(guarded: Guarded) -> None:
    security = guarded.python("OAUTHHTTP", Tokens(guarded.provider.token))
    producer = kafka.KafkaProducer(**security)
    producer.send("kafka-python", b"1").get(timeout=60)
    producer.close()


REFUSED: Final[dict[str, Callable[[IdentityProvider], str]]] = {
    "wrong-signature": lambda _: IdentityProvider().token(),
    "wrong-audience": lambda provider: provider.token(aud="other"),
    "wrong-issuer": lambda provider: provider.token(iss="https://other.example.com"),
    "expired": lambda provider: provider.token(exp=int(time.time()) - 5),
    "no-expiry": lambda provider: provider.token(exp=None),
    "acl-wildcard": lambda provider: provider.token("*"),
}


@pytest.mark.parametrize("case", [*REFUSED])
def test_librdkafka_with_wrong_token_is_refused_and_logged_without_it(
    guarded: Guarded, case: str
) -> None:
    token = REFUSED[case](guarded.provider)
    errors: list[confluent_kafka.KafkaError] = []
    admin = confluent_kafka.admin.AdminClient(
        guarded.librdkafka("OAUTHFILE", lambda: token) | {"error_cb": errors.append}
    )
    admin.poll(0)  # calls oauth_cb
    with pytest.raises(confluent_kafka.KafkaException):
        admin.list_topics(timeout=5)
    admin.poll(5)  # calls error_cb
    codes = {error.code() for error in errors}
    assert confluent_kafka.KafkaError._AUTHENTICATION in codes, errors
    assert "invalid_token" in str(errors)
    assert "authentication_failed" in guarded.events
    assert not any(part in guarded.events for part in token.split(".")[1:])


async def test_python_clients_with_wrong_token_fail_to_connect(guarded: Guarded) -> None:
    def expired() -> str:
        return guarded.provider.token(exp=1)

    producer = aiokafka.AIOKafkaProducer(**guarded.python("OAUTHHTTP", AsyncTokens(expired)))
    with pytest.raises(aiokafka.errors.KafkaConnectionError):
        await producer.start()
    await producer.stop()
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaProducer(
            **guarded.python("OAUTHHTTP", Tokens(expired)), bootstrap_timeout_ms=5000
        )


@every_listener
def test_rotated_key_is_read_because_a_token_has_it(guarded: Guarded, listener: str) -> None:
    provider = guarded.provider
    guarded.require_present_key(listener)
    old = provider.token()
    provider.rotate(uuid.uuid4().hex, "RS256")
    provider.is_away = True
    assert not guarded.can_log_in(listener, provider.token)
    assert guarded.can_log_in(listener, lambda: old), "stale keys are kept"
    provider.is_away = False
    guarded.write_keys()
    guarded.require_present_key(listener)
    assert not guarded.can_log_in(listener, lambda: old)


@pytest.mark.parametrize("listener", ["OAUTHFILE"])
def test_librdkafka_authenticates_again_before_its_token_expires(
    guarded: Guarded, listener: str
) -> None:
    """A producer works beyond the lifetime of its first tokens, on one connection.

    librdkafka authenticates again with a new token at 80 % of the token's lifetime, and at 90 % of
    the session's. The broker refuses the second one if less than a second lies between them, as
    Kafka does, so that a shorter lifetime would fail.
    """
    provider = guarded.provider
    guarded.require_present_key(listener)
    lifetime_s = 15
    made: list[str] = []

    def make_token() -> str:
        made.append(provider.token(exp=int(time.time()) + lifetime_s))
        return made[-1]

    config = guarded.librdkafka(listener, make_token)
    config["oauth_cb"] = lambda _: (make_token(), time.time() + lifetime_s)
    errors: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer(
        {**config, "error_cb": errors.append, "message.timeout.ms": 60_000}
    )
    delivered: list[confluent_kafka.KafkaError | None] = []
    before = guarded.events.count("authentication_expired")
    while len(made) < 3:
        producer.produce("again", b"1", on_delivery=lambda error, _: delivered.append(error))
        producer.poll(0.1)
    assert producer.flush(60) == 0
    assert set(delivered) == {None}
    assert errors == []
    assert guarded.events.count("authentication_expired") == before


@pytest.mark.parametrize("source", ["provider", "file"])
def test_tools_log_in_by_token_of_provider_or_file(
    guarded: Guarded, tmp_path: Path, source: str
) -> None:
    guarded.require_present_key("OAUTHHTTP")
    token_path = tmp_path / "token"
    token_path.write_text(guarded.provider.token("tool"))
    url = f"{guarded.url}/token" if source == "provider" else f"file://{token_path}"
    values = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
    }
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    where = ("--bootstrap-server", f"127.0.0.1:{guarded.ports['OAUTHHTTP']}")
    config = ("--command-config", str(path))
    topic = f"tools-{source}"
    made = called("topics", *where, *config, "--create", "--topic", topic, "--partitions", "1")
    assert made.returncode == 0, made
    sent = called("console-producer", *where, *config, "--topic", topic, stdin="hello\n")
    assert sent.returncode == 0, sent
