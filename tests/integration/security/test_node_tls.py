"""Brokers and controllers that reach each other over TLS only, with certificates as identities."""

from __future__ import annotations

import asyncio
import random
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kraftjbod.core.errors import ConnectionLostError, ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.node_config import Endpoint
from kraftjbod.net.dialer import Dialer
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.net.tls_transport import TlsSettings
from kraftjbod.protocol import messages as m
from kraftjbod.protocol.rpc_messages import AllocateProducerIdsRequest
from tests.certificates import Authority, Identity
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.raw import exchange_on
from tests.integration.security.listeners import free_ports
from tests.integration.tools import tool

pytestmark = pytest.mark.process
CONTROLLER_ID = 100
CLIENTS = 2_000
PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT",
    "CONTROLLER": "SSL",
    "INTERNAL": "SSL",
    "CLIENTS": "SSL",
}


@dataclass(frozen=True)
class Secured:
    """A controller and three brokers. Clients use the listeners PLAINTEXT and CLIENTS."""

    cluster: Cluster
    authority: Authority
    path: Path
    #: Port of the listener INTERNAL by broker.
    internal: dict[int, int]
    #: Ports of broker 1 by the listener of clients.
    for_clients: dict[str, int]

    @property
    def controller_port(self) -> int:
        return self.cluster.local.controllers[CONTROLLER_ID].files.port


def node_keys(ca: Path, keystore: Path) -> dict[str, str]:
    return {
        "ssl.store.check.interval.ms": "100",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/",
        "cluster.node.principals": "User:broker-{id};User:controller-{id}",
    }


@pytest.fixture(scope="module")
def secured(
    make_shared_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    path = tmp_path_factory.mktemp("node-tls")
    authority = Authority()
    ca = authority.write_pem(path / "ca.pem")
    cluster = make_shared_cluster(brokers=3, dirs=1, start=False)
    *ports, clients_port = free_ports(4)
    internal = dict(zip(cluster.brokers, ports, strict=True))
    for_clients = {"CLIENTS": clients_port}
    daemons = {**cluster.local.controllers, **cluster.brokers}
    for node_id, daemon in daemons.items():
        role = daemon.files.role
        keystore = authority.issue(f"{role}-{node_id}").write_pem(path / f"{node_id}.pem")
        config_path = daemon.files.config_path
        values = dict(line.partition("=")[::2] for line in config_path.read_text().splitlines())
        values |= node_keys(ca, keystore)
        if node_id in internal:
            plain = Endpoint.parse(values["listeners"])
            values["listeners"] = f"{plain.text},INTERNAL://127.0.0.1:{internal[node_id]}"
            values["inter.broker.listener.name"] = "INTERNAL"
        if node_id == 1:
            values["listeners"] += "".join(
                f",{name}://127.0.0.1:{port}" for name, port in for_clients.items()
            )
        config_path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    cluster.start()
    yield Secured(cluster, authority, path, internal, for_clients)


def produce(secured: Secured, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": secured.cluster.bootstrap, "acks": "all"}
    )
    errors: list[str] = []
    for number in range(count):
        producer.produce(
            topic,
            str(number).encode(),
            on_delivery=lambda error, _: errors.append(str(error)) if error else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert errors == []


def test_consumer_group_reads_all_replicated_records_over_tls(secured: Secured) -> None:
    secured.cluster.create_topic("grouped", partitions=6, replication_factor=3)
    produce(secured, "grouped", 300)
    secured.cluster.wait_whole("grouped")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": secured.cluster.bootstrap,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["grouped"])
    found: set[bytes] = set()
    while len(found) < 300:
        message = consumer.poll(60)
        assert message is not None and message.error() is None, message
        found.add(message.value())
    consumer.close()
    assert secured.cluster.bugs() == []


def dialer(authority: Authority, identity: Identity | None, path: Path) -> Dialer:
    """Return a dialer that trusts ``authority`` and presents the certificate of ``identity``."""
    context = authority.client_context()
    if identity is not None:
        context.load_cert_chain(identity.write_pem(path / f"{uuid.uuid4().hex}.pem"))
    return Dialer(TlsSettings(listener_name="CONTROLLER", context=lambda: context))


@pytest.mark.parametrize("credentials", ["wrong-ca", "none", "plaintext", "other-broker", "client"])
async def test_controller_refuses_requests_without_the_senders_certificate(
    secured: Secured, tmp_path: Path, credentials: str
) -> None:
    authority = secured.authority
    stranger = Authority("stranger").issue("broker-1")
    dialers = {
        "wrong-ca": dialer(authority, stranger, tmp_path),
        "none": dialer(authority, None, tmp_path),
        "plaintext": Dialer(),
        "other-broker": dialer(authority, authority.issue("broker-2"), tmp_path),
        "client": dialer(authority, authority.issue("alice"), tmp_path),
    }
    client = RpcClient(
        "127.0.0.1",
        secured.controller_port,
        backoff=ExponentialBackoff(initial_ms=20, max_ms=500, random_unit=random.random),
        dialer=dialers[credentials],
    )
    request = AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=0)
    try:
        if credentials in ("other-broker", "client"):
            with pytest.raises(OperatingError, match="is not its principal") as refused:
                await client.call(request, timeout_ms=20_000)
            assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        else:
            with pytest.raises(ConnectionLostError):
                await client.call(request, timeout_ms=20_000)
    finally:
        client.close()
    is_stranger = credentials not in ("other-broker", "client")
    secured.cluster.wait_event(
        secured.cluster.local.controllers[CONTROLLER_ID],
        "tls_handshake_failed" if is_stranger else "node_principal_refused",
    )


def test_broker_with_another_brokers_certificate_is_refused_until_it_has_its_own(
    secured: Secured,
) -> None:
    broker = secured.cluster.brokers[3]
    controller = secured.cluster.local.controllers[CONTROLLER_ID]
    keystore = secured.path / "3.pem"
    own = keystore.read_bytes()
    secured.cluster.stop_daemon(broker)
    keystore.write_bytes((secured.path / "2.pem").read_bytes())
    before = len(controller.events("node_principal_refused"))
    started = len(broker.events("broker_started"))
    broker.start()
    refused = secured.cluster.wait_event(controller, "node_principal_refused", before + 1)
    assert (refused["principal"], refused["claimed"]) == ("User:broker-2", 3)
    fresh = keystore.with_suffix(".new")
    fresh.write_bytes(own)
    fresh.replace(keystore)
    secured.cluster.wait_event(broker, "broker_started", started + 1)
    secured.cluster.wait_healthy()


def set_session_timeout(secured: Secured, value_ms: str) -> None:
    words = ("--alter", "--entity-type", "brokers", "--entity-default", "--add-config")
    done = tool("configs", secured.cluster, *words, f"broker.session.timeout.ms={value_ms}")
    assert done.returncode == 0, done


def open_as_broker_2(secured: Secured, listener: str, path: Path) -> socket.socket:
    """Connect to broker 1, with the principal of broker 2."""
    ports = {**secured.for_clients, "INTERNAL": secured.internal[1]}
    plain = socket.create_connection(("127.0.0.1", ports[listener]), 30)
    context = secured.authority.client_context()
    identity = secured.authority.issue("broker-2")
    context.load_cert_chain(identity.write_pem(path / f"{uuid.uuid4().hex}.pem"))
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.parametrize("listener", ["INTERNAL", "CLIENTS"])
def test_node_principal_acts_as_a_node_on_the_listener_between_brokers_only(
    secured: Secured, tmp_path: Path, listener: str
) -> None:
    """A certificate with a node's name gives no rights where clients connect.

    A login with such a name is refused by the configuration and by the controller.
    """
    fetch = m.FetchRequest(
        replica_state=m.FetchRequest.ReplicaState(replica_id=2, replica_epoch=-1),
        max_wait_ms=0,
        min_bytes=0,
        topics=[],
    )
    kinds = m.WriteTxnMarkersRequest
    topic = kinds.WritableTxnMarkerTopic(name="absent", partition_indexes=[0])
    marker = kinds.WritableTxnMarker(producer_id=1, producer_epoch=0, topics=[topic])
    offsets = m.ListOffsetsRequest(replica_id=2, isolation_level=0, topics=[])
    is_node = listener == "INTERNAL"
    with open_as_broker_2(secured, listener, tmp_path) as connection:
        code = exchange_on(connection, fetch, 15).error_code
        assert (code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED) is not is_node
        (answer,) = exchange_on(connection, kinds(markers=[marker]), 1).markers
        code = answer.topics[0].partitions[0].error_code
        assert (code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED) is not is_node
        if is_node:
            exchange_on(connection, offsets, 7)
        else:
            with pytest.raises(ConnectionError):
                exchange_on(connection, offsets, 7)


def test_scram_user_with_name_of_node_principal_is_refused(secured: Secured) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": secured.cluster.bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    changes = [UserScramCredentialUpsertion(user, info, b"x") for user in ("broker-7", "broker-x")]
    altered = admin.alter_user_scram_credentials(changes)
    altered["broker-x"].result(60)
    with pytest.raises(
        confluent_kafka.KafkaException, match=r"cluster\.node\.principals"
    ) as refused:
        altered["broker-7"].result(60)
    assert refused.value.args[0].code() == ErrorCode.UNACCEPTABLE_CREDENTIAL


def test_killed_broker_is_fenced_because_its_tls_connection_closed(secured: Secured) -> None:
    broker = secured.cluster.brokers[2]
    controller = secured.cluster.local.controllers[CONTROLLER_ID]
    # Only a closed connection can fence a broker within the patience of this test.
    set_session_timeout(secured, "600000")
    count = len(controller.events("broker_fenced"))
    broker.kill()
    fenced = secured.cluster.wait_event(controller, "broker_fenced", count + 1)
    assert fenced["broker_id"] == 2
    secured.cluster.start_daemon(broker)
    set_session_timeout(secured, "9000")


async def test_reconnecting_tls_clients_fence_no_broker(secured: Secured, tmp_path: Path) -> None:
    controller = secured.cluster.local.controllers[CONTROLLER_ID]
    count = len(controller.events("broker_fenced"))
    await asyncio.to_thread(secured.cluster.create_topic, "stormed", replication_factor=3)
    context = secured.authority.client_context()
    context.load_cert_chain(secured.authority.issue("alice").write_pem(tmp_path / "alice.pem"))
    slots = asyncio.Semaphore(500)
    opened = 0

    async def reconnect() -> None:
        nonlocal opened
        async with slots:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", secured.internal[1], ssl=context, ssl_handshake_timeout=120
            )
            opened += 1
            writer.transport.abort()

    async with asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(reconnect())
    assert opened == CLIENTS
    assert len(controller.events("broker_fenced")) == count
    await asyncio.to_thread(produce, secured, "stormed", 100)
