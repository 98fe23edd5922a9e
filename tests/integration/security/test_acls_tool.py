"""``kraftjbod-acls`` and ``kraftjbod-configs --entity-type users``, as a user with a login."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from kraftjbod.core.acl import STANDARD_AUTHORIZER
from kraftjbod.core.jaas import PLAIN_MODULE, SCRAM_MODULE
from kraftjbod.core.node_config import Endpoint
from tests.checkout import BIN
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.security.listeners import free_ports
from tests.integration.tools import Done, called

pytestmark = [pytest.mark.process]
TOPIC_T: Final = "ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)"
GROUP_G: Final = "ResourcePattern(resourceType=GROUP, name=g, patternType=LITERAL)"


@dataclass(frozen=True)
class Guarded:
    cluster: Cluster
    address: str
    path: Path

    def run(self, name: str, *words: str, user: str = "admin", stdin: str = "") -> Done:
        """Call a tool as a user of PLAIN, or as one of SCRAM-SHA-256 if it has another name."""
        mechanism, module = "PLAIN", PLAIN_MODULE
        if user not in ("admin", "alice"):
            mechanism, module = "SCRAM-SHA-256", SCRAM_MODULE
        config = self.path / f"{user}.properties"
        config.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            f'sasl.jaas.config={module} required username="{user}" password="{user}-secret";\n'
        )
        where = ("--bootstrap-server", self.address, "--command-config", str(config))
        return called(name, *where, *words, stdin=stdin)

    def listed(self, *words: str) -> str:
        done = self.run("acls", "--list", *words)
        assert done.returncode == 0, done
        return done.stdout

    def wait_listed(self, count: int) -> None:
        """Wait until the broker has applied as many bindings."""
        self.cluster.wait("the bindings", lambda: self.listed().count("permissionType") == count)


@pytest.fixture(scope="module")
def guarded(
    make_shared_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    cluster = make_shared_cluster(brokers=1, dirs=1, start=False)
    (port,) = free_ports(1)
    for daemon in (cluster.local.controller, cluster.brokers[1]):
        config_path = daemon.files.config_path
        values = dict(line.partition("=")[::2] for line in config_path.read_text().splitlines())
        values |= {
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:ANONYMOUS;User:admin",
        }
        if daemon.files.role == "broker":
            plain = Endpoint.parse(values["listeners"])
            users = 'user_admin="admin-secret" user_alice="alice-secret"'
            values |= {
                "listeners": f"{plain.text},LOGIN://127.0.0.1:{port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
                "plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
            }
        config_path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    format_with_users(cluster)
    cluster.start()
    cluster.create_topic("t", replication_factor=1)
    yield Guarded(cluster, f"127.0.0.1:{port}", tmp_path_factory.mktemp("acls"))


def format_with_users(cluster: Cluster) -> None:
    """Format the controller with a user of SCRAM, as for a cluster without plaintext."""
    words = ("format", "-t", cluster.local.cluster_id, "--config")
    config = str(cluster.local.controller.files.config_path)
    user = "SCRAM-SHA-256=[name=first,password=first-secret]"
    command = [*cluster.local.privileges.command_prefix, str(BIN / "kraftjbod-storage"), *words]
    subprocess.run([*command, config, "--add-scram", user], check=True, timeout=60)


def test_user_created_by_format_logs_in(guarded: Guarded) -> None:
    done = guarded.run("acls", "--list", user="first")
    assert "Cluster authorization failed" in done.stderr, done


def entry(principal: str, operation: str, permission: str = "ALLOW", host: str = "*") -> str:
    return (
        f"\t(principal={principal}, host={host}, operation={operation}, "
        f"permissionType={permission})"
    )


def test_acls_of_producer_and_consumer_are_added_listed_and_removed(guarded: Guarded) -> None:
    done = guarded.run("get-offsets", "--topic", "t", user="alice")
    assert done.stdout == "", done
    words = ("--allow-principal", "User:alice", "--producer", "--topic", "t")
    done = guarded.run("acls", "--add", *words)
    assert done.returncode == 0, done
    lines = "\n".join(entry("User:alice", one) for one in ("WRITE", "DESCRIBE", "CREATE"))
    assert done.stdout == f"Adding ACLs for resource `{TOPIC_T}`: \n {lines} \n\n"
    guarded.wait_listed(3)
    done = guarded.run("get-offsets", "--topic", "t", user="alice")
    assert done.stdout == "t:0:0\n", done
    words = ("--allow-principal", "User:alice", "--consumer", "--topic", "t", "--group", "g")
    done = guarded.run("acls", "--add", *words)
    assert f"entry={entry('User:alice', 'DESCRIBE').strip()}) already exists.\n" in done.stdout
    assert f"Adding ACLs for resource `{GROUP_G}`: \n {entry('User:alice', 'READ')} \n" in (
        done.stdout
    )
    guarded.wait_listed(5)
    assert guarded.listed("--group", "g") == (
        f"Current ACLs for resource `{GROUP_G}`: \n {entry('User:alice', 'READ')} \n\n"
    )
    document = json.loads(guarded.listed("--group", "g", "--json"))
    (binding,) = document["bindings"]
    assert (binding["principal"], binding["operation"]) == ("User:alice", "READ"), document
    assert guarded.listed("--topic", "t", "--principal", "User:bob") == (
        "ACLs for principal `User:bob`\n"
    )
    removal = ("--remove", "--topic", "t", "--operation", "Read", "--allow-principal", "User:alice")
    done = guarded.run("acls", *removal, stdin="n\n")
    assert done.stdout == (
        f"Are you sure you want to remove ACLs: \n {entry('User:alice', 'READ')} \n from resource "
        f"filter `{TOPIC_T}`? (y/n)\n"
    )
    assert guarded.listed().count("permissionType") == 5
    assert guarded.run("acls", *removal, stdin="y\n").returncode == 0
    guarded.wait_listed(4)
    done = guarded.run("acls", "--remove", "--topic", "t", "--group", "g", "--force")
    assert (done.returncode, done.stdout) == (0, "")
    guarded.wait_listed(0)


def test_acls_with_prefix_host_and_denial_are_listed_by_match(guarded: Guarded) -> None:
    words = ("--topic", "pre", "--resource-pattern-type", "prefixed", "--operation", "AlterConfigs")
    who = ("--deny-principal", "User:bob", "--deny-host", "10.0.0.7")
    assert guarded.run("acls", "--add", *words, *who).returncode == 0
    words = ("--cluster", "--operation", "Alter", "--allow-principal", "User:ops")
    assert guarded.run("acls", "--add", *words).returncode == 0
    guarded.wait_listed(2)
    assert guarded.listed("--topic", "prefix") == ""
    assert guarded.listed("--topic", "prefix", "--resource-pattern-type", "match") == (
        "Current ACLs for resource `ResourcePattern(resourceType=TOPIC, name=pre, "
        f"patternType=PREFIXED)`: \n {entry('User:bob', 'ALTER_CONFIGS', 'DENY', '10.0.0.7')} \n\n"
    )
    for words in (("--topic", "pre", "--resource-pattern-type", "any"), ("--cluster",)):
        assert guarded.run("acls", "--remove", *words, "--force").returncode == 0
    guarded.wait_listed(0)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "exactly one action"),
        (("--add",), "at least one resource"),
        (("--add", "--topic", "t"), "--allow-principal, --deny-principal"),
        (("--add", "--topic", "t", "--allow-host", "1.2.3.4"), "needs --allow-principal"),
        (("--add", "--consumer", "--topic", "t"), "a --topic and a --group"),
        (("--add", "--producer", "--cluster"), "specify a --topic"),
        (("--list", "--topic", "t", "--idempotent"), "--idempotent"),
        (("--list", "--operation", "Fly"), "Fly is no operation"),
        (("--remove", "--group", "g", "--operation", "Write"), "GROUP only supports operations"),
        (("--remove", "--group", "g", "--principal", "User:a"), "only available if --list"),
        (
            (
                *("--add", "--topic", "t", "--allow-principal", "User:a"),
                *("--resource-pattern-type", "match"),
            ),
            "is not valid when adding acls",
        ),
    ],
)
def test_acls_with_contradictory_flags_are_refused(words: tuple[str, ...], problem: str) -> None:
    done = called("acls", "--bootstrap-server", "127.0.0.1:1", *words)
    assert done.returncode == 2
    assert problem in done.stderr


def test_acls_of_user_without_rights_are_refused(guarded: Guarded) -> None:
    done = guarded.run("acls", "--list", user="alice")
    assert done.returncode == 1
    assert "Cluster authorization failed" in done.stderr, done


def test_users_of_scram_are_added_described_used_and_deleted(guarded: Guarded) -> None:
    words = ("--alter", "--entity-type", "users", "--entity-name", "admin2")
    value = "SCRAM-SHA-256=[iterations=8192,password=admin2-secret]"
    done = guarded.run("configs", *words, "--add-config", value)
    assert done.stdout == "Completed updating config for user admin2.\n", done
    describe = ("--describe", "--entity-type", "users")
    expected = "".join(
        f"SCRAM credential configs for user-principal '{user}' are SCRAM-SHA-256=iterations={n}\n"
        for user, n in (("admin2", 8192), ("first", 4096))
    )
    guarded.cluster.wait("the user", lambda: guarded.run("configs", *describe).stdout == expected)
    done = guarded.run("topics", "--list", user="admin2")
    assert done.returncode == 0, done
    file = guarded.path / "new.properties"
    file.write_text("SCRAM-SHA-512=[password=file-secret]\n")
    assert guarded.run("configs", *words, "--add-config-file", str(file)).returncode == 0
    both = "SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096"
    guarded.cluster.wait("two", lambda: both in guarded.run("configs", *describe).stdout)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert guarded.run("configs", *words, "--delete-config", mechanism).returncode == 0
    guarded.cluster.wait(
        "no user", lambda: "admin2" not in guarded.run("configs", *describe).stdout
    )
    done = guarded.run("configs", *describe, "--entity-name", "bob")
    assert done.stdout == (
        "Error retrieving SCRAM credential configs for user-principal 'bob': "
        "ResourceNotFoundException: Attempt to describe a user credential that does not exist: "
        "bob\n"
    )
    done = guarded.run("configs", *words, "--delete-config", "SCRAM-SHA-256")
    assert done.returncode == 1


def test_quotas_are_set_described_and_deleted_with_kafkas_lines(guarded: Guarded) -> None:
    alter, describe = ("configs", "--alter"), ("configs", "--describe")
    both = ("--entity-type", "users", "--entity-default", "--entity-type", "clients")
    rates = ("--add-config", "producer_byte_rate=10485760,controller_mutation_rate=0.5")
    done = guarded.run(*alter, *both, "--entity-name", "app", *rates)
    assert done.stdout == "Completed updating default config for users in the cluster.\n", done
    done = guarded.run(*alter, "--ip", "10.0.0.9", "--add-config", "connection_creation_rate=5")
    assert done.stdout == "Completed updating config for ip 10.0.0.9.\n", done
    line = (
        "Quota configs for the default user-principal, client-id 'app' are "
        "controller_mutation_rate=0.5, producer_byte_rate=1.048576E7\n"
    )
    guarded.cluster.wait("quotas", lambda: guarded.run(*describe, *both).stdout == line)
    assert guarded.run(*describe, "--entity-type", "clients").stdout == "", "of both types only"
    line = "Quota configs for ip '10.0.0.9' are connection_creation_rate=5.0\n"
    guarded.cluster.wait(
        "ip", lambda: guarded.run(*describe, "--entity-type", "ips").stdout == line
    )
    document = json.loads(guarded.run(*describe, "--ip", "10.0.0.9", "--json").stdout)
    assert document["quotas"] == [
        {"entity": {"ip": "10.0.0.9"}, "quotas": {"connection_creation_rate": 5.0}}
    ]
    of_ip = (*alter, "--ip", "10.0.0.9")
    done = guarded.run(*of_ip, "--delete-config", "producer_byte_rate")
    assert "Only connection quota configs" in done.stderr and done.returncode == 2
    assert guarded.run(*of_ip, "--delete-config", "connection_creation_rate").returncode == 0
    guarded.cluster.wait("none", lambda: not guarded.run(*describe, "--entity-type", "ips").stdout)
    done = guarded.run(*of_ip, "--delete-config", "connection_creation_rate")
    assert "Invalid config(s): connection_creation_rate" in done.stderr and done.returncode == 1
    done = guarded.run(*of_ip, "--add-config", "connection_creation_rate=fast")
    assert "Cannot parse quota configuration value" in done.stderr and done.returncode == 1
    done = guarded.run(*alter, "--user", "a", "--add-config", "request_percentage=50")
    assert "Invalid configuration key request_percentage" in done.stderr, done
    guarded.run(
        *alter,
        "--user-defaults",
        "--client",
        "app",
        "--delete-config",
        "producer_byte_rate,controller_mutation_rate",
    )


def test_connections_beyond_the_quota_of_their_address_are_closed(guarded: Guarded) -> None:
    """With a default of one connection per second, a burst of ten is accepted."""
    host, _, port = guarded.address.rpartition(":")
    words = ("--ip-defaults", "--add-config", "connection_creation_rate=1")
    assert guarded.run("configs", "--alter", *words).returncode == 0

    def is_closed() -> bool:
        with socket.create_connection((host, int(port)), timeout=30) as one:
            # The broker closes a held connection after at most a second, others after minutes.
            one.settimeout(2)
            try:
                return one.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionResetError:
                return True

    opened = [socket.create_connection((host, int(port))) for _ in range(20)]
    assert is_closed()
    for one in opened:
        one.close()
    guarded.cluster.wait(
        "removed",
        lambda: (
            guarded.run(
                "configs", "--alter", "--ip-defaults", "--delete-config", "connection_creation_rate"
            ).returncode
            == 0
        ),
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("retention.ms=1", "Unexpected config names: retention.ms"),
        ("SCRAM-SHA-256=[iterations=8192]", "must include a non-empty password"),
        ("SCRAM-SHA-256=[iterations=1,password=canary]", "with 4096 to 16384 iterations"),
        ("SCRAM-SHA-256=[password=a,canary]", "no comma in the password"),
    ],
)
def test_malformed_credentials_are_refused_without_quoting_them(value: str, problem: str) -> None:
    words = ("--alter", "--entity-type", "users", "--entity-name", "a", "--add-config", value)
    done = called("configs", "--bootstrap-server", "127.0.0.1:1", *words)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "canary" not in done.stderr
