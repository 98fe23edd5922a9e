"""Daemons with the files of ``kraftjbod-local samples --secured``, set up as in docs/deploy.md."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.checkout import BIN
from tests.integration.security.listeners import free_ports

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

_READY_S = 90.0
_STOP_S = 60.0


def run(tool: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / f"kraftjbod-{tool}"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def checked(tool: str, *words: str) -> str:
    done = run(tool, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Daemons:
    """A controller and a broker with the files in ``path``, on free ports."""

    def __init__(self, path: Path) -> None:
        self.security = path / "security"
        checked("local", "samples", "--out", str(path), "--secured", "--controllers=1")
        self._controller_port, self._internal_port, self._port = free_ports(3)
        self.files = [path / "controller-100.properties", path / "broker-1.properties"]
        for file in self.files:
            text = file.read_text().replace("/var/lib/kraftjbod", str(path))
            for old, new in (
                ("127.0.0.1:9090", self._controller_port),
                ("127.0.0.1:9092", self._port),
                ("127.0.0.1:9192", self._internal_port),
            ):
                text = text.replace(old, f"127.0.0.1:{new}")
            file.write_text(text)
        cluster_id = checked("storage", "random-uuid")
        users = self.security / "controller-100/users.properties"
        for file, names in zip(self.files, (("admin", "client"), ()), strict=True):
            scram = [f"--add-scram=${{file:{users}:{name}}}" for name in names]
            checked("storage", "format", "-t", cluster_id, "-c", str(file), *scram)

    def topics(self, user: str | None, *words: str) -> subprocess.CompletedProcess[str]:
        settings = self.security / f"users/{user}.properties"
        config = ("--command-config", str(settings)) if user else ()
        server = ("--bootstrap-server", f"127.0.0.1:{self._port}")
        return run("topics", *server, *config, "--timeout", "10", *words)

    def health(self, role: str, name: str) -> subprocess.CompletedProcess[str]:
        is_broker = role == "broker"
        port = self._internal_port if is_broker else self._controller_port
        option = "--bootstrap-server" if is_broker else "--controller"
        settings = str(self.security / f"{role}-{name}/node.properties")
        return run("health", option, f"127.0.0.1:{port}", "--command-config", settings)


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    daemons = Daemons(tmp_path)
    with ExitStack() as stack:
        for file in daemons.files:
            role = file.stem.partition("-")[0]
            log = stack.enter_context((tmp_path / f"{role}.log").open("w"))
            process = subprocess.Popen(
                [str(BIN / f"kraftjbod-{role}"), str(file)], stdout=log, stderr=log
            )
            stack.callback(process.wait, _STOP_S)
            stack.callback(process.terminate)
        deadline = time.monotonic() + _READY_S
        while (health := daemons.health("broker", "1")).returncode != 0:
            assert time.monotonic() < deadline, health.stderr
            time.sleep(0.5)
        yield daemons


def test_secured_samples_serve_admin_and_refuse_client_and_stranger(daemons: Daemons) -> None:
    create = ("--create", "--topic", "orders", "--partitions", "1", "--replication-factor", "1")
    assert daemons.health("controller", "100").returncode == 0
    refused = daemons.topics("client", *create)
    assert refused.returncode == 1 and "authoriz" in refused.stderr.lower()
    assert daemons.topics(None, "--list").returncode == 1
    assert daemons.topics("admin", *create).returncode == 0
    assert daemons.topics("admin", "--list").stdout.strip() == "orders"
    assert daemons.topics("client", "--list").stdout.strip() == ""
