"""Tests of the cluster of docker-compose.yml on a real engine, with faults and a restart.

Gaps and times are measured and printed, and never asserted.
"""

from __future__ import annotations

import json
import time

import pytest

from tests.compose.compose_cluster import BROKERS, RUN_DIR, SERVICES, ComposeCluster
from tests.compose.conftest import Measured
from tests.integration.checker import Load, judge
from tests.integration.clients import read_confluent, write_confluent

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

TOPIC = "compose"
PARTITIONS = 6
RAM_DISK = "/data/disk-3"
DISK = "/data/disk-1"


def _await_progress(cluster: ComposeCluster, load: Load) -> None:
    before = load.acked_by_partition()
    cluster.wait("every partition to be written", lambda: load.flowed_since(before))


def _move(cluster: ComposeCluster, broker: int, partitions: range, path: str) -> None:
    """Move the broker's replicas of these partitions to its directory ``path``."""
    plan = {
        "version": 1,
        "partitions": [
            {
                "topic": TOPIC,
                "partition": part["partition"],
                "replicas": part["replicas"],
                "log_dirs": [path if node == broker else "any" for node in part["replicas"]],
            }
            for part in cluster.partitions(TOPIC)
            if part["partition"] in partitions
        ],
    }
    file = RUN_DIR / "compose-test-plan.json"
    file.write_text(json.dumps(plan))
    words = ("--execute", "--reassignment-json-file", str(file), "--progress")
    cluster.tool("reassign-partitions", *words)
    assert set(partitions) <= cluster.replicas_in(broker, path, TOPIC)


def _kill_broker(cluster: ComposeCluster, load: Load, broker: int) -> float:
    """Kill the broker's container and start it again. Return when it was killed (monotonic)."""
    service = f"broker-{broker}"
    killed_s = time.monotonic()
    cluster.docker("kill", cluster.container(service))
    _await_progress(cluster, load)
    cluster.docker("start", cluster.container(service))
    cluster.wait(f"{service} to be healthy", lambda: cluster.health(service) == "healthy")
    cluster.wait_in_sync(TOPIC)
    return killed_s


def _kill_disk(cluster: ComposeCluster, load: Load, broker: int) -> float:
    """Remove all permissions of a disk as the broker's user, and restore them.

    :returns: when they were removed (monotonic).
    """
    assert cluster.replicas_in(broker, DISK, TOPIC), "the disk holds replicas"
    died_s = time.monotonic()
    cluster.inside(f"broker-{broker}", "chmod", "000", DISK)
    cluster.wait("the disk to be offline", lambda: cluster.dir_states(broker)[DISK] == "offline")
    _await_progress(cluster, load)
    assert cluster.health(f"broker-{broker}") == "healthy", "a dead disk is not a dead broker"
    cluster.inside(f"broker-{broker}", "chmod", "755", DISK)
    cluster.tool("log-dirs", "--reattach", f"{broker}:{DISK}")
    cluster.wait_in_sync(TOPIC)
    return died_s


def _fill_disk(cluster: ComposeCluster, load: Load, broker: int) -> float:
    """Fill the disk in memory with a foreign file, and delete the file.

    :returns: when the filling began (monotonic).
    """
    _move(cluster, broker, range(PARTITIONS), RAM_DISK)
    stranger = f"{RAM_DISK}/stranger"
    filled_s = time.monotonic()
    fill = f"head -c 1G /dev/zero >{stranger} || true"
    cluster.inside(f"broker-{broker}", "sh", "-c", fill)
    cluster.wait("the disk to be full", lambda: cluster.dir_states(broker)[RAM_DISK] == "saturated")
    _await_progress(cluster, load)
    assert cluster.health(f"broker-{broker}") == "healthy"
    cluster.inside(f"broker-{broker}", "rm", stranger)
    cluster.wait(
        "the disk to have free space", lambda: cluster.dir_states(broker)[RAM_DISK] == "online"
    )
    cluster.wait_in_sync(TOPIC)
    return filled_s


def _is_all_online(cluster: ComposeCluster) -> bool:
    return all(set(cluster.dir_states(broker).values()) == {"online"} for broker in BROKERS)


def _restart_all(cluster: ComposeCluster) -> None:
    """Stop all containers in order and start them with the same volumes."""
    cluster.do("compose", "stop")
    for service in SERVICES:
        words = ("inspect", "-f", "{{.State.ExitCode}}", cluster.container(service))
        assert cluster.docker(*words) == "0", f"{service} did not stop cleanly"
    cluster.do("up")
    cluster.wait("the disks in memory to be replaced", lambda: _is_all_online(cluster))
    cluster.wait_in_sync(TOPIC)


def test_compose_clients_on_host_and_network_read_each_others_records(
    cluster: ComposeCluster,
) -> None:
    """A client on the host and one in a container read each other's records."""
    cluster.tool("topics", "--create", "--topic", "both", "--partitions", "1")
    write_confluent(cluster.bootstrap, "both", [b"from the host"])
    server = ("--bootstrap-server", "broker-2:9092", "--topic", "both")
    cluster.inside("broker-3", "kraftjbod-console-producer", *server, stdin="from a container\n")
    read = ("kraftjbod-console-consumer", *server, "--from-beginning", "--max-messages", "2")
    assert cluster.inside("broker-1", *read).splitlines() == ["from the host", "from a container"]
    assert read_confluent(cluster.bootstrap, "both", 2) == [b"from the host", b"from a container"]


def test_compose_daemons_run_unprivileged_within_limits(cluster: ComposeCluster) -> None:
    for service in SERVICES:
        status = cluster.inside(service, "cat", "/proc/self/status").splitlines()
        fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
        assert fields["Uid"].split()[0] == "10001"
        assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
        assert fields["NoNewPrivs"] == "1"
        limits = "{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}} {{.HostConfig.Init}}"
        printed = cluster.docker("inspect", "-f", limits, cluster.container(service))
        assert printed == f"{1024**3} 512 true"


def test_compose_faults_and_restart_lose_no_acknowledged_record(
    cluster: ComposeCluster, measured: Measured
) -> None:
    cluster.tool("topics", "--create", "--topic", TOPIC, "--partitions", str(PARTITIONS))
    cluster.wait_in_sync(TOPIC)
    ids = cluster.dir_ids()
    with Load(cluster.bootstrap, TOPIC, PARTITIONS, pause_s=0.01) as load:
        _await_progress(cluster, load)
        measured.gap("a broker's container is killed", load, _kill_broker(cluster, load, 1))
        measured.gap("a disk dies (chmod 000)", load, _kill_disk(cluster, load, 2))
        measured.gap("a disk is full", load, _fill_disk(cluster, load, 3))
        # The disk in memory is lost with the container: its replicas are copied from the leaders.
        lost_s = _kill_broker(cluster, load, 3)
        measured.gap("a container is killed with its disk", load, lost_s)
        cluster.wait("the disk to be replaced", lambda: _is_all_online(cluster))
        cluster.wait_in_sync(TOPIC)
        load.stop()
    assert judge(cluster.bootstrap, TOPIC, load).findings == []
    assert not cluster.replicas_in(3, RAM_DISK, TOPIC)
    _restart_all(cluster)
    assert judge(cluster.bootstrap, TOPIC, load).findings == []
    now = cluster.dir_ids()
    disks = {key for key in ids if key[1] != RAM_DISK}
    assert {key: now[key] for key in disks} == {key: ids[key] for key in disks}
    assert all(now[key] != ids[key] for key in ids.keys() - disks), "those in memory are new"
