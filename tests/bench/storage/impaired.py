"""The cost of a directory that fills up, and of one that hangs, on real file systems.

Three brokers, three replicas, 12 measured partitions with one producer each, acks=all; all
directories of broker 1 are loop-mounted ext4.

*Full*: a foreign file fills one of them under load. Reported are the time from the first ENOSPC to
the last new leader, the longest time between two acknowledged writes of one partition, and the time
from the release of the space until all replicas are in sync.

*Hung*: one of them is frozen (``fsfreeze``) for eight seconds. Reported are the longest gap and the
intervals of broker 1's heartbeats with and without the hang, measured by a relay before the
controller.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from kraftjbod.local.cluster_process import CONTROLLER_ID
from kraftjbod.testing import mounts
from kraftjbod.testing.frozen import frozen
from kraftjbod.testing.mounts import Disk
from tests.bench import disasters as d
from tests.bench.controller.heartbeats import HeartbeatRelay, heartbeat_relay
from tests.bench.figures import Report, running_cluster
from tests.integration.checker import Load, judge
from tests.integration.cluster import Cluster

_MIB: Final = 1024 * 1024
_DISK_BYTES: Final = 512 * _MIB
_RESERVE_BYTES: Final = 40 * _MIB
_HANG_S: Final = 8.0
_THAW_AT_LATEST_S: Final = 25.0
_HEARTBEAT_MS: Final = 100


def full_dir(report: Report, replicas: int) -> None:
    """A directory with ``replicas`` replicas fills up; later there is free space again."""
    with ExitStack() as stack:
        disk = stack.enter_context(mounts.mounted("ext4", size_bytes=_DISK_BYTES))
        spare = stack.enter_context(mounts.mounted("ext4", size_bytes=_DISK_BYTES))
        cluster = stack.enter_context(_cluster([disk, spare], replicas))
        load = stack.enter_context(Load(cluster.bootstrap, d.MEASURED, d.MEASURED_PARTITIONS))
        cluster.wait("load", lambda: load.flowed_since([0] * d.MEASURED_PARTITIONS, 200))
        held = set(cluster.directories(d.VICTIM)[disk.path].sizes)
        _fill(disk)
        saturated = cluster.wait_event(cluster.brokers[d.VICTIM], "log_dir_saturated")
        survivor = cluster.brokers[d.VICTIM + 1].address
        for topic in sorted({name.rpartition("-")[0] for name in held}):
            d.wait("new leaders", lambda topic=topic: d.led_elsewhere(survivor, topic, held))
        led = time.time() - d.at(saturated)
        before = load.acked_by_partition()
        cluster.wait("load to go on", lambda: load.flowed_since(before, 200))
        os.unlink(f"{disk.path}/balloon")
        freed = time.time()
        everything = d.count(survivor, lambda part: True)
        d.wait("all in sync", lambda: d.count(survivor, d.is_whole) == everything)
        healed = time.time() - freed
        load.stop()
        findings = judge(cluster.bootstrap, d.MEASURED, load).findings
        assert not findings, findings
    name = f"full dir, {len(held):,} replicas"
    how = "ext4 of 512 MiB filled by a stranger under load"
    report.add(f"{name}: first ENOSPC to the last new leader", led, "s", how=how)
    report.add(f"{name}: space given back until all in sync", healed, "s", how="the stranger left")
    _report_gaps(report, name, load)


def hung_dir(report: Report) -> None:
    """A directory of broker 1 hangs for a while, and answers again."""
    with ExitStack() as stack:
        disk = stack.enter_context(mounts.mounted("ext4", size_bytes=_DISK_BYTES))
        spare = stack.enter_context(mounts.mounted("ext4", size_bytes=_DISK_BYTES))
        cluster, relay = stack.enter_context(_relayed_cluster([disk, spare]))
        load = stack.enter_context(Load(cluster.bootstrap, d.MEASURED, d.MEASURED_PARTITIONS))
        cluster.wait("load", lambda: load.flowed_since([0] * d.MEASURED_PARTITIONS, 200))
        quiet = time.monotonic()
        time.sleep(_HANG_S)
        hung = time.monotonic()
        with frozen(disk, at_most_s=_THAW_AT_LATEST_S):
            cluster.wait_event(cluster.brokers[d.VICTIM], "log_dir_stalled")
            time.sleep(max(0.0, _HANG_S - (time.monotonic() - hung)))
        thawed = time.monotonic()
        survivor = cluster.brokers[d.VICTIM + 1].address
        everything = d.count(survivor, lambda part: True)
        d.wait("all in sync", lambda: d.count(survivor, d.is_whole) == everything)
        healed = time.monotonic() - thawed
        load.stop()
        findings = judge(cluster.bootstrap, d.MEASURED, load).findings
        assert not findings, findings
    how = f"fsfreeze of a directory of broker 1 for {_HANG_S:.0f} s under load"
    report.add("hung dir: thawed until all in sync", healed, "s", how=how)
    _report_gaps(report, "hung dir", load)
    for name, since, until in (("without a hang", quiet, hung), ("while it hangs", hung, thawed)):
        intervals = sorted(relay.intervals_ms(since, until))
        late = [abs(interval - _HEARTBEAT_MS) for interval in intervals]
        p99 = sorted(late)[int(len(late) * 0.99)]
        how = f"{len(late)} intervals of {_HEARTBEAT_MS} ms, the longest {intervals[-1]:.0f} ms"
        report.add(f"heartbeat jitter p99, {name}", p99, "ms", how=how)


def _fill(disk: Disk) -> None:
    """Fill the disk immediately, so that the time of filling is not measured."""
    space = os.statvfs(disk.path)
    fd = os.open(f"{disk.path}/balloon", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(fd, 0, space.f_bavail * space.f_frsize - _MIB)
    finally:
        os.close(fd)
    disk.fill()


def _report_gaps(report: Report, name: str, load: Load) -> None:
    gaps = sorted(load.gaps_s().values())
    how = f"worst of {len(gaps)} partitions, one producer each; median {gaps[len(gaps) // 2]:.2f} s"
    report.add(f"{name}: longest gap between acks", gaps[-1], "s", how=how)


@contextmanager
def _cluster(disks: list[Disk], replicas: int, **more: Any) -> Iterator[Cluster]:
    """``replicas`` replicas in the first of broker 1's ``disks``, measured ones among them."""
    log_dirs = {d.VICTIM: [Path(disk.path) for disk in disks]}
    config = {"log.dir.reserve.bytes": str(_RESERVE_BYTES), **more.pop("config", {})}
    with running_cluster(
        brokers=3,
        dirs=len(disks),
        log_dirs=log_dirs,
        config=config,
        controller_config={"leader.imbalance.check.interval.seconds": "1"},
        **more,
    ) as local:
        cluster = Cluster(local)
        if more_partitions := 2 * replicas - d.MEASURED_PARTITIONS:
            d.create_many(cluster, more_partitions, replication_factor=3)
        d.create_measured(cluster)
        yield cluster


@contextmanager
def _relayed_cluster(disks: list[Disk]) -> Iterator[tuple[Cluster, HeartbeatRelay]]:
    """A cluster in which broker 1 connects to the controller through a relay."""
    port = _free_port()
    with heartbeat_relay(("127.0.0.1", port)) as relay:
        voters: Mapping[str, str] = {
            "controller.quorum.voters": f"{CONTROLLER_ID}@127.0.0.1:{relay.port}",
            "broker.heartbeat.interval.ms": str(_HEARTBEAT_MS),
        }
        more = {"controller_port": port, "broker_config": {d.VICTIM: voters}}
        with _cluster(disks, d.MEASURED_PARTITIONS // 2, **more) as cluster:
            yield cluster, relay


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
