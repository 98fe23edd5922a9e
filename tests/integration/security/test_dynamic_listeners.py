"""Key stores and connection limits of listeners change while a broker runs (KIP-226)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.certificates import Authority
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.security.listeners import add_listeners
from tests.integration.tools import called

pytestmark = [pytest.mark.process, pytest.mark.clients]
PREFIX = "listener.name.outer."
OLD = "canary-old"
NEW = "canary-new"


@dataclass(frozen=True)
class Secured:
    """A broker with the TLS listener OUTER, and files that its references may name."""

    cluster: Cluster
    authority: Authority
    path: Path
    port: int

    def alter(self, **changes: str | None) -> None:
        """Change dynamic values of broker 1 by librdkafka. None removes a value."""
        entries = [
            ConfigEntry(
                key.replace("__", PREFIX).replace("_", "."),
                value,
                incremental_operation=(
                    AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
                ),
            )
            for key, value in changes.items()
        ]
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(60)

    def alter_all(self, *words: str) -> Any:
        """Change values for all brokers by ``kraftjbod-configs``: librdkafka cannot name them."""
        return called(
            *("configs", "--bootstrap-server", self.cluster.bootstrap, "--alter"),
            *("--entity-type", "brokers", "--entity-default", *words),
        )

    def refusal(self, **changes: str | None) -> str:
        """Return the message with which a change is refused."""
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            self.alter(**changes)
        message = refused.value.args[0].str()
        assert "canary" not in message
        return str(message)

    def served_name(self) -> str:
        """Return the name in the certificate of the listener."""
        context = self.authority.client_context()
        context.check_hostname = False
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=30) as plain,
            context.wrap_socket(plain) as secure,
        ):
            certificate: Any = secure.getpeercert()
            return dict(pair for (pair,) in certificate["subject"])["commonName"]

    def wait_for_name(self, name: str) -> None:
        self.cluster.wait(f"the certificate of {name}", lambda: self.served_name() == name)


@pytest.fixture(scope="module")
def secured(
    make_shared_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    path = tmp_path_factory.mktemp("dynamic")
    authority = Authority()
    keystore = authority.issue("first").write_pkcs12(path / "first.p12", OLD)
    authority.issue("second").write_pkcs12(path / "second.p12", NEW)
    (path / "secrets").mkdir()
    (path / "secrets" / "new").write_text(NEW)
    (path / "outside").write_text(NEW)
    cluster = make_shared_cluster(brokers=1, dirs=1, start=False)
    config = {
        "ssl.keystore.location": str(keystore),
        "ssl.keystore.password": OLD,
        "ssl.store.check.interval.ms": "200",
        "max.connections.reserved.for.brokers": "0",
        "config.providers": "dir",
        "config.providers.dir.param.allowed.paths": str(path / "secrets"),
    }
    ports = add_listeners(cluster, {"OUTER": "SSL"}, config)
    cluster.start()
    yield Secured(cluster, authority, path, ports["OUTER"])


def test_dynamic_key_store_applies_without_a_restart_and_survives_a_restart(
    secured: Secured,
) -> None:
    assert secured.served_name() == "first"
    secured.alter(
        __ssl_keystore_location=str(secured.path / "second.p12"),
        __ssl_keystore_password=f"${{dir:{secured.path}/secrets:new}}",
    )
    secured.wait_for_name("second")
    # The password changes with the store, and the metadata still has the same reference.
    (secured.path / "secrets" / "new").write_text("canary-newest")
    secured.authority.issue("third").write_pkcs12(secured.path / "second.p12", "canary-newest")
    secured.wait_for_name("third")
    broker = secured.cluster.brokers[1]
    secured.cluster.stop_daemon(broker)
    secured.cluster.start_daemon(broker)
    secured.cluster.wait("the broker", lambda: secured.served_name() == "third")
    done = called(
        "configs",
        *("--bootstrap-server", secured.cluster.bootstrap, "--describe"),
        *("--entity-type", "brokers", "--entity-name", "1"),
    )
    assert f"{PREFIX}ssl.keystore.password=null sensitive=true" in done.stdout, done
    assert f"{PREFIX}ssl.keystore.location={secured.path}/second.p12" in done.stdout, done
    secured.alter(__ssl_keystore_location=None, __ssl_keystore_password=None)
    secured.wait_for_name("first")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"__ssl_keystore_password": "canary"}, "the metadata would have this secret"),
        ({"__ssl_keystore_location": "{path}/none.p12"}, "cannot be read: No such file"),
        ({"__ssl_keystore_location": "{path}/second.p12"}, "is no PKCS12 file of this"),
        ({"__ssl_keystore_location": "${env:HOME}"}, "only keys with secrets can have"),
        ({"__ssl_keystore_password": "${env:HOME}"}, "the provider may read everything"),
        ({"__ssl_keystore_password": "${dir:{path}:outside}"}, "allowed.paths of the provider"),
        ({"__ssl_keystore_password": "${dir:{path}/secrets:no}"}, "cannot be read: No such"),
        ({"__ssl_keystore_type": "JKS2"}, "ssl.keystore.type"),
        ({"ssl_keystore_location": "/k"}, "can change only for one listener"),
        ({"listener_name_plaintext_ssl_keystore_location": "/k"}, "PLAINTEXT has no TLS"),
        ({"listener_name_other_ssl_keystore_location": "/k"}, "has no listener OTHER"),
        ({"__ssl_client_auth": "required"}, "configures security that is not"),
    ],
)
def test_key_store_that_cannot_be_used_is_refused(
    secured: Secured, changes: dict[str, str], reason: str
) -> None:
    given = {key: text.replace("{path}", str(secured.path)) for key, text in changes.items()}
    assert reason in secured.refusal(**given)
    assert secured.served_name() == "first"


def test_key_store_for_all_brokers_is_refused(secured: Secured) -> None:
    done = secured.alter_all("--add-config", f"{PREFIX}ssl.keystore.location=/k")
    assert "per-broker configs must be used" in done.stderr, done


def test_limit_of_connections_changes_without_a_restart(secured: Secured) -> None:
    opened: list[socket.socket] = []

    def is_refused() -> bool:
        """Open a connection, and return whether the broker closes it."""
        connection = socket.create_connection(("127.0.0.1", secured.port), timeout=30)
        connection.settimeout(0.5)
        opened.append(connection)
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    try:
        assert not is_refused()
        done = secured.alter_all("--add-config", f"{PREFIX}max.connections=1")
        assert done.returncode == 0, done
        secured.cluster.wait("the limit", is_refused)
        secured.alter(__max_connections="100")
        secured.cluster.wait("the own limit of the broker", lambda: not is_refused())
        secured.alter(max_connections_per_ip="1")
        secured.cluster.wait("the limit of the address", is_refused)
    finally:
        for connection in opened:
            connection.close()
        secured.alter_all("--delete-config", f"{PREFIX}max.connections")
        secured.alter(__max_connections=None, max_connections_per_ip=None)
