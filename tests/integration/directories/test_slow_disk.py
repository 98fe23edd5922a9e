"""A slow disk without failures is logged, and demoted if that is configured.

The slow disk is a FUSE file system of the test that delays each write and sync."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftjbod.testing import fault_fs, mounts
from kraftjbod.testing.fault_fs import FaultFs
from tests.checkout import BIN
from tests.integration.checker import Load, judge
from tests.integration.cluster import Cluster, read_metrics
from tests.integration.conftest import MakeCluster

pytestmark = [
    pytest.mark.process,
    pytest.mark.disk,
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.skipif(fault_fs.why_not() is not None, reason=str(fault_fs.why_not())),
]

BROKERS = (1, 2, 3)
PARTITIONS = 6
TOPIC = "slow"
# Delay of each write and sync; a check of the disk makes two of them.
DELAY_S = 0.25
# So high that a busy machine does not count as a slow disk.
SLOW_MIN_MS = 200


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultFs]:
    backing = tmp_path / "backing"
    backing.mkdir()
    backing.chmod(0o777)
    with (
        mounts.empty_mount_point() as path,
        FaultFs.mount(Path(path), backing=backing, home=tmp_path) as disk,
    ):
        yield disk


def start(make_cluster: MakeCluster, disk: FaultFs, tmp_path: Path, action: str) -> Cluster:
    """Start a cluster whose first broker has a slow disk and two others, with replicas on all."""
    paths = [Path(disk.path, "logs"), tmp_path / "second", tmp_path / "third"]
    for path in paths:
        path.mkdir()
    cluster = make_cluster(
        brokers=3,
        dirs=2,
        log_dirs={1: paths},
        config={
            "log.dir.slow.action": action,
            "log.dir.slow.min.ms": str(SLOW_MIN_MS),
            "broker.session.timeout.ms": "6000",
            "broker.heartbeat.interval.ms": "500",
        },
    )
    leaders_first = {n: [1 + (n + i) % 3 for i in range(3)] for n in range(PARTITIONS)}
    cluster.create_topic(TOPIC, assignments=leaders_first)
    return cluster


def on_slow_disk(cluster: Cluster, disk: FaultFs) -> set[int]:
    (held,) = [
        held
        for path, held in cluster.replicas_by_dir(1, TOPIC).items()
        if path.startswith(str(disk.path))
    ]
    return set(held)


def flows(cluster: Cluster, load: Load, more: int = 20) -> None:
    """Wait until every partition has ``more`` records acknowledged."""
    before = load.acked_by_partition()
    cluster.wait(
        "progress in every partition",
        lambda: load.flowed_since(before, more),
        explain=load.explain,
    )


def described(cluster: Cluster, disk: FaultFs) -> dict[str, object]:
    command = [BIN / "kraftjbod-log-dirs", "--bootstrap-server", cluster.bootstrap, "--describe"]
    shown = subprocess.run(
        [*command, "--json", "--broker-list", "1"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    (found,) = [
        log_dir
        for log_dir in json.loads(shown.stdout)["brokers"][0]["logDirs"]
        if log_dir["logDir"].startswith(str(disk.path))
    ]
    assert isinstance(found, dict)
    return found


@pytest.mark.long
def test_slow_disk_is_demoted_and_promoted_again(
    make_cluster: MakeCluster, disk: FaultFs, tmp_path: Path
) -> None:
    cluster = start(make_cluster, disk, tmp_path, "demote")
    broker = cluster.brokers[1]
    slow = on_slow_disk(cluster, disk)
    assert 0 < len(slow) < PARTITIONS
    leaders = {n: p.leader for n, p in cluster.partitions(TOPIC).items()}
    with contextlib.ExitStack() as stack:
        # Open files would keep the disk from being unmounted.
        stack.callback(cluster.local.kill)
        load = stack.enter_context(Load(cluster.bootstrap, TOPIC, PARTITIONS))
        flows(cluster, load)
        disk.fail("slow", delay_s=DELAY_S)
        cluster.wait_event(broker, "log_dir_slow")
        cluster.wait_event(broker, "log_dir_stalled")

        def has_left() -> bool:
            partitions = cluster.partitions(TOPIC)
            return all(1 not in partitions[n].isr and partitions[n].leader != 1 for n in slow)

        cluster.wait("the slow disk's replicas to leave", has_left)
        now = cluster.partitions(TOPIC)
        untouched = set(range(PARTITIONS)) - slow
        assert {n: now[n].leader for n in untouched} == {n: leaders[n] for n in untouched}
        assert all(1 in now[n].isr for n in untouched)
        flows(cluster, load)
        answered = described(cluster, disk)
        assert (answered["state"], answered["isSlow"], answered["error"]) == ("stalled", True, None)
        disk.heal()
        cluster.wait_event(broker, "log_dir_not_slow_any_more")
        cluster.wait_event(broker, "log_dir_answers_again")
        cluster.wait_whole(TOPIC)
        flows(cluster, load)
        load.stop()
        assert judge(cluster.bootstrap, TOPIC, load).findings == []
        assert not broker.events("log_dir_offline")


@pytest.mark.long
def test_slow_disk_with_action_warn_is_reported_and_keeps_its_leaders(
    make_cluster: MakeCluster, disk: FaultFs, tmp_path: Path
) -> None:
    cluster = start(make_cluster, disk, tmp_path, "warn")
    broker = cluster.brokers[1]
    leaders = {n: p.leader for n, p in cluster.partitions(TOPIC).items()}
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.local.kill)
        disk.fail("slow", delay_s=DELAY_S)
        cluster.wait_event(broker, "log_dir_slow")
        answered = described(cluster, disk)
        assert (answered["state"], answered["isSlow"]) == ("online", True)
        name = f'LogDirectorySlow,logDirectory="{disk.path}/logs"'
        cluster.wait("the figure", lambda: read_metrics(broker)[name] == 1)
        assert not broker.events("log_dir_stalled")
        assert {n: p.leader for n, p in cluster.partitions(TOPIC).items()} == leaders
        disk.heal()
        cluster.wait_event(broker, "log_dir_not_slow_any_more")
