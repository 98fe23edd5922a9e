"""Passwords and private keys occur in no file, answer or error message of a cluster.

Each secret is a canary: a text that occurs nowhere else. Configuration files, key stores and the
files of references, which operators write, are the only files with canaries.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka.admin import ConfigResource as KafkaConfigResource
from kafka.admin import ConfigResourceType, KafkaAdminClient

from kraftjbod.core.acl import STANDARD_AUTHORIZER
from kraftjbod.core.jaas import PLAIN_MODULE
from kraftjbod.core.node_config import Endpoint
from tests.certificates import Authority
from tests.checkout import BIN
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.security.listeners import free_ports
from tests.integration.tools import called

pytestmark = [pytest.mark.process, pytest.mark.clients]

STORE: Final = "canary-store"
TRUST: Final = "canary-trust"
KEY: Final = "canary-key"
USER: Final = "canary-user"
WRONG: Final = "canary-wrong"
SCRAM: Final = "canary-scram"
DYNAMIC: Final = "canary-dynamic"
VARIABLE: Final = "canary-variable"
TEXT_KEY: Final = "canary-text-key"
LISTENERS: Final = {"FILES": "SSL", "TEXT": "SSL", "LOGIN": "SASL_SSL"}
EXIT_CONFIG: Final = 78


@dataclass(frozen=True)
class Planted:
    """A cluster whose configuration has secrets of each kind."""

    cluster: Cluster
    ca: Path
    #: What no output contains: canaries, and a part of the private key of the listener TEXT.
    canaries: tuple[str, ...]
    login_port: int

    def found_in(self, text: str) -> list[str]:
        return [canary for canary in self.canaries if canary in text]

    def log_in(self, mechanism: str, password: str) -> confluent_kafka.admin.AdminClient:
        return confluent_kafka.admin.AdminClient(
            {
                "bootstrap.servers": f"127.0.0.1:{self.login_port}",
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(self.ca),
                "sasl.mechanism": mechanism,
                "sasl.username": "alice",
                "sasl.password": password,
            }
        )


@pytest.fixture(scope="module")
def planted(
    make_shared_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Planted]:
    path = tmp_path_factory.mktemp("secrets")
    (path / "secrets.properties").write_text(f"trust={TRUST}\n")
    (path / "text-key").write_text(f"{TEXT_KEY}\n")
    (path / "credentials").mkdir()
    (path / "credentials" / "alice").write_text(USER)
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("BROKER_KEY", VARIABLE)
        variables.setenv("CREDENTIALS_DIRECTORY", str(path / "credentials"))
        yield start_planted(make_shared_cluster, path)


def start_planted(make_shared_cluster: MakeCluster, path: Path) -> Planted:
    """Start the cluster. Secrets are in the configuration files, and in the files and variables to
    which these refer."""
    authority = Authority()
    ca = authority.write_pem(path / "ca.pem")
    trust = authority.write_pkcs12(path / "trust.p12", TRUST)
    store = authority.issue("broker-1").write_pkcs12(path / "broker.p12", STORE)
    pem = authority.issue("broker-1").write_pem(path / "broker.pem", VARIABLE)
    inline = authority.issue("broker-1")
    key_text = inline.key_pem(TEXT_KEY).decode()
    cluster = make_shared_cluster(brokers=1, dirs=1, start=False)
    ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
    for daemon in (*cluster.local.controllers.values(), *cluster.brokers.values()):
        config_path = daemon.files.config_path
        values = dict(line.partition("=")[::2] for line in config_path.read_text().splitlines())
        prefix = "listener.name.login." if daemon.files.role == "broker" else ""
        values |= {
            "telemetry.level": "debug",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:ANONYMOUS",
            "audit.log.path": str(daemon.files.directory / "audit.log"),
            f"{prefix}ssl.keystore.location": str(store),
            f"{prefix}ssl.keystore.password": STORE,
            f"{prefix}ssl.truststore.location": str(trust),
            f"{prefix}ssl.truststore.password": f"${{file:{path}/secrets.properties:trust}}",
        }
        if daemon.files.role == "broker":
            plain = Endpoint.parse(values["listeners"])
            names = {plain.name: plain.port, **ports}
            values["listeners"] = ",".join(
                f"{name}://127.0.0.1:{port}" for name, port in names.items()
            )
            values["advertised.listeners"] = values["listeners"]
            protocols = {plain.name: "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **LISTENERS}
            values |= {
                "listener.security.protocol.map": ",".join(
                    f"{name}:{protocol}" for name, protocol in protocols.items()
                ),
                "listener.name.files.ssl.keystore.type": "PEM",
                "listener.name.files.ssl.keystore.location": str(pem),
                "listener.name.files.ssl.key.password": "${env:BROKER_KEY}",
                "listener.name.text.ssl.keystore.type": "PEM",
                "listener.name.text.ssl.keystore.key": key_text.replace("\n", "\\n"),
                "listener.name.text.ssl.keystore.certificate.chain": (
                    inline.certificate_pem.decode().replace("\n", "\\n")
                ),
                "listener.name.text.ssl.key.password": f"${{dir:{path}:text-key}}",
                "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
                "listener.name.login.plain.sasl.jaas.config": (
                    f'{PLAIN_MODULE} required user_alice="${{cred:alice}}" user_bob="{KEY}";'
                ),
            }
        config_path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        config_path.chmod(0o644)
    cluster.start()
    canaries = (STORE, TRUST, KEY, USER, WRONG, SCRAM, DYNAMIC, VARIABLE, TEXT_KEY)
    canaries += (key_text.splitlines()[2],)
    planted = Planted(cluster, ca, canaries, ports["LOGIN"])
    use_secrets(planted)
    return planted


def use_secrets(planted: Planted) -> None:
    """Log in with right and wrong passwords, add a SCRAM user, and try to set a password."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": planted.cluster.bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion("alice", info, SCRAM.encode())
    admin.alter_user_scram_credentials([change])["alice"].result(60)
    for key in ("ssl.keystore.password", "listener.name.login.ssl.keystore.password"):
        entry = ConfigEntry(key, DYNAMIC, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        (altered,) = admin.incremental_alter_configs([resource]).values()
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            altered.result(60)
        assert planted.found_in(str(refused.value)) == []
    for mechanism, password in (("PLAIN", USER), ("SCRAM-SHA-256", SCRAM)):
        planted.cluster.wait(
            f"a login by {mechanism}",
            lambda m=mechanism, p=password: planted.log_in(m, p).list_topics(timeout=5).brokers,
        )
        with pytest.raises(confluent_kafka.KafkaException):
            planted.log_in(mechanism, WRONG).list_topics(timeout=2)


def daemon_files(planted: Planted) -> Iterator[Path]:
    """Yield the files that the daemons wrote."""
    for path in planted.cluster.local.run_dir.rglob("*"):
        if path.is_file() and path.suffix != ".properties":
            yield path


def test_no_file_of_a_daemon_contains_a_secret(planted: Planted) -> None:
    names = set()
    for path in daemon_files(planted):
        assert planted.found_in(path.read_bytes().decode("latin-1")) == [], path
        names.add(path.name)
    assert {"audit.log", "telemetry.jsonl", "metrics.json"} <= names, names


def test_files_with_secrets_that_other_users_can_read_are_reported(planted: Planted) -> None:
    """Of the configuration file, only keys whose values are no references are reported."""
    config = planted.cluster.brokers[1].files.config_path
    warned = {
        event["path"]: event.get("keys")
        for event in planted.cluster.brokers[1].events("secret_readable_by_others")
    }
    assert warned.keys() == {
        str(config),
        *(str(planted.ca.with_name(name)) for name in ("secrets.properties", "text-key")),
        str(planted.ca.parent / "credentials" / "alice"),
    }
    assert "listener.name.login.ssl.keystore.password" in warned[str(config)]
    assert "listener.name.login.ssl.truststore.password" not in warned[str(config)]


def test_describe_configs_contains_no_secret(planted: Planted) -> None:
    admin = KafkaAdminClient(bootstrap_servers=planted.cluster.bootstrap)
    wanted = [KafkaConfigResource(ConfigResourceType.BROKER, "1")]
    described = str(admin.describe_configs(wanted, config_filter="all"))
    admin.close()
    assert "ssl.keystore.password" in described
    assert planted.found_in(described) == []
    (controller,) = planted.cluster.local.controllers.values()
    words = ("--bootstrap-controller", controller.address, "--describe", "--all")
    done = called("configs", *words, "--entity-type", "brokers", "--entity-name", "100")
    assert "ssl.keystore.password=null sensitive=true" in done.stdout, done
    assert planted.found_in(done.stdout + done.stderr) == []


def test_dump_of_metadata_contains_no_password_and_no_key_of_a_user(planted: Planted) -> None:
    (controller,) = planted.cluster.local.controllers.values()
    logs = sorted(controller.files.directory.rglob("*.log"))
    done = called("dump-log", "--cluster-metadata-decoder", "--files", ",".join(map(str, logs)))
    assert '"name":"alice"' in done.stdout.replace(" ", ""), done
    assert "(redacted)" in done.stdout
    state = planted.cluster.metadata()
    (credential,) = state.scram_credentials.values()
    for secret in (credential.stored_key, credential.server_key):
        for text in (base64.b64encode(secret).decode(), secret.hex(), repr(secret)):
            assert text not in done.stdout
    assert planted.found_in(done.stdout) == []


def test_command_lines_contain_no_secret(planted: Planted) -> None:
    for daemon in (*planted.cluster.local.controllers.values(), *planted.cluster.brokers.values()):
        command = Path(f"/proc/{daemon.pid}/cmdline").read_text()
        assert planted.found_in(command) == []


BASE: Final = {
    "process.roles": "broker",
    "node.id": "1",
    "listeners": "FILES://127.0.0.1:0",
    "listener.security.protocol.map": "FILES:SSL,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "FILES",
    "controller.quorum.voters": "100@127.0.0.1:1",
}
LOGIN: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0,LOGIN://localhost:0",
    "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
}
JAAS: Final = "listener.name.login.plain.sasl.jaas.config"
BROKEN: Final = {
    "wrong-store-password": {
        "ssl.keystore.location": "{store}",
        "ssl.keystore.password": "canary-other",
    },
    "wrong-key-password": {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "{pem}",
        "ssl.key.password": "canary-other",
    },
    "broken-key": {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": "-----BEGIN PRIVATE KEY-----\\ncanary1\\n-----END PRIVATE KEY-----",
        "ssl.keystore.certificate.chain": "canary-chain",
    },
    "reference-as-number": {"num.partitions": "${env:CANARY}"},
    "reference-as-address": {"advertised.listeners": "FILES://h:1,${env:CANARY}"},
    "unknown-provider": {"ssl.key.password": "${evn:CANARY}"},
    "unknown-variable": {"ssl.key.password": "canary${env:CANARY_OF_NOBODY}"},
    "nul": {"ssl.keystore.password": "canary\\u0000"},
    "nul-of-listener": {"listener.name.files.ssl.keystore.password": "canary\\u0000"},
    "escape": {"ssl.keystore.password": "canary\\ucanary"},
    "unknown-key": {"ssl.keystore.secret": "canary"},
    "unserved-key": {"sasl.jaas.config": "canary"},
    "open-quote": {**LOGIN, JAAS: f'{PLAIN_MODULE} required user_alice="canary;'},
    "blank": {**LOGIN, JAAS: f"{PLAIN_MODULE} required user_alice=a canary"},
    "blank-before-end": {**LOGIN, JAAS: f"{PLAIN_MODULE} required user_alice=a canary;"},
    "twice": {**LOGIN, JAAS: f"{PLAIN_MODULE} required a=1 canary=2 canary=3;"},
    "no-value": {**LOGIN, JAAS: f"{PLAIN_MODULE} required a=1 canary=;"},
    "no-value-at-end": {**LOGIN, JAAS: f"{PLAIN_MODULE} required a=1 canary="},
    "module": {**LOGIN, JAAS: "canary required;"},
    "flag": {**LOGIN, JAAS: f"{PLAIN_MODULE} canary;"},
}


def format_disk(directory: Path, values: dict[str, str]) -> None:
    """Format the disk of a broker with the plain settings of ``values``."""
    (directory / "disk").mkdir()
    path = directory / "plain.properties"
    plain = {**values, "listeners": "PLAINTEXT://127.0.0.1:0"}
    keys = ("process.roles", "node.id", "listeners", "controller.quorum.voters", "log.dirs")
    path.write_text("".join(f"{key}={plain[key]}\n" for key in keys))
    cluster_id = "AAAAAAAAAAAAAAAAAAAAAQ"
    done = called("storage", "format", "--cluster-id", cluster_id, "--config", str(path))
    assert done.returncode == 0, done


def refused_start(path: Path, *words: str) -> str:
    """Run a broker that cannot start, and return its output."""
    done = subprocess.run(
        [str(BIN / "kraftjbod-broker"), str(path), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == EXIT_CONFIG, done
    return done.stdout + done.stderr


@pytest.mark.parametrize("case", BROKEN)
def test_failed_start_prints_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setenv("CANARY", "canary-value")
    authority = Authority()
    places = {
        "store": authority.issue("broker-1").write_pkcs12(tmp_path / "broker.p12", STORE),
        "pem": authority.issue("broker-1").write_pem(tmp_path / "broker.pem", KEY),
    }
    values = {**BASE, "log.dirs": str(tmp_path / "disk"), **BROKEN[case]}
    format_disk(tmp_path, values)
    path = tmp_path / "broker.properties"
    path.write_text(
        "".join(
            f"{key}={str(places[value[1:-1]]) if value[1:-1] in places else value}\n"
            for key, value in values.items()
        )
    )
    printed = refused_start(path)
    assert "canary" not in printed
    assert "kraftjbod-broker:" in printed


@pytest.mark.parametrize(
    "override", ["ssl.key.password=canary", f"{JAAS}=canary", "ssl.key.password canary"]
)
def test_password_on_command_line_is_refused(tmp_path: Path, override: str) -> None:
    """Other users of the host see command lines, by ps."""
    path = tmp_path / "broker.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in {**BASE, **LOGIN}.items()))
    printed = refused_start(path, "--override", override)
    assert "canary" not in printed
    assert "--override" in printed
