"""Emptying a directory, and a broker, with ``bin/kraftjbod-drain``, beside ``cp`` of the files.

Two brokers with two directories each; 16 partitions, 1 GB together, lie in one directory of the
first. The tool empties that directory, then the broker. ``cp`` copies the files before each drain,
once without and once with a final ``sync``. Reported are bytes per second from the start of the
tool to its end, including the start of Python, requests, planning and verification.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from kraftjbod.local.cluster_process import ClusterProcesses
from tests.bench.figures import Report, running_cluster
from tests.bench.rdkafka import BatchProducer
from tests.checkout import BIN
from tests.integration.cluster import Cluster

_PARTITIONS: Final = 16
_VALUE: Final = bytes(range(250)) * 4
_AT_ONCE: Final = 5_000
_BYTES: Final = 1_000_000_000
_PRODUCER: Final = {"linger.ms": 5, "batch.size": 1_000_000, "queue.buffering.max.kbytes": 500_000}


def directory_and_broker(report: Report) -> None:
    with running_cluster(brokers=2, dirs=2) as local:
        cluster = Cluster(local)
        first, second = (local.dir_path(1, number) for number in (1, 2))
        broker = ("--entity-type", "brokers", "--entity-name", "1")
        cordon = f"cordoned.log.dirs={second}"
        _tool(local, "configs", "--alter", *broker, "--add-config", cordon)
        cluster.create_topic("drained", assignments={n: [1] for n in range(_PARTITIONS)})
        _tool(local, "configs", "--alter", *broker, "--delete-config", "cordoned.log.dirs")
        _fill(local)
        for what, words, source in (
            ("directory", ("--dir", f"1:{first}"), first),
            ("broker", ("--broker", "1"), second),
        ):
            os.sync()
            cp, synced = _cp(source, local.run_dir / "cp")
            size = _size(source)
            began = time.perf_counter()
            _tool(local, "drain", *words)
            speed = size / (time.perf_counter() - began) / 1e6
            report.add(
                f"drain of a {what}, {_PARTITIONS} replicas, {size / 1e9:.1f} GB",
                speed,
                "MB/s",
                beside=f"cp {cp:,.0f} MB/s, cp and sync {synced:,.0f} MB/s",
                how=f"{speed / cp:.2f} of cp, {speed / synced:.2f} of cp and sync",
            )


def _tool(local: ClusterProcesses, name: str, *words: str) -> None:
    command = [str(BIN / f"kraftjbod-{name}"), "--bootstrap-server", local.bootstrap_servers]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name} {words}: {done.stdout}{done.stderr}"


def _fill(local: ClusterProcesses) -> None:
    settings = {"bootstrap.servers": local.bootstrap_servers, **_PRODUCER}
    with BatchProducer("drained", settings) as to:
        for turn in range(_BYTES // len(_VALUE) // _AT_ONCE):
            to.produce(turn % _PARTITIONS, _VALUE, _AT_ONCE, at_once=_AT_ONCE)
        to.flush()


def _logs(source: Path) -> list[Path]:
    return [path for path in source.iterdir() if path.name.startswith("drained-")]


def _size(source: Path) -> int:
    return sum(file.stat().st_size for log in _logs(source) for file in log.iterdir())


def _cp(source: Path, target: Path) -> tuple[float, float]:
    """MB/s of ``cp -r``, and with a final sync."""
    target.mkdir()
    size = _size(source)
    began = time.perf_counter()
    subprocess.run(["cp", "-r", *map(str, _logs(source)), str(target)], check=True)
    copied = time.perf_counter() - began
    subprocess.run(["sync", *map(str, target.rglob("*"))], check=True)
    synced = time.perf_counter() - began
    shutil.rmtree(target)
    return size / copied / 1e6, size / synced / 1e6
