"""Layout of a local cluster; tests/integration runs it with real daemons."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.config_model import unknown_keys
from kraftjbod.core.errors import ConfigError, StartupError
from kraftjbod.core.properties import parse_properties
from kraftjbod.local.cluster_process import (
    BROKER_COMMAND,
    CONTROLLER_COMMAND,
    ClusterProcesses,
    directory_id,
)


def read_config(path: Path) -> dict[str, str]:
    return parse_properties(path.read_text(), str(path))


def test_created_config_files_are_accepted_by_daemons(tmp_path: Path) -> None:
    cluster = ClusterProcesses.create(
        tmp_path / "run",
        brokers=2,
        dirs=2,
        config={
            "min.insync.replicas": "2",
            "broker.heartbeat.interval.ms": "400",
            "broker.session.timeout.ms": "5000",
        },
        controller_config={"leader.imbalance.check.interval.seconds": "7"},
        broker_config={2: {"broker.rack": "r2"}},
    )
    # Each daemon gets only keys that it knows, so that none logs a warning.
    for daemon in cluster.daemons:
        values = read_config(daemon.files.config_path)
        model = BrokerConfig if daemon.files.role == "broker" else ControllerConfig
        assert unknown_keys(model, values) == []
        assert daemon.files.config_path.stat().st_mode & 0o777 == 0o600
    path = cluster.controller.files.config_path
    controller = ControllerConfig.from_properties(
        read_config(path), source=str(path), base_dir=str(tmp_path)
    )
    assert controller.broker_session_timeout_ms == 5000
    path = cluster.brokers[2].files.config_path
    broker = BrokerConfig.from_properties(
        read_config(path), source=str(path), base_dir=str(tmp_path)
    )
    assert broker.broker_heartbeat_interval_ms == 400
    assert (broker.node_id, broker.broker_rack, broker.min_insync_replicas) == (2, "r2", 2)
    assert broker.log_dirs == tuple(str(cluster.dir_path(2, n)) for n in (1, 2))
    assert broker.controller_quorum_voters[0].port == controller.endpoint.port
    assert all(cluster.dir_path(2, n).is_dir() for n in (1, 2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"config": {"log.dir.io.timeout": "1"}},
        {"controller_config": {"broker.heartbeat.interval.ms": "1"}},
        {"broker_config": {1: {"leader.imbalance.check.interval.seconds": "1"}}},
    ],
)
def test_create_refuses_keys_without_meaning_for_the_role(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    """The refusal comes before anything is created."""
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: there is no key"):
        ClusterProcesses.create(tmp_path / "run", brokers=1, **wrong)
    assert not (tmp_path / "run").exists()


def test_create_takes_next_free_ports(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        cluster = ClusterProcesses.create(tmp_path, first_client_port=first)
    ports = [daemon.files.port for daemon in cluster.daemons]
    assert len(set(ports)) == 4
    assert min(ports[1:]) > first
    assert cluster.bootstrap_servers.count("127.0.0.1:") == 3


def test_create_uses_given_log_dirs(tmp_path: Path) -> None:
    disks = [tmp_path / "a", tmp_path / "b"]
    cluster = ClusterProcesses.create(tmp_path / "run", brokers=2, log_dirs={1: disks})
    assert [cluster.dir_path(1, n) for n in (1, 2)] == disks
    assert cluster.dir_path(2, 1) == (tmp_path / "run").resolve() / "broker-2" / "disk-1"


def test_load_finds_written_cluster(tmp_path: Path) -> None:
    cluster = ClusterProcesses.create(tmp_path, brokers=2)
    (cluster.dir_path(1, 1) / "meta.properties").write_text("directory.id=abc\n")
    document = json.loads(cluster.write_cluster_json().read_text())
    assert document["bootstrap_servers"] == cluster.bootstrap_servers
    assert document["daemons"][1]["log_dirs"][0]["directory_id"] == "abc"
    found = ClusterProcesses.load(tmp_path)
    assert found is not None
    assert [d.files for d in found.daemons] == [d.files for d in cluster.daemons]
    assert not found.is_running


def test_custom_broker_command_is_kept_by_load_and_added_brokers(tmp_path: Path) -> None:
    """Before, both ran the usual broker, so a fault of the custom one did not happen."""
    command = (sys.executable, "-m", "a.broker", "of our own")
    made = ClusterProcesses.create(tmp_path, brokers=1, broker_command=command)
    made.add_brokers(1)
    made.write_cluster_json()
    loaded = ClusterProcesses.load(tmp_path)
    assert loaded is not None
    loaded.add_brokers(1)
    for cluster, brokers in ((made, [1, 2]), (loaded, [1, 2, 3])):
        assert [cluster.brokers[n].command for n in brokers] == [command] * len(brokers)
        assert cluster.controller.command == CONTROLLER_COMMAND


def test_load_of_a_file_without_commands_uses_the_usual_ones(tmp_path: Path) -> None:
    """Earlier versions wrote no commands."""
    path = ClusterProcesses.create(tmp_path, brokers=1).write_cluster_json()
    document = json.loads(path.read_text())
    for entry in document["daemons"]:
        del entry["command"]
    path.write_text(json.dumps(document))
    found = ClusterProcesses.load(tmp_path)
    assert found is not None
    assert [d.command for d in found.daemons] == [CONTROLLER_COMMAND, BROKER_COMMAND]


def test_load_without_cluster_is_none_and_malformed_file_fails(tmp_path: Path) -> None:
    assert ClusterProcesses.load(tmp_path) is None
    (tmp_path / "cluster.json").write_text('{"daemons": [{}]}')
    with pytest.raises(StartupError, match=r"cluster\.json does not describe a cluster"):
        ClusterProcesses.load(tmp_path)


def test_directory_id_of_unformatted_directory_is_none(tmp_path: Path) -> None:
    assert directory_id(tmp_path) is None


async def test_start_with_failed_format_raises_its_message_and_starts_no_daemon(
    tmp_path: Path,
) -> None:
    cluster = ClusterProcesses.create(tmp_path, brokers=1)
    cluster.brokers[1].files.metadata_dir.rmdir()
    cluster.brokers[1].files.metadata_dir.touch()
    with pytest.raises(StartupError, match=r"cannot format broker-1: .*metadata"):
        await cluster.start()
    assert not any(daemon.is_running for daemon in cluster.daemons)


def test_create_with_a_value_that_a_daemon_refuses_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^broker-1\.properties: log\.retention\.ms: "):
        ClusterProcesses.create(tmp_path, brokers=1, config={"log.retention.ms": "soon"})
    assert list(tmp_path.iterdir()) == []


def test_format_resumes_interrupted_start(tmp_path: Path) -> None:
    made = ClusterProcesses.create(tmp_path, brokers=1, dirs=2)
    made.write_cluster_json()
    assert not (made.controller.files.metadata_dir / "meta.properties").exists()
    ids = []
    for _ in range(2):
        # The first call ends before it has recorded that everything is formatted.
        found = ClusterProcesses.load(tmp_path)
        assert found is not None
        found.format_directories()
        ids.append([directory_id(path) for path in found.brokers[1].files.log_dirs])
    assert ids[0] == ids[1]
    assert None not in ids[0]
    found.write_cluster_json()
    assert "unformatted" not in json.loads((tmp_path / "cluster.json").read_text())


def test_add_brokers_copies_last_configuration_except_ids_ports_paths_and_rack(
    tmp_path: Path,
) -> None:
    own = {1: {"broker.rack": "r1"}, 2: {"broker.rack": "r2", "num.partitions": "7"}}
    cluster = ClusterProcesses.create(tmp_path, brokers=2, dirs=2, broker_config=own)
    cluster.add_brokers(2)
    assert sorted(cluster.brokers) == [1, 2, 3, 4]
    ports = [daemon.files.port for daemon in cluster.daemons]
    assert len(set(ports)) == len(ports)
    for node_id in (3, 4):
        files = cluster.brokers[node_id].files
        values = read_config(files.config_path)
        assert values["node.id"] == str(node_id)
        assert values["listeners"] == f"PLAINTEXT://127.0.0.1:{files.port}"
        assert values["log.dirs"] == ",".join(map(str, files.log_dirs))
        assert values["num.partitions"] == "7"
        assert "broker.rack" not in values
        assert all(str(tmp_path / f"broker-{node_id}") in str(path) for path in files.log_dirs)


@pytest.mark.parametrize("of_controller", [True, False])
async def test_start_does_not_format_lost_directory(tmp_path: Path, of_controller: bool) -> None:
    cluster = ClusterProcesses.create(tmp_path, brokers=1, dirs=1)
    cluster.format_directories()
    cluster.write_cluster_json()
    lost = (cluster.controller if of_controller else cluster.brokers[1]).files
    (lost.metadata_dir / "meta.properties").unlink()
    found = ClusterProcesses.load(tmp_path)
    assert found is not None
    with pytest.raises(StartupError, match=f"{lost.metadata_dir} of {lost.name} is gone"):
        await found.start()
    assert not (lost.metadata_dir / "meta.properties").exists()
