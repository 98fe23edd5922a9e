"""``kraftjbod-local`` (and ``make up``) as a user types it, with real daemons."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.local.ports import reserve_port
from tests.checkout import BIN
from tests.integration.clients import read_confluent, write_confluent

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

Local = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    tmp_path.chmod(0o755)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "kraftjbod-local"), *words, "--data", "data"]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    yield call
    assert call("down").returncode == 0


# One controller is enough for these tests.
SHAPE = ("--brokers", "2", "--dirs", "2", "--controllers", "1")


def document(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def pids(found: Any) -> dict[str, int | None]:
    return {daemon["name"]: daemon["pid"] for daemon in found["daemons"]}


def test_up_starts_missing_daemons_and_grows_the_cluster(local: Local, tmp_path: Path) -> None:
    port = str(reserve_port().port)
    made = document(local("up", *SHAPE, "--port", port, "--json"))
    assert (made["isNew"], made["serves"]) == (True, True)
    assert made["started"] == ["controller", "broker-1", "broker-2"]
    write_confluent(made["bootstrapServers"], "unknown-topic", [b"a", b"b"])
    for telemetry in (tmp_path / "data").glob("*/telemetry.jsonl"):
        assert "unknown_config_key" not in telemetry.read_text()
        assert "of_file_ignored" not in telemetry.read_text()

    os.kill(pids(made)["broker-2"] or 0, signal.SIGKILL)
    looked = local("status", "--json")
    assert looked.returncode == 1
    assert "broker-2: it is not running (kraftjbod-local up --data data starts" in looked.stderr
    assert [daemon["state"] for daemon in document(looked)["daemons"]] == [
        *("serving", "serving", "stopped")
    ]
    # As if the starting command had died before it recorded their pids.
    written = tmp_path / "data" / "cluster.json"
    known = json.loads(written.read_text())
    written.write_text(
        json.dumps({**known, "daemons": [{**one, "pid": None} for one in known["daemons"]]})
    )
    again = document(local("up", "--json"))
    assert (again["isNew"], again["started"], again["serves"]) == (False, ["broker-2"], True)
    kept = pids(made).keys() - {"broker-2"}
    assert {name: pids(again)[name] for name in kept} == {name: pids(made)[name] for name in kept}
    # Both replicas of the topic without a given replication factor.
    assert len(list((tmp_path / "data").glob("broker-*/disk-*/unknown-topic-0"))) == 2

    assert "It is up already" in local("up").stdout
    other = local("up", "--brokers", "1")
    assert other.returncode == 1
    assert "has 2 brokers with 2 log directories each; it can grow" in other.stderr
    assert "--port is for a new cluster" in local("up", "--port", "9092").stderr
    assert "Stopped controller, broker-1, broker-2" in local("down").stdout
    assert "No cluster is running." in local("down").stdout
    # A stopped cluster grows by one broker, and a running one by another.
    stopped = document(local("up", "--brokers", "3", "--json"))
    assert (stopped["added"], len(stopped["started"])) == (1, 4)
    grown = document(local("up", "--brokers", "4", "--json"))
    assert (grown["added"], grown["started"], grown["serves"]) == (1, ["broker-4"], True)
    assert len(grown["bootstrapServers"].split(",")) == 4
    assert "It is up already" in local("up", "--brokers", "4").stdout
    assert read_confluent(made["bootstrapServers"], "unknown-topic", 2) == [b"a", b"b"]


def test_up_with_invalid_config_value_creates_nothing(local: Local, tmp_path: Path) -> None:
    port = ("--port", str(reserve_port().port))
    wrong = local("up", *SHAPE, *port, "--config", "log.retention.ms=soon")
    assert wrong.returncode == 1
    assert "broker-1.properties: log.retention.ms: 'soon' is no LONG" in wrong.stderr
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["local.lock"]
    right = document(local("up", *SHAPE, *port, "--config", "log.retention.ms=5000", "--json"))
    assert (right["isNew"], right["serves"]) == (True, True)


def test_up_with_security_names_client_settings_that_the_tools_use(local: Local) -> None:
    port = str(reserve_port().port)
    shape = ("--brokers", "1", "--dirs", "1", "--controllers", "1", "--port", port)
    made = document(local("up", *shape, "--security", "sasl_ssl", "--json"))
    assert made["serves"]
    assert made["bootstrapServers"] == f"127.0.0.1:{port}"
    tool = [str(BIN / "kraftjbod-topics"), "--bootstrap-server", made["bootstrapServers"]]
    settings = ["--command-config", made["clientProperties"]]
    listed = subprocess.run([*tool, *settings, "--list"], capture_output=True, check=False)
    assert listed.returncode == 0, listed.stderr
    other = local("up", "--security", "ssl")
    assert other.returncode != 0
    assert "has sasl_ssl" in other.stderr
