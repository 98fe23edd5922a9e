"""The testing kit as users use it: a cluster, and faults under load."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from kraftjbod.core.errors import ConfigError, OperatingError, StartupError
from kraftjbod.testing import ClusterTimeoutError, LocalCluster, log_disks, mounts
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.local_cluster import BrokerDir
from kraftjbod.testing.log_disks import FAULTS, DiskKind
from kraftjbod.testing.mounts import DiskKitError
from tests.integration.checker import Load, judge

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

PARTITIONS: Final = 6
# State of a directory whose disk has this fault.
STATES: Final = {DiskFault.FULL: "saturated", DiskFault.SLOW: "online"}
# Faults after which the directory recovers without an operator.
RETURNS_AUTOMATICALLY: Final = frozenset(STATES)
_topics: Final = (f"wanted-{number}" for number in itertools.count())


def leftovers() -> list[str]:
    """Return the mounts of this process."""
    return [
        line
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if f"{mounts.PREFIX}{os.getpid()}-" in line
    ]


@pytest.fixture(scope="module", params=["ext4", "fuse", "plain"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    kind: DiskKind = request.param
    reason = log_disks.why_not(kind)
    if reason is not None:
        pytest.skip(reason)
    before = leftovers()
    config = {"log.dir.slow.min.ms": "30", "min.insync.replicas": "2"}
    with LocalCluster(brokers=3, dirs=2, disks=kind, config=config) as cluster:
        yield cluster
    assert leftovers() == before


def runs(process: psutil.Process) -> bool:
    """Return whether the process runs; one that ended and is not reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def require_progress(cluster: LocalCluster, load: Load) -> None:
    before = load.acked_by_partition()
    cluster.wait("progress in every partition", lambda: load.flowed_since(before, 20))


def take_back(disk: BrokerDir, fault: DiskFault) -> None:
    disk.heal()
    if fault == "wipe":
        disk.replace()
    elif fault not in RETURNS_AUTOMATICALLY:
        disk.reattach()
    disk.wait_state("online")


@pytest.mark.parametrize("fault", FAULTS)
def test_local_cluster_loses_no_record_for_each_disk_fault(
    cluster: LocalCluster, fault: DiskFault
) -> None:
    topic = next(_topics)
    disk = cluster.broker(2).dir(1)
    if fault not in disk.disk.faults:
        with pytest.raises(DiskKitError, match=f"cannot {fault}; others can: "):
            disk.fail(fault)
        return
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    with Load(cluster.bootstrap_servers, topic, PARTITIONS) as load:
        require_progress(cluster, load)
        disk.fail(fault)
        disk.wait_state(STATES.get(fault, "offline"))
        require_progress(cluster, load)
        assert all(broker.is_running for broker in cluster.brokers)
        take_back(disk, fault)
        cluster.wait_in_sync(topic)
        require_progress(cluster, load)
        load.stop()
    load.print_gaps(f"{fault} on {disk.disk.kind}")
    assert judge(cluster.bootstrap_servers, topic, load).findings == []


def test_local_cluster_kills_stops_and_starts_brokers() -> None:
    with LocalCluster(brokers=2, dirs=1, disks="plain") as cluster:
        cluster.create_topic("kept", partitions=2)
        first, second = cluster.brokers
        first.kill()
        assert (first.is_running, second.is_running) == (False, True)
        first.start()
        cluster.wait_in_sync("kept")
        second.stop()
        assert second.process.exit_code == 0
        second.start()
        cluster.wait_in_sync("kept")
        run_dir = cluster.run_dir
    assert not run_dir.exists()


async def test_local_cluster_in_a_coroutine_creates_topics_and_ends_its_daemons() -> None:
    async with LocalCluster(brokers=1, dirs=2, disks="plain") as cluster:
        cluster.create_topic("sync")
        await asyncio.to_thread(cluster.create_topic, "thread")
        assert cluster.broker(1).dir(0).state == "online"
        pids = [daemon.pid for daemon in cluster.processes.daemons]
    assert not any(pid is not None and psutil.pid_exists(pid) for pid in pids)


def test_local_cluster_keeps_telemetry_of_failed_test() -> None:
    with (
        pytest.raises(ClusterTimeoutError, match=r"waited 0 s for a miracle: it never was so\n"),
        LocalCluster(brokers=1, dirs=1, disks="plain") as cluster,
    ):
        run_dir = cluster.run_dir
        cluster.wait("a miracle", lambda: False, timeout_s=0.2)
    assert "broker_started" in (run_dir / "broker-1/telemetry.jsonl").read_text()
    shutil.rmtree(run_dir)


def test_failed_start_names_the_reason_and_leaves_no_mounts() -> None:
    before = leftovers()
    elsewhere = {"listeners": "PLAINTEXT://203.0.113.1:9092"}
    cluster = LocalCluster(brokers=2, broker_config={2: elsewhere})
    # The start fails at once, without a wait for the healthy broker.
    with pytest.raises(StartupError, match=r"broker-2 ended .*\n.*203\.0\.113\.1"):
        cluster.start()
    assert leftovers() == before
    with pytest.raises(StartupError, match="not started, or closed already"):
        _ = cluster.bootstrap_servers


def test_report_of_a_failed_test_names_partitions_that_refuse_writes() -> None:
    """A topic with two replicas needs both by default, and a client only sees a timeout."""
    with LocalCluster(brokers=2, dirs=1, disks="plain") as cluster:
        cluster.create_topic("pairs", replication_factor=2)
        cluster.broker(2).kill()
        refused = "NOT_ENOUGH_REPLICAS"
        cluster.wait("broker 2 to be missed", lambda: refused in cluster.last_words(), timeout_s=30)
        with pytest.raises(ClusterTimeoutError) as timed_out:
            cluster.wait_in_sync("pairs", timeout_s=1)
        assert (
            "pairs-0 has 1 of 2 replicas in sync and needs 2 (min.insync.replicas): writes with "
            "acks=all are refused with NOT_ENOUGH_REPLICAS"
        ) in str(timed_out.value)


def test_local_cluster_rejects_invalid_parameters_with_reason() -> None:
    for parameters, problem in {
        "brokers": ({"brokers": 0}, "from 1 to 32 brokers"),
        "dirs": ({"dirs": 33}, "1 to 32 log directories"),
        "controllers": ({"controllers": 2}, r"controllers=2: one of \(1, 3, 5\)"),
        "config": ({"config": {"log.retention.hour": "1"}}, "did you mean log.retention.hours"),
        "type": ({"config": {"num.partitions": [4]}}, r"num.partitions is \[4\], of type list"),
    }.values():
        with pytest.raises(ConfigError, match=problem):
            LocalCluster(**parameters)  # type: ignore[arg-type]
    with LocalCluster(brokers=1, dirs=1, disks="plain") as cluster:
        with pytest.raises(ConfigError, match="there is no broker 0: 1 to 1"):
            cluster.broker(0)
        with pytest.raises(ConfigError, match="broker 1 has no directory 1: 0 to 0"):
            cluster.broker(1).dir(1)
        with pytest.raises(OperatingError, match="replication factor"):
            cluster.create_topic("wide", replication_factor=2)
        with pytest.raises(ConfigError, match=r"no state 'oofline': online, .*, offline"):
            cluster.broker(1).dir(0).wait_state("oofline")


def test_local_cluster_config_accepts_numbers_and_start_refuses_invalid_values() -> None:
    wrong = LocalCluster(brokers=1, disks="plain", broker_config={1: {"log.retention.ms": "soon"}})
    with pytest.raises(ConfigError, match=r"broker-1.properties: log\.retention\.ms"):
        wrong.start()
    config = {"num.partitions": 4, "auto.create.topics.enable": False}
    with LocalCluster(brokers=1, dirs=1, disks="plain", config=config) as cluster:
        written = cluster.broker(1).process.files.config_path.read_text()
        assert "num.partitions=4\n" in written
        assert "auto.create.topics.enable=false\n" in written
        cluster.create_topic("short", config={"retention.ms": 60_000})


def test_directory_requests_to_a_killed_broker_suggest_its_start() -> None:
    with LocalCluster(brokers=1, dirs=1, disks="plain") as cluster:
        broker = cluster.broker(1)
        broker.kill()
        asked = broker.dir(0)
        for ask in (asked.describe, asked.reattach, asked.replace):
            with pytest.raises(
                OperatingError, match=r"exit code -9.*cluster.broker\(1\).start\(\)"
            ):
                ask()
        with pytest.raises(ClusterTimeoutError, match=r"cluster.broker\(1\).start\(\)"):
            asked.wait_state("online", timeout_s=0.2)
        broker.start()
        asked.wait_state("online")


def test_next_local_cluster_removes_remains_of_a_killed_one() -> None:
    if mounts.why_not("ext4") is not None:
        pytest.skip(str(mounts.why_not("ext4")))
    script = """
        import time
        from kraftjbod.testing import LocalCluster
        with LocalCluster(brokers=1, dirs=2, disks="ext4") as cluster:
            print(*(daemon.pid for daemon in cluster.processes.daemons), flush=True)
            time.sleep(600)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    daemons = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    try:
        assert len(daemons) == 2
        process.send_signal(signal.SIGKILL)
        process.communicate()
        prefix = f"{mounts.PREFIX}{process.pid}-"
        assert prefix in Path("/proc/self/mounts").read_text()
        assert all(map(runs, daemons))
        with LocalCluster(brokers=1, dirs=1, disks="plain"):
            assert prefix not in Path("/proc/self/mounts").read_text()
            assert not any(map(runs, daemons))
        [found] = Path(tempfile.gettempdir()).glob(f"kraftjbod-cluster-{process.pid}-*")
        assert (found / "broker-1/telemetry.jsonl").exists()
        shutil.rmtree(found)
    finally:
        for daemon in daemons:
            with contextlib.suppress(psutil.NoSuchProcess):
                daemon.kill()
