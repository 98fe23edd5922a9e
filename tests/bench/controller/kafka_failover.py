"""``python -m tests.bench.controller.kafka_failover --libs DIR``: failover.py's kills, of Kafka.

Three controllers and three brokers of Apache Kafka as six processes on this machine, on the
defaults of their release, with the same topic, the same load and the same client as in
``python -m tests.bench.main --only failover``. ``DIR`` holds Kafka's jars and what they need: the
``libs`` of a distribution.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.quorum.quorum_admin import describe_quorum
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import Uuid
from kraftjbod.gameday.faults.cluster_watch import wait_in_sync
from kraftjbod.local.ports import HOST, PortReservation, reserve_port
from tests.bench.controller.failover import PARTITIONS, TOPIC, measure_kill
from tests.bench.figures import Report

_CONTROLLERS: Final = (100, 101, 102)
_BROKERS: Final = (1, 2, 3)
_HEAP: Final = ("-Xms256m", "-Xmx256m")
_START_S: Final = 180.0
_POLL_S: Final = 0.01


class KafkaProcess:
    """One node: formatted when it is made, then started and killed."""

    def __init__(self, node_id: int, properties: Mapping[str, str], at: Path, libs: Path) -> None:
        at.mkdir()
        self.node_id = node_id
        self._config = at / "server.properties"
        lines = {**properties, "node.id": str(node_id), "log.dirs": str(at / "data")}
        self._config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self._java = ("java", *_HEAP, "-cp", f"{libs}/*")
        self._output = at / "output.log"
        self._process: subprocess.Popen[bytes] | None = None

    def format(self, cluster_id: str) -> None:
        words = ("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._config))
        done = subprocess.run(
            [*self._java, *words], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._config)],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


@click.command(help=__doc__)
@click.option(
    "--libs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Directory with Kafka's jars.",
)
def main(libs: Path) -> None:
    report = Report()
    home = Path(tempfile.mkdtemp(prefix="kafka-failover-"))
    reserved: list[PortReservation] = []
    nodes = _lay_out(home, libs.resolve(), reserved)
    try:
        cluster_id = str(Uuid.random(os.urandom))
        for node, _ in nodes.values():
            node.format(cluster_id)
        for node, _ in nodes.values():
            node.start()
        bootstrap = ",".join(nodes[broker][1] for broker in _BROKERS)
        asyncio.run(_kill_each(report, {n: one for n, (one, _) in nodes.items()}, bootstrap))
    finally:
        for node, _ in nodes.values():
            node.kill()
        shutil.rmtree(home)
    report.print()


def _lay_out(
    home: Path, libs: Path, reserved: list[PortReservation]
) -> dict[int, tuple[KafkaProcess, str]]:
    """Each node with its address."""
    addresses = {}
    for node_id in (*_CONTROLLERS, *_BROKERS):
        reserved.append(reserve_port())
        addresses[node_id] = f"{HOST}:{reserved[-1].port}"
    shared = {
        "controller.quorum.voters": ",".join(f"{n}@{addresses[n]}" for n in _CONTROLLERS),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
    }
    nodes = {}
    for node_id, address in addresses.items():
        role = "controller" if node_id in _CONTROLLERS else "broker"
        listener = "CONTROLLER" if role == "controller" else "PLAINTEXT"
        own = {"process.roles": role, "listeners": f"{listener}://{address}"}
        nodes[node_id] = KafkaProcess(node_id, shared | own, home / str(node_id), libs), address
    return nodes


async def _kill_each(report: Report, nodes: Mapping[int, KafkaProcess], bootstrap: str) -> None:
    async with ClusterClient(bootstrap) as client:
        await _serving(client)
        configs = {"min.insync.replicas": "2"}
        await create_topic(
            client, TOPIC, partitions=PARTITIONS, replication_factor=3, configs=configs
        )
        await wait_in_sync(client, TOPIC, timeout_s=_START_S)
        for what, is_controller, broker in (
            ("Kafka's active controller", True, None),
            ("a broker of Kafka's", False, 1),
            ("both of Kafka's at once", True, 2),
        ):
            victims = [] if broker is None else [nodes[broker]]
            activated = None
            if is_controller:
                active = (await client.retry(partial(describe_quorum, client))).leader_id
                victims.append(nodes[active])
                left = [address for n, address in _brokers_of(client) if n != broker]
                activated = partial(_activated, ",".join(left), active)
            await measure_kill(report, bootstrap, what, victims, activated)
            await _serving(client)
            await wait_in_sync(client, TOPIC, timeout_s=_START_S)


def _brokers_of(client: ClusterClient) -> list[tuple[int, str]]:
    return [(n, f"{one.host}:{one.port}") for n, one in client.metadata.brokers.items()]


async def _activated(bootstrap: str, died: int, died_wall_s: float) -> float:
    """Seconds until the brokers that are left know of another leader of the quorum."""
    async with ClusterClient(bootstrap, request_timeout_ms=1_000) as client:
        while time.time() - died_wall_s < _START_S:
            try:
                if (await describe_quorum(client)).leader_id not in (died, -1):
                    return time.time() - died_wall_s
            except OperatingError:
                pass
            await asyncio.sleep(_POLL_S)
    raise AssertionError(f"no other controller within {_START_S:.0f} s")


async def _serving(client: ClusterClient) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        try:
            if set(_BROKERS) <= set((await client.refresh_metadata()).brokers):
                return
        except OperatingError:
            pass
        await asyncio.sleep(0.2)
    raise AssertionError(f"Kafka's brokers did not serve within {_START_S:.0f} s")


if __name__ == "__main__":
    main()
