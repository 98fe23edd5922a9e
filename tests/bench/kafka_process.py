"""Nodes of Apache Kafka as processes on this machine, for figures beside ours.

Kafka runs on the defaults of its release. ``libs`` is the directory with Kafka's jars: the ``libs``
of a distribution.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kraftjbod.core.ids import Uuid
from kraftjbod.local.ports import HOST, PortReservation, reserve_port

_FORMAT_TIMEOUT_S: Final = 120


class KafkaProcess:
    """One node: created and formatted, then started, stopped and killed."""

    def __init__(
        self,
        node_id: int,
        properties: Mapping[str, str],
        directory: Path,
        libs: Path,
        *,
        address: str = "",
        heap: str = "256m",
    ) -> None:
        directory.mkdir()
        self.node_id = node_id
        self.address = address
        self.log_dirs = (directory / "data",)
        self._config = directory / "server.properties"
        lines = {**properties, "node.id": str(node_id), "log.dirs": str(self.log_dirs[0])}
        self._config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self._java = ("java", f"-Xms{heap}", f"-Xmx{heap}", "-cp", f"{libs}/*")
        self._output = directory / "output.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while the node runs."""
        return self._process.pid if self._process and self.is_running else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def format(self, cluster_id: str) -> None:
        words = ("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._config))
        done = subprocess.run(
            [*self._java, *words],
            capture_output=True,
            text=True,
            timeout=_FORMAT_TIMEOUT_S,
            check=False,
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

    def terminate(self) -> None:
        """Ask for an orderly stop."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """``kill -9``, and wait until the process is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


@contextmanager
def kafka_nodes(
    libs: Path,
    *,
    controllers: Sequence[int],
    brokers: Sequence[int],
    config: Mapping[str, str] | None = None,
) -> Iterator[dict[int, KafkaProcess]]:
    """Started nodes by id, each with one directory; killed and removed at the end."""
    home = Path(tempfile.mkdtemp(prefix="kafka-bench-"))
    reserved: list[PortReservation] = []
    nodes: dict[int, KafkaProcess] = {}
    try:
        addresses = {}
        for node_id in (*controllers, *brokers):
            reserved.append(reserve_port())
            addresses[node_id] = f"{HOST}:{reserved[-1].port}"
        shared = {**_shared(addresses, controllers, len(brokers)), **(config or {})}
        for node_id, address in addresses.items():
            role = "controller" if node_id in controllers else "broker"
            listener = "CONTROLLER" if role == "controller" else "PLAINTEXT"
            own = {"process.roles": role, "listeners": f"{listener}://{address}"}
            directory = home / str(node_id)
            nodes[node_id] = KafkaProcess(
                node_id, shared | own, directory, libs.resolve(), address=address
            )
        _start(nodes.values())
        yield nodes
    finally:
        for node in nodes.values():
            node.kill()
        for port in reserved:
            port.release()
        shutil.rmtree(home)


@contextmanager
def kafka_alone(
    libs: Path, *, config: Mapping[str, str] | None = None, heap: str = "1g"
) -> Iterator[KafkaProcess]:
    """One started node that is broker and controller, killed and removed at the end."""
    home = Path(tempfile.mkdtemp(prefix="kafka-bench-"))
    client, quorum = reserve_port(), reserve_port()
    address = f"{HOST}:{client.port}"
    properties = {
        **_shared({1: f"{HOST}:{quorum.port}"}, (1,), 1),
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{HOST}:{quorum.port}",
        "advertised.listeners": f"PLAINTEXT://{address}",
        **(config or {}),
    }
    node = KafkaProcess(1, properties, home / "1", libs.resolve(), address=address, heap=heap)
    try:
        _start([node])
        yield node
    finally:
        node.kill()
        client.release()
        quorum.release()
        shutil.rmtree(home)


def _start(nodes: Iterable[KafkaProcess]) -> None:
    cluster_id = str(Uuid.random(os.urandom))
    for node in nodes:
        node.format(cluster_id)
    for node in nodes:
        node.start()


def _shared(
    addresses: Mapping[int, str], controllers: Sequence[int], brokers: int
) -> dict[str, str]:
    replicas = str(min(3, brokers))
    return {
        "controller.quorum.voters": ",".join(f"{n}@{addresses[n]}" for n in controllers),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "1",
    }
