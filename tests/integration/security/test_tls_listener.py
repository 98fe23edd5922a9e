"""A broker with a plaintext and a TLS listener, and clients that are not ours."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from tests.certificates import Authority
from tests.integration.cluster import Cluster, read_metrics
from tests.integration.conftest import MakeCluster
from tests.integration.security.listeners import add_listeners, produce_and_consume

pytestmark = [pytest.mark.process, pytest.mark.clients]
HALF_OPEN = 500


@dataclass(frozen=True)
class Secured:
    """A cluster of one broker with the listeners PLAINTEXT, OUTER (TLS) and STRICT, which requires
    certificates of clients."""

    cluster: Cluster
    authority: Authority
    ca: Path
    client: Path
    keystore: Path
    ports: dict[str, int]

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def librdkafka(self, listener: str, **more: str) -> dict[str, Any]:
        config = {
            "bootstrap.servers": self.address(listener),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.ca),
        }
        return config | {key.replace("_", "."): value for key, value in more.items()}


@pytest.fixture(scope="module")
def secured(
    make_shared_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    path = tmp_path_factory.mktemp("tls")
    authority = Authority()
    ca = authority.write_pem(path / "ca.pem")
    keystore = authority.issue("broker-1").write_pkcs12(path / "broker.p12", "canary-store")
    client = authority.issue("Alice", "ops").write_pem(path / "client.pem")
    cluster = make_shared_cluster(brokers=1, dirs=1, start=False)
    config = {
        "ssl.keystore.location": str(keystore),
        "ssl.keystore.password": "canary-store",
        "ssl.store.check.interval.ms": "100",
        "listener.name.strict.ssl.client.auth": "required",
        "listener.name.strict.ssl.truststore.type": "PEM",
        "listener.name.strict.ssl.truststore.location": str(ca),
    }
    ports = add_listeners(cluster, {"OUTER": "SSL", "STRICT": "SSL"}, config)
    cluster.start()
    yield Secured(cluster, authority, ca, client, keystore, ports)


def test_librdkafka_produces_and_consumes_over_tls(secured: Secured) -> None:
    found = produce_and_consume(secured.librdkafka("OUTER"), "librdkafka")
    assert found == [str(number).encode() * 1000 for number in range(100)]


def test_librdkafka_with_client_certificate_is_served(secured: Secured) -> None:
    config = secured.librdkafka(
        "STRICT", ssl_certificate_location=str(secured.client), ssl_key_location=str(secured.client)
    )
    assert len(produce_and_consume(config, "strict")) == 100


async def test_aiokafka_produces_and_consumes_over_tls(secured: Secured) -> None:
    security = {
        "bootstrap_servers": secured.address("OUTER"),
        "security_protocol": "SSL",
        "ssl_context": secured.authority.client_context(),
    }
    async with aiokafka.AIOKafkaProducer(**security) as producer:
        for number in range(10):
            await producer.send_and_wait("aiokafka", str(number).encode())
    async with aiokafka.AIOKafkaConsumer(
        "aiokafka", auto_offset_reset="earliest", group_id="aio", **security
    ) as consumer:
        found = [(await consumer.getone()).value for _ in range(10)]
    assert found == [str(number).encode() for number in range(10)]


def test_kafka_python_gets_addresses_of_its_listener_and_no_password(secured: Secured) -> None:
    security = {"security_protocol": "SSL", "ssl_context": secured.authority.client_context()}
    producer = kafka.KafkaProducer(bootstrap_servers=secured.address("OUTER"), **security)
    producer.send("kafka-python", b"1").get(timeout=60)
    producer.close()
    admin = KafkaAdminClient(bootstrap_servers=secured.address("OUTER"), **security)
    cluster = admin.describe_cluster()
    assert {broker["port"] for broker in cluster["brokers"]} == {secured.ports["OUTER"]}
    wanted = [ConfigResource(ConfigResourceType.BROKER, "1")]
    described = admin.describe_configs(wanted, config_filter="all")
    assert "ssl.keystore.password" in str(described)
    assert "canary-store" not in str(described)
    admin.close()


@pytest.mark.parametrize("client", ["wrong-ca", "no-certificate", "plaintext"])
def test_client_without_right_credentials_is_refused(
    secured: Secured, client: str, tmp_path: Path
) -> None:
    config = {
        "wrong-ca": secured.librdkafka(
            "OUTER", ssl_ca_location=str(Authority("other").write_pem(tmp_path / "other.pem"))
        ),
        "no-certificate": secured.librdkafka("STRICT"),
        "plaintext": secured.librdkafka("OUTER", security_protocol="PLAINTEXT"),
    }[client]
    errors: list[str] = []
    producer = confluent_kafka.Producer(
        config | {"message.timeout.ms": 5000, "error_cb": lambda error: errors.append(str(error))}
    )
    producer.produce("refused", b"x", on_delivery=lambda error, _: errors.append(str(error)))
    producer.flush(60)
    assert any("_MSG_TIMED_OUT" in error or "timed out" in error.lower() for error in errors)
    text = secured.cluster.brokers[1].files.telemetry_path.read_text()
    assert "tls_handshake_failed" in text
    assert "canary-store" not in text


def presented_name(secured: Secured) -> str:
    """Return the common name that a new connection to the listener OUTER is shown."""
    context = secured.authority.client_context()
    with (
        socket.create_connection(("127.0.0.1", secured.ports["OUTER"])) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        certificate: Any = tls.getpeercert()
        return str(dict(rdn[0] for rdn in certificate["subject"])["commonName"])


def test_renewed_certificate_is_presented_and_old_connections_stay(secured: Secured) -> None:
    broker = secured.cluster.brokers[1]
    errors: list[str] = []
    connects: list[int] = []

    def note_connects(text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        connects.append(sum(one["connects"] for one in brokers))

    producer = confluent_kafka.Producer(
        secured.librdkafka("OUTER", linger_ms="0")
        | {"error_cb": lambda error: errors.append(str(error)), "stats_cb": note_connects}
        | {"statistics.interval.ms": 100}
    )

    def produce(count: int) -> None:
        for number in range(count):
            producer.produce("renewed", str(number).encode() * 100)
            producer.poll(0.001)
        assert producer.flush(60) == 0

    def replace_keystore(data: bytes) -> None:
        fresh = secured.keystore.with_suffix(".new")
        fresh.write_bytes(data)
        fresh.replace(secured.keystore)

    produce(300)
    del connects[:-1]
    assert presented_name(secured) == "broker-1"
    before = secured.keystore.read_bytes()
    fresh = secured.authority.issue("broker-1-renewed")
    replace_keystore(
        fresh.write_pkcs12(secured.keystore.with_suffix(".p"), "canary-store").read_bytes()
    )
    for event, fault in (("tls_certificate_renewed", None), ("tls_renewal_failed", 500)):
        if fault is not None:
            secured.keystore.write_bytes(before[:fault])
        produce(300)
        # OUTER and STRICT have the same keystore.
        secured.cluster.wait_event(broker, event, 2)
        assert presented_name(secured) == "broker-1-renewed"
    produce(300)
    assert errors == []
    assert connects and set(connects) == {connects[0]}
    replace_keystore(before)
    secured.cluster.wait_event(broker, "tls_certificate_renewed", 4)
    seconds = read_metrics(broker)['CertificateSecondsUntilExpiry,listener="OUTER"']
    assert 364 * 86_400 < seconds <= 365 * 86_400


async def test_half_open_handshakes_do_not_disturb_a_plaintext_producer(secured: Secured) -> None:
    address = secured.address("PLAINTEXT")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = secured.authority.client_context().wrap_bio(
        incoming, outgoing, server_hostname="localhost"
    )
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, acks="all") as producer:
        opened = []
        for number in range(HALF_OPEN):
            opened.append(await asyncio.open_connection("127.0.0.1", secured.ports["OUTER"]))
            opened[-1][1].write(hello if number % 2 else hello[:20])
            if number % 50 == 0:
                await producer.send_and_wait("canary", str(number).encode())
        for number in itertools.repeat(0, 20):
            await producer.send_and_wait("canary", str(number).encode())
        for _, writer in opened:
            writer.close()
