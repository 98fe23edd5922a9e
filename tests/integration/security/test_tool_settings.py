"""The tools on a cluster that serves no plaintext, with the files that Kafka's tools read.

The listener PLAINTEXT of the broker is for the start of the cluster by this test only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import confluent_kafka.admin
import pytest
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kraftjbod.core.jaas import PLAIN_MODULE, SCRAM_MODULE
from kraftjbod.core.node_config import Endpoint
from tests.certificates import Authority
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.security.listeners import free_ports
from tests.integration.tools import Done, called

pytestmark = [pytest.mark.process, pytest.mark.clients]
PASSWORD: Final = "p w"
PROTOCOLS: Final = {
    "PLAINTEXT": "PLAINTEXT",
    "CONTROLLER": "SSL",
    "INTERNAL": "SSL",
    "LOGIN": "SASL_SSL",
}
USERS: Final = {"PLAIN": "alice", "SCRAM-SHA-256": "bob", "SCRAM-SHA-512": "carol"}


@dataclass(frozen=True)
class Secured:
    """A broker and a controller, and the clients' files by the protocol or mechanism."""

    cluster: Cluster
    ports: dict[str, int]
    files: dict[str, Path]

    def run(self, name: str, by: str, *words: str, stdin: str = "") -> Done:
        """Call a tool with the file ``by`` at the broker's listener for it."""
        port = self.ports["INTERNAL" if by == "SSL" else "LOGIN"]
        where = ("--bootstrap-server", f"127.0.0.1:{port}")
        config = ("--command-config", str(self.files[by]))
        return called(name, *where, *config, *words, stdin=stdin)

    def run_at_controller(self, name: str, *words: str) -> Done:
        where = ("--bootstrap-controller", self.cluster.local.controller.address)
        return called(name, *where, "--command-config", str(self.files["SSL"]), *words)


@pytest.fixture(scope="module")
def secured(
    make_shared_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    path = tmp_path_factory.mktemp("tool-settings")
    authority = Authority()
    ca = authority.write_pem(path / "ca.pem")
    trust = authority.write_pkcs12(path / "trust.p12", "trust")
    cluster = make_shared_cluster(brokers=1, dirs=1, start=False)
    ports = dict(zip(("INTERNAL", "LOGIN"), free_ports(2), strict=True))
    for daemon in (cluster.local.controller, cluster.brokers[1]):
        role, node_id = daemon.files.role, 1 if daemon.files.role == "broker" else 100
        keystore = authority.issue(f"{role}-{node_id}").write_pem(path / f"{node_id}.pem")
        config_path = daemon.files.config_path
        values = dict(line.partition("=")[::2] for line in config_path.read_text().splitlines())
        values |= {
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in PROTOCOLS.items()),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(ca),
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/",
            "cluster.node.principals": "User:broker-{id};User:controller-{id}",
        }
        if role == "broker":
            plain = Endpoint.parse(values["listeners"])
            others = "".join(f",{name}://127.0.0.1:{port}" for name, port in ports.items())
            values |= {
                "listeners": plain.text + others,
                "inter.broker.listener.name": "INTERNAL",
                "sasl.enabled.mechanisms": ",".join(USERS),
                "plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="{PASSWORD}";',
            }
        config_path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    cluster.start()
    store = authority.issue("controller-100").write_pkcs12(path / "client.p12", "store")
    trusts = f"ssl.truststore.location={trust}\nssl.truststore.password=trust\n"
    files = {"SSL": path / "ssl.properties"}
    files["SSL"].write_text(
        f"security.protocol=SSL\nssl.keystore.type=PKCS12\nssl.keystore.location={store}\n"
        f"ssl.keystore.password=store\n{trusts}"
    )
    for mechanism, user in USERS.items():
        module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
        files[mechanism] = path / f"{mechanism}.properties"
        files[mechanism].write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n{trusts}sasl.jaas.config="
            f'{module} required username="{user}" password="{PASSWORD}";\n'
        )
    add_users(cluster)
    yield Secured(cluster, ports, files)


def add_users(cluster: Cluster) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
    changes = [
        UserScramCredentialUpsertion(
            user,
            ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], 4096),
            PASSWORD.encode(),
        )
        for mechanism, user in USERS.items()
        if mechanism != "PLAIN"
    ]
    for altered in admin.alter_user_scram_credentials(changes).values():
        altered.result(60)
    cluster.wait(
        "the credentials", lambda: len(admin.describe_user_scram_credentials().result(60)) == 2
    )


@pytest.mark.parametrize("by", ["SSL", *USERS])
def test_tools_create_describe_write_and_read_topics(secured: Secured, by: str) -> None:
    topic = f"by-{by}"
    done = secured.run("topics", by, "--create", "--topic", topic, "--partitions", "1")
    assert done.returncode == 0, done
    done = secured.run("topics", by, "--describe", "--topic", topic)
    assert "PartitionCount: 1" in done.stdout, done
    done = secured.run("console-producer", by, "--topic", topic, stdin="one\ntwo\n")
    assert done.returncode == 0, done
    words = ("--topic", topic, "--from-beginning", "--max-messages", "2")
    done = secured.run("console-consumer", by, *words, "--timeout-ms", "60000")
    assert done.stdout == "one\ntwo\n", done
    done = secured.run("get-offsets", by, "--topic", topic)
    assert done.stdout == f"{topic}:0:2\n", done


@pytest.mark.parametrize(
    ("name", "words", "text"),
    [
        ("configs", ("--describe", "--entity-type", "brokers", "--all"), "log.dirs"),
        ("features", ("describe",), "metadata.version"),
        ("log-dirs", ("--describe",), "logDirs"),
        ("consumer-groups", ("--list",), ""),
        ("broker-api-versions", (), "Produce"),
        ("health", (), "serves"),
        ("metadata-quorum", ("describe", "--status"), "LeaderId"),
        ("cluster", ("cluster-id",), "Cluster ID"),
        ("transactions", ("list",), "TransactionalId"),
        ("leader-election", ("--election-type", "preferred", "--all-topic-partitions"), ""),
        ("reassign-partitions", ("--list",), ""),
    ],
)
def test_tool_logs_in_at_a_broker(
    secured: Secured, name: str, words: tuple[str, ...], text: str
) -> None:
    if name == "cluster":
        port = secured.ports["LOGIN"]
        where = ("--bootstrap-server", f"127.0.0.1:{port}")
        config = ("--command-config", str(secured.files["SCRAM-SHA-512"]))
        done = called(name, *words, *where, *config)
    else:
        done = secured.run(name, "SCRAM-SHA-512", *words)
    assert done.returncode == 0, done
    assert text in done.stdout, done


@pytest.mark.parametrize(
    ("name", "words", "text"),
    [
        (
            "configs",
            ("--describe", "--entity-type", "brokers", "--entity-name", "100", "--all"),
            "node.id=100",
        ),
        ("features", ("describe",), "metadata.version"),
        ("health", (), "serves"),
        ("metadata-quorum", ("describe", "--status"), "LeaderId"),
    ],
)
def test_tool_reaches_a_controller_with_the_certificate_of_a_node(
    secured: Secured, name: str, words: tuple[str, ...], text: str
) -> None:
    done = secured.run_at_controller(name, *words)
    assert done.returncode == 0, done
    assert text in done.stdout, done


def test_tool_with_wrong_password_fails_and_names_the_user(
    secured: Secured, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.properties"
    right = secured.files["SCRAM-SHA-256"].read_text()
    wrong.write_text(right.replace(PASSWORD, "canary"))
    secured.files["wrong"] = wrong
    done = secured.run("topics", "wrong", "--list")
    assert done.returncode == 1
    assert "the login of bob by SCRAM-SHA-256 failed" in done.stderr
    assert "canary" not in done.stderr


def test_tool_without_settings_reports_that_no_broker_answers(secured: Secured) -> None:
    where = f"127.0.0.1:{secured.ports['LOGIN']}"
    done = called("topics", "--bootstrap-server", where, "--timeout", "2", "--list")
    assert done.returncode == 1
    assert "no broker answered" in done.stderr


def test_add_controller_connects_with_the_certificate_of_the_new_controller(
    secured: Secured,
) -> None:
    """The controller is a voter already, so the answer is a refusal by the quorum."""
    controller = secured.cluster.local.controller
    where = ("--bootstrap-controller", controller.address)
    config = ("--command-config", str(controller.files.config_path))
    done = called("metadata-quorum", *where, *config, "add-controller")
    assert done.returncode == 1
    assert "controller.quorum.voters" in done.stderr, done


@pytest.mark.parametrize(
    ("by", "text"),
    [("SSL", "controller.quorum.voters"), ("SCRAM-SHA-512", "User:carol is not its principal")],
)
def test_add_controller_connects_to_brokers_with_the_keys_of_clients_in_its_file(
    secured: Secured, tmp_path: Path, by: str, text: str
) -> None:
    """As in Kafka, one file is the new controller's and the client's.

    A user without the principal of a node may not change voters.
    """
    controller = secured.cluster.local.controller
    both = tmp_path / "controller.properties"
    lines = secured.files[by].read_text().splitlines()
    of_client = [line for line in lines if not line.startswith("ssl.")]
    both.write_text(controller.files.config_path.read_text() + "\n".join(of_client))
    port = secured.ports["INTERNAL" if by == "SSL" else "LOGIN"]
    where = ("--bootstrap-server", f"127.0.0.1:{port}")
    done = called("metadata-quorum", *where, "--command-config", str(both), "add-controller")
    assert done.returncode == 1
    assert text in done.stderr, done
