"""Brokers and controllers that log in to each other: by PLAIN to controllers, by SCRAM to brokers.

Sessions last 2 seconds, so that nodes log in again all the time (KIP-368).
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kraftjbod.core.errors import ConnectionLostError, ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.jaas import PLAIN_MODULE, SCRAM_MODULE
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.node_config import Endpoint
from kraftjbod.net.dialer import Dialer
from kraftjbod.net.plain_credential import PlainCredential
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.net.tls_transport import TlsSettings
from kraftjbod.protocol.rpc_messages import AllocateProducerIdsRequest
from tests.certificates import Authority
from tests.checkout import BIN
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.security.listeners import change_config, free_ports

pytestmark = pytest.mark.process
CONTROLLER_ID = 100
SESSION_S = 2.0


@dataclass(frozen=True)
class Secured:
    """A controller and two brokers, whose listeners between nodes have SASL_SSL."""

    cluster: Cluster
    authority: Authority
    path: Path

    @property
    def controller_port(self) -> int:
        return self.cluster.local.controllers[CONTROLLER_ID].files.port


def plain_users() -> str:
    names = [f"controller-{CONTROLLER_ID}", "broker-1", "broker-2"]
    return " ".join(f'user_{name}="{name}-plain"' for name in names)


def node_keys(ca: Path, keystore: Path, name: str) -> dict[str, str]:
    """Return the keys of all nodes, with the login of the node ``name``."""
    user = f'username="{name}" password="{name}-plain"'
    return {
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL,INTERNAL:SASL_SSL"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
        "sasl.mechanism.controller.protocol": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "connections.max.reauth.ms": str(int(SESSION_S * 1000)),
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": (
            f"{PLAIN_MODULE} required {user} {plain_users()};"
        ),
        "cluster.node.principals": "User:broker-{id};User:controller-{id}",
    }


def broker_keys(name: str) -> dict[str, str]:
    return {
        "inter.broker.listener.name": "INTERNAL",
        "listener.name.internal.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.internal.scram-sha-512.sasl.jaas.config": (
            f'{SCRAM_MODULE} required username="{name}" password="{name}-scram";'
        ),
    }


@pytest.fixture(scope="module")
def secured(
    make_shared_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    path = tmp_path_factory.mktemp("node-sasl")
    authority = Authority()
    ca = authority.write_pem(path / "ca.pem")
    keystore = authority.issue("node").write_pem(path / "node.pem")
    cluster = make_shared_cluster(brokers=2, dirs=1, start=False)
    ports = dict(zip(cluster.brokers, free_ports(2), strict=True))
    for node_id, daemon in {**cluster.local.controllers, **cluster.brokers}.items():
        name = f"{daemon.files.role}-{node_id}"
        own = node_keys(ca, keystore, name)
        if node_id in ports:
            plain = Endpoint.parse(f"PLAINTEXT://{daemon.address}").text
            own |= broker_keys(name)
            own["listeners"] = f"{plain},INTERNAL://127.0.0.1:{ports[node_id]}"
        change_config(daemon, lambda _, own=own: own)
    config_path = cluster.local.controllers[CONTROLLER_ID].files.config_path
    users = [
        f"--add-scram=SCRAM-SHA-512=[name=broker-{broker_id},password=broker-{broker_id}-scram]"
        for broker_id in ports
    ]
    command = [str(BIN / "kraftjbod-storage"), "format", "-c", str(config_path), *users]
    subprocess.run([*command, "-t", cluster.local.cluster_id], check=True)
    files = cluster.local.controllers[CONTROLLER_ID].files
    for made in files.metadata_dir.iterdir():
        cluster.local.privileges.give(made)
    cluster.start()
    yield Secured(cluster, authority, path)


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


def count_failed_logins(cluster: Cluster) -> int:
    names = ("authentication_expired", "authentication_failed", "broker_login_failed")
    return sum(len(daemon.events(name)) for daemon in cluster.local.daemons for name in names)


def test_nodes_log_in_again_before_their_sessions_end(secured: Secured) -> None:
    cluster = secured.cluster
    before = count_failed_logins(cluster)
    cluster.create_topic("renewed", partitions=4, replication_factor=2)
    until_s = time.monotonic() + 3 * SESSION_S
    while time.monotonic() < until_s:
        produce(secured, "renewed", 20)
    cluster.wait_whole("renewed")
    assert count_failed_logins(cluster) == before
    assert cluster.bugs() == []


@pytest.mark.parametrize("login", ["none", "wrong-password", "unknown-user", "other-broker"])
async def test_controller_refuses_requests_without_the_senders_login(
    secured: Secured, login: str
) -> None:
    credentials = {
        "none": None,
        "wrong-password": PlainCredential("broker-1", "broker-2-plain"),
        "unknown-user": PlainCredential("broker-7", "broker-7-plain"),
        "other-broker": PlainCredential("broker-2", "broker-2-plain"),
    }
    context = secured.authority.client_context()
    tls = TlsSettings(listener_name="CONTROLLER", context=lambda: context)
    client = RpcClient(
        "127.0.0.1",
        secured.controller_port,
        backoff=ExponentialBackoff(initial_ms=20, max_ms=500, random_unit=random.random),
        dialer=Dialer(tls, credential=credentials[login]),
    )
    request = AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=0)
    controller = secured.cluster.local.controllers[CONTROLLER_ID]
    try:
        if login == "other-broker":
            with pytest.raises(OperatingError, match="is not its principal") as refused:
                await client.call(request, timeout_ms=20_000)
            assert refused.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            secured.cluster.wait_event(controller, "node_principal_refused")
        elif login == "none":
            with pytest.raises(ConnectionLostError):
                await client.call(request, timeout_ms=20_000)
            secured.cluster.wait_event(controller, "connection_broke_protocol")
        else:
            with pytest.raises(ConnectionLostError, match="Invalid username or password"):
                await client.call(request, timeout_ms=20_000)
            secured.cluster.wait_event(controller, "authentication_failed")
    finally:
        client.close()


def test_broker_without_scram_credential_reports_it_until_the_credential_exists(
    secured: Secured,
) -> None:
    cluster = secured.cluster
    cluster.create_topic("healed", replication_factor=2)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    deletion = UserScramCredentialDeletion("broker-2", ScramMechanism.SCRAM_SHA_512)
    for done in admin.alter_user_scram_credentials([deletion]).values():
        done.result(60)
    broker = cluster.brokers[2]
    cluster.stop_daemon(broker)
    broker.start()
    failed = cluster.wait_event(broker, "broker_login_failed")
    assert (failed["broker"], failed["listener"]) == (1, "INTERNAL")
    assert "the login of broker-2 by SCRAM-SHA-512 failed" in failed["reason"]
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    creation = UserScramCredentialUpsertion("broker-2", info, b"broker-2-scram")
    for done in admin.alter_user_scram_credentials([creation]).values():
        done.result(60)
    cluster.wait_healthy()
    cluster.wait_whole("healed")


def test_tool_logs_in_to_controllers_as_a_node(secured: Secured, tmp_path: Path) -> None:
    settings = tmp_path / "node.properties"
    settings.write_text(
        "security.protocol=SASL_SSL\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={secured.path / 'ca.pem'}\n"
        "sasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN_MODULE} required username="broker-1" password="broker-1-plain";\n'
    )
    tool = [str(BIN / "kraftjbod-metadata-quorum"), "--command-config", str(settings)]
    address = ["--bootstrap-controller", f"127.0.0.1:{secured.controller_port}"]
    done = subprocess.run(
        [*tool, *address, "describe", "--status"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"LeaderId:               {CONTROLLER_ID}" in done.stdout
