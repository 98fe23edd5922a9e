"""One fuzz run on real daemons from a seed: starts the cluster, floods it and judges the result.

:func:`run` returns a :class:`Verdict`. Its ``failures`` are empty if the daemons behaved.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.local.privileges import PACKAGE_ROOT
from kraftjbod.testing.local_cluster import LocalCluster
from tests.fuzz.flood import Figures, Flood, ListenerTarget
from tests.fuzz.kafka_frames import KafkaFrames
from tests.fuzz.rpc_frames import RpcFrames
from tests.fuzz.values import Values, World

HEALTHY_TOPIC: Final = "healthy"
TOPICS: Final = ("fuzz-0", "fuzz-1", "fuzz-2")
#: Limit for one daemon: Python itself, the cluster's metadata and one budget of request memory.
MAX_RSS_MIB: Final = 600
_QUOTED_CHARS: Final = 1_500
_CONTROLLER: Final = {
    # A flipped bit must not fill the machine's disk with partitions.
    "max.partitions.per.request": "100",
}
_BROKER: Final = {
    # Members may ask for session timeouts of milliseconds, so that rebalances end quickly.
    "group.min.session.timeout.ms": "1",
    "group.initial.rebalance.delay.ms": "0",
}
_HEALTHY_WAIT_S: Final = 120


@dataclass(slots=True)
class Verdict:
    figures: Figures
    seconds: float
    healthy: dict[str, Any]
    max_rss_mib: dict[str, int]
    failures: list[str] = field(default_factory=list)

    def in_words(self) -> str:
        """Return the figures and failures as readable lines."""
        f = self.figures
        lines = [
            f"{f.frames} frames in {self.seconds:.0f} s, {f.frames / self.seconds:.0f} per second",
            "became of them: " + _counts(dict(f.outcomes)),
            "asked: " + _counts(dict(f.by_api)),
            "largest daemons, MiB: " + _counts(self.max_rss_mib),
            "healthy clients: " + json.dumps(self.healthy),
        ]
        lines += [f"treated wrongly: {frame}" for frame in f.wrong]
        lines += [f"FAILED: {failure}" for failure in self.failures]
        return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    most_first = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count}" for name, count in most_first)


def run(
    seed: int,
    frames: int,
    *,
    connections: int = 8,
    brokers: int = 2,
    run_dir: Path | None = None,
    on_progress: Callable[[Figures], None] = lambda _: None,
) -> Verdict:
    """Flood a new cluster with ``frames`` requests and return the verdict."""
    with LocalCluster(
        brokers=brokers,
        dirs=2,
        disks="plain",
        config=_BROKER,
        controller_config=_CONTROLLER,
        run_dir=run_dir,
    ) as cluster:
        for name in (*TOPICS, HEALTHY_TOPIC):
            cluster.create_topic(name, partitions=1 if name == HEALTHY_TOPIC else 3)
        controller = cluster.processes.controller
        healthy = _start_healthy(cluster)
        try:
            targets = _targets(seed, cluster)
            flood = Flood(targets, frames=frames, connections=connections, rng=random.Random(seed))
            begun = time.monotonic()
            figures = asyncio.run(flood.run(on_progress))
            seconds = time.monotonic() - begun
        finally:
            seen, _ = healthy.communicate(timeout=_HEALTHY_WAIT_S)
        daemons = [controller, *(broker.process for broker in cluster.brokers)]
        verdict = Verdict(
            figures=figures,
            seconds=seconds,
            healthy=json.loads(seen),
            max_rss_mib={daemon.files.name: _max_rss_mib(daemon) for daemon in daemons},
        )
        verdict.failures = _failures(verdict, daemons)
        return verdict


def _targets(seed: int, cluster: LocalCluster) -> list[ListenerTarget]:
    world = _world(cluster)
    targets = []
    for number, broker in enumerate(cluster.brokers):
        frames = KafkaFrames(Values(random.Random(seed * 1_000 + number), world))
        targets.append(ListenerTarget(_address(broker.process), frames.next, is_kafka=True))
    rpc = RpcFrames(Values(random.Random(seed * 1_000 + 999), world))
    targets.append(ListenerTarget(_address(cluster.processes.controller), rpc.next, is_kafka=False))
    return targets


def _address(daemon: DaemonProcess) -> tuple[str, int]:
    return daemon.files.host, daemon.files.port


def _world(cluster: LocalCluster) -> World:
    from tests.integration import raw

    request = raw.kafka_codec.message("MetadataRequest")(topics=None)
    answer = raw.exchange(cluster.broker(1).address, request, 12)
    return World(
        topics={topic.name: topic.topic_id for topic in answer.topics if topic.name in TOPICS},
        brokers=tuple(broker.id for broker in cluster.brokers),
        log_dirs=tuple(str(d.path) for broker in cluster.brokers for d in broker.dirs),
        cluster_id=answer.cluster_id,
    )


def _start_healthy(cluster: LocalCluster) -> subprocess.Popen[str]:
    controller = cluster.processes.controller
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.fuzz.healthy"),
            *("--bootstrap", cluster.bootstrap_servers),
            *("--controller", controller.address),
            *("--topic", HEALTHY_TOPIC),
        ],
        cwd=PACKAGE_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _max_rss_mib(daemon: DaemonProcess) -> int:
    """Return the peak resident memory of the daemon (VmHWM), or -1 if it does not run."""
    status = Path(f"/proc/{daemon.pid}/status")
    if daemon.pid is None or not status.exists():
        return -1
    words = status.read_text().split()
    return int(words[words.index("VmHWM:") + 1]) // 1024


def _failures(verdict: Verdict, daemons: list[DaemonProcess]) -> list[str]:
    failures = []
    for daemon in daemons:
        name = daemon.files.name
        if not daemon.is_running:
            failures.append(f"{name} ended with {daemon.exit_code}: {daemon.last_words()}")
        logged = daemon.files.telemetry_path.read_text(errors="replace")
        if "Traceback" in logged:
            failures.append(f"{name} logged a bug: {_excerpt(logged, 'Traceback')}")
        if '"event": "broker_fenced"' in logged or '"event": "log_dir_offline"' in logged:
            failures.append(f"{name}: a broker was fenced, or a directory was lost")
        if verdict.max_rss_mib[name] > MAX_RSS_MIB:
            failures.append(f"{name} took {verdict.max_rss_mib[name]} MiB")
    healthy = verdict.healthy
    if healthy["lost"] or healthy["errors"] or not healthy["acknowledged"]:
        failures.append(f"the healthy clients suffered: {healthy}")
    if verdict.figures.wrong:
        failures.append(f"{len(verdict.figures.wrong)} frames or more were treated wrongly")
    return failures


def _excerpt(text: str, word: str) -> str:
    at = text.index(word)
    return text[max(0, at - 300) : at + _QUOTED_CHARS]
