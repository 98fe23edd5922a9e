"""Clients that are not ours log in by SASL, over plaintext and over TLS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiokafka
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.errors
import pytest
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from kraftjbod.core.jaas import PLAIN_MODULE
from tests.certificates import Authority
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.security.listeners import add_listeners, produce_and_consume

pytestmark = [pytest.mark.process, pytest.mark.clients]

#: A key of librdkafka, in two parts because of the spelling check.
UNSIGNED_TOKENS: Final = "enable.sasl.oauthbearer.un" + "secure.jwt"
PASSWORD: Final = "canary-secret"
LISTENERS: Final = {"LOGIN": "SASL_PLAINTEXT", "LOGINTLS": "SASL_SSL"}
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SCRAM: Final = MECHANISMS[1:]
every_listener = pytest.mark.parametrize("listener", [*LISTENERS])
every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


@dataclass(frozen=True)
class Guarded:
    """A cluster of one broker with the listeners PLAINTEXT, LOGIN and LOGINTLS."""

    cluster: Cluster
    authority: Authority
    ca: Path
    ports: dict[str, int]

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def librdkafka(
        self, listener: str, mechanism: str, user: str = "alice", password: str = PASSWORD
    ) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address(listener),
            "security.protocol": LISTENERS[listener],
            "ssl.ca.location": str(self.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def python(
        self, listener: str, mechanism: str, user: str = "alice", password: str = PASSWORD
    ) -> dict[str, Any]:
        """Return the settings of kafka-python and aiokafka."""
        return {
            "bootstrap_servers": self.address(listener),
            "security_protocol": LISTENERS[listener],
            "ssl_context": self.authority.client_context(),
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }

    @property
    def events(self) -> str:
        return self.cluster.brokers[1].files.telemetry_path.read_text()


@pytest.fixture(scope="module")
def guarded(
    make_shared_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    path = tmp_path_factory.mktemp("sasl")
    authority = Authority()
    ca = authority.write_pem(path / "ca.pem")
    keystore = authority.issue("broker-1").write_pkcs12(path / "broker.p12", "store")
    cluster = make_shared_cluster(brokers=1, dirs=1, start=False)
    config = {
        "listener.name.logintls.ssl.keystore.location": str(keystore),
        "listener.name.logintls.ssl.keystore.password": "store",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="{PASSWORD}";',
    }
    ports = add_listeners(cluster, LISTENERS, config)
    cluster.start()
    guarded = Guarded(cluster, authority, ca, ports)
    for mechanism in SCRAM:
        alter_user(guarded, "alice", mechanism, PASSWORD)
    yield guarded


def alter_user(guarded: Guarded, user: str, mechanism: str, password: str | None) -> None:
    """Set the password of a user, or delete the credential if ``password`` is None.

    Waits until the broker has replayed the change.
    """
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": guarded.address("PLAINTEXT")})
    kind = ScramMechanism[mechanism.replace("-", "_")]
    change: UserScramCredentialAlteration
    if password is None:
        change = UserScramCredentialDeletion(user, kind)
    else:
        info = ScramCredentialInfo(kind, 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
    (altered,) = admin.alter_user_scram_credentials([change]).values()
    altered.result(60)

    def is_visible() -> bool:
        found = admin.describe_user_scram_credentials().result(60)
        known = (
            [one.mechanism for one in found[user].scram_credential_infos] if user in found else []
        )
        return (kind in known) is (password is not None)

    guarded.cluster.wait("the changed credential", is_visible)


@every_listener
@every_mechanism
def test_librdkafka_logs_in_and_produces_and_consumes(
    guarded: Guarded, listener: str, mechanism: str
) -> None:
    topic = f"librdkafka-{listener}-{mechanism}"
    found = produce_and_consume(guarded.librdkafka(listener, mechanism), topic)
    assert found == [str(number).encode() * 1000 for number in range(100)]


@every_listener
@every_mechanism
async def test_aiokafka_logs_in_and_produces_and_consumes(
    guarded: Guarded, listener: str, mechanism: str
) -> None:
    topic = f"aiokafka-{listener}-{mechanism}"
    security = guarded.python(listener, mechanism)
    async with aiokafka.AIOKafkaProducer(**security) as producer:
        for number in range(10):
            await producer.send_and_wait(topic, str(number).encode())
    async with aiokafka.AIOKafkaConsumer(
        topic, auto_offset_reset="earliest", group_id=topic, **security
    ) as consumer:
        found = [(await consumer.getone()).value for _ in range(10)]
    assert found == [str(number).encode() for number in range(10)]


@every_listener
@every_mechanism
def test_kafka_python_logs_in_and_produces(guarded: Guarded, listener: str, mechanism: str) -> None:
    security = guarded.python(listener, mechanism)
    producer = kafka.KafkaProducer(**security)
    producer.send(f"kafka-python-{listener}-{mechanism}", b"1").get(timeout=60)
    producer.close()


def test_describe_configs_and_events_contain_no_password(guarded: Guarded) -> None:
    admin = KafkaAdminClient(**guarded.python("LOGIN", "PLAIN"))
    cluster = admin.describe_cluster()
    assert {broker["port"] for broker in cluster["brokers"]} == {guarded.ports["LOGIN"]}
    wanted = [ConfigResource(ConfigResourceType.BROKER, "1")]
    described = str(admin.describe_configs(wanted, config_filter="all"))
    admin.close()
    assert "plain.sasl.jaas.config" in described
    assert PASSWORD not in described
    assert PASSWORD not in guarded.events


@every_listener
@every_mechanism
@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "wrong"), ("mallory", PASSWORD)],
    ids=["wrong-password", "unknown-user"],
)
def test_client_with_wrong_credentials_is_refused(
    guarded: Guarded, listener: str, mechanism: str, user: str, password: str
) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    admin = confluent_kafka.admin.AdminClient(
        guarded.librdkafka(listener, mechanism, user, password) | {"error_cb": errors.append}
    )
    with pytest.raises(confluent_kafka.KafkaException):
        admin.list_topics(timeout=5)
    admin.poll(5)  # calls error_cb
    codes = {error.code() for error in errors}
    assert confluent_kafka.KafkaError._AUTHENTICATION in codes, errors
    assert "authentication_failed" in guarded.events


@every_mechanism
async def test_python_clients_with_wrong_credentials_fail_to_connect(
    guarded: Guarded, mechanism: str
) -> None:
    wrong = guarded.python("LOGIN", mechanism, password="wrong")
    producer = aiokafka.AIOKafkaProducer(**wrong)
    with pytest.raises(aiokafka.errors.KafkaConnectionError):
        await producer.start()
    await producer.stop()
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaProducer(**wrong, bootstrap_timeout_ms=5000)


@pytest.mark.parametrize(
    ("listener", "protocol"),
    [("LOGIN", "PLAINTEXT"), ("LOGINTLS", "SSL"), ("LOGINTLS", "SASL_PLAINTEXT")],
)
def test_client_without_login_is_refused(guarded: Guarded, listener: str, protocol: str) -> None:
    config = guarded.librdkafka(listener, "PLAIN") | {"security.protocol": protocol}
    admin = confluent_kafka.admin.AdminClient(config)
    with pytest.raises(confluent_kafka.KafkaException):
        admin.list_topics(timeout=5)


def test_mechanism_that_is_not_enabled_is_refused(guarded: Guarded) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    config = guarded.librdkafka("LOGIN", "OAUTHBEARER") | {
        UNSIGNED_TOKENS: "true",
        "error_cb": errors.append,
    }
    admin = confluent_kafka.admin.AdminClient(config)
    with pytest.raises(confluent_kafka.KafkaException):
        admin.list_topics(timeout=5)
    admin.poll(5)  # calls error_cb
    assert "OAUTHBEARER" in str(errors)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_deleted_user_stays_connected_and_cannot_log_in_again(
    guarded: Guarded, mechanism: str
) -> None:
    """As in Kafka: without connections.max.reauth.ms a connection outlives its credential."""
    alter_user(guarded, "bob", mechanism, "first")
    config = guarded.librdkafka("LOGIN", mechanism, "bob", "first")
    connected = kafka.KafkaConsumer(**guarded.python("LOGIN", mechanism, "bob", "first"))
    # The second request leaves the bootstrap connection, which is closed then.
    connected.topics()
    connected.topics()
    alter_user(guarded, "bob", mechanism, None)
    connected.topics()
    connected.close()
    with pytest.raises(confluent_kafka.KafkaException):
        confluent_kafka.admin.AdminClient(config).list_topics(timeout=5)
    alter_user(guarded, "bob", mechanism, "second")
    with pytest.raises(confluent_kafka.KafkaException):
        confluent_kafka.admin.AdminClient(config).list_topics(timeout=5)
    changed = guarded.librdkafka("LOGIN", mechanism, "bob", "second")
    assert confluent_kafka.admin.AdminClient(changed).list_topics(timeout=60).brokers
