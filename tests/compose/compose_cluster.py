"""Controls the cluster of docker-compose.yml under a separate compose project and separate ports.

A user's cluster of the same checkout is not touched. The fixture ``cluster`` of conftest.py removes
containers of a killed run before it starts, and stops the Docker engine if it had to start it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.checkout import ROOT

#: cluster.sh keeps its files here, too. Git ignores the folder.
RUN_DIR: Final = ROOT / "run/docker"
CLUSTER_SH: Final = ROOT / "conf/docker/cluster.sh"
BIN: Final = ROOT / "bin"
BROKERS: Final = (1, 2, 3)
CONTROLLERS: Final = ("controller", "controller-101", "controller-102")
SERVICES: Final = (*CONTROLLERS, *(f"broker-{number}" for number in BROKERS))
WAIT_S: Final = 120.0
#: Enough to build packages, base image and image without a cache on a slow machine.
BUILD_S: Final = 900.0
_COMMAND_S: Final = 120.0
_POLL_S: Final = 0.2
#: Below the kernel's range of ephemeral ports (32768 and up).
_FIRST_PORT: Final = 15_092
_LABEL: Final = "com.docker.compose"


class ComposeCluster:
    """The containers of one compose project. Services have names, brokers have numbers."""

    def __init__(self, *, secured: bool = False) -> None:
        """Choose the project's name and free ports.

        Start the Docker engine first: it may restart containers that occupy ports.

        :param secured: whether docker-compose.secured.yml is added.
        """
        RUN_DIR.mkdir(parents=True, exist_ok=True)
        # The name depends on the path, so that two checkouts on a machine run separate clusters.
        self.project = f"kraftjbod-test-{zlib.crc32(str(ROOT).encode()):08x}"
        self.project += "-secured" * secured
        self.ports = _free_ports(len(BROKERS))
        ports = {f"BROKER_{n}_PORT": str(port) for n, port in zip(BROKERS, self.ports, strict=True)}
        self._env = {**os.environ, "COMPOSE_PROJECT_NAME": self.project, **ports}
        self._env["SECURED"] = "1" if secured else ""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def user_settings(self, user: str) -> Path:
        """Return the settings of ``admin`` or ``client`` of a secured cluster."""
        return RUN_DIR / f"users-{self.project}" / f"{user}.properties"

    def do(self, *words: str, timeout_s: float = _COMMAND_S) -> str:
        """Run conf/docker/cluster.sh with ``words`` in this project and return its stdout.

        :raises AssertionError: the command fails; the message has its stderr.
        """
        return _checked(_run([str(CLUSTER_SH), *words], env=self._env, timeout=timeout_s))

    def docker(self, *words: str) -> str:
        """Run a docker command and return its stdout.

        :raises AssertionError: the command fails; the message has its stderr.
        """
        return _checked(_run(["docker", *words], env=self._env))

    def inside(self, service: str, *words: str, stdin: str = "") -> str:
        """Run a command in the container of ``service``, as the container's user; return stdout."""
        command = ["docker", "exec", "-i", self.container(service), *words]
        return _checked(_run(command, env=self._env, stdin=stdin))

    def tool(self, name: str, *words: str) -> str:
        """Run ``kraftjbod-<name>`` on the host against this cluster and return its stdout."""
        command = [str(BIN / f"kraftjbod-{name}"), "--bootstrap-server", self.bootstrap, *words]
        return _checked(_run(command))

    def container(self, service: str) -> str:
        """Return the id of the container of ``service``, running or stopped."""
        [found] = self._find("ps", "-a", f"{_LABEL}.service={service}")
        return found

    def existing_objects(self) -> dict[str, list[str]]:
        """Return the ids of this project's containers, networks and volumes that exist, by kind."""
        found = {
            "containers": self._find("ps", "-a"),
            "networks": self._find("network ls"),
            "volumes": self._find("volume ls"),
        }
        return {kind: names for kind, names in found.items() if names}

    def health(self, service: str) -> str:
        """Return the engine's result of the health check of ``service``, such as "healthy"."""
        return self.docker("inspect", "-f", "{{.State.Health.Status}}", self.container(service))

    def health_report(self, broker: int) -> dict[str, Any]:
        """Return the JSON report of kraftjbod-health, run in the broker's container."""
        words = ("kraftjbod-health", "--bootstrap-server", "127.0.0.1:9092", "--json")
        printed: dict[str, Any] = json.loads(self.inside(f"broker-{broker}", *words))
        return printed

    def dir_states(self, broker: int) -> dict[str, str]:
        """Return the state of each log directory of the broker, by path."""
        return {found["path"]: found["state"] for found in self.health_report(broker)["logDirs"]}

    def dir_ids(self) -> dict[tuple[int, str], str]:
        """Return the directory id of each log directory, by broker and path."""
        answered = json.loads(self.tool("log-dirs", "--describe", "--json"))
        return {
            (broker["broker"], log_dir["logDir"]): log_dir["directoryId"]
            for broker in answered["brokers"]
            for log_dir in broker["logDirs"]
        }

    def replicas_in(self, broker: int, path: str, topic: str) -> set[int]:
        """Return the partitions of ``topic`` whose log (not a future log) is in ``path``."""
        answered = json.loads(
            self.tool("log-dirs", "--describe", "--json", "--broker-list", str(broker))
        )
        [found] = [d for d in answered["brokers"][0]["logDirs"] if d["logDir"] == path]
        names = [p["partition"] for p in found["partitions"] if not p["isFuture"]]
        return {int(n.rpartition("-")[2]) for n in names if n.rpartition("-")[0] == topic}

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        """Return the partitions of ``topic`` from ``kraftjbod-topics --describe --json``."""
        answered = json.loads(self.tool("topics", "--describe", "--topic", topic, "--json"))
        partitions: list[dict[str, Any]] = answered["topics"][0]["partitions"]
        return partitions

    def is_in_sync(self, topic: str) -> bool:
        """Return whether each partition has a leader and all its replicas are in sync."""
        return all(
            part["leader"] >= 0 and sorted(part["isr"]) == sorted(part["replicas"])
            for part in self.partitions(topic)
        )

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Poll until ``condition`` is true. A command that fails counts as false.

        :param what: completes "waited for ..." in the error.
        :raises AssertionError: after ``WAIT_S``; the message has the last lines of each container.
        """
        deadline = time.monotonic() + WAIT_S
        trouble = "never true"
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except AssertionError as e:
                trouble = str(e)
            time.sleep(_POLL_S)
        raise AssertionError(
            f"waited {WAIT_S:.0f} s for {what}: {trouble}\n{self.container_logs()}"
        )

    def wait_in_sync(self, topic: str) -> None:
        self.wait(f"every replica of {topic} to be in sync", lambda: self.is_in_sync(topic))

    def container_logs(self) -> str:
        """Return the last 15 lines of each container's stdout and stderr."""
        reported = []
        for name in self._find("ps", "-a"):
            logs = _run(["docker", "logs", "--tail", "15", name])
            reported += [f"--- {name}", logs.stdout, logs.stderr]
        return "\n".join(reported)

    def _find(self, kind: str, *more: str) -> list[str]:
        filters = [f"{_LABEL}.project={self.project}", *(m for m in more if "=" in m)]
        flags = [m for m in more if "=" not in m]
        words = [*kind.split(), "-q", *flags]
        for one in filters:
            words += ["--filter", f"label={one}"]
        return self.docker(*words).split()


def start_engine() -> str | None:
    """Start a Docker engine unless one runs. Return None, or the reason why none can run here."""
    started = _run([str(CLUSTER_SH), "engine"], timeout=BUILD_S)
    return started.stderr.strip() if started.returncode != 0 else None


def engine_answers() -> bool:
    try:
        return _run(["docker", "version"]).returncode == 0
    except FileNotFoundError:
        return False


def _free_ports(count: int) -> list[int]:
    ports: list[int] = []
    candidate = _FIRST_PORT
    while len(ports) < count:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", candidate)) != 0:
                ports.append(candidate)
        candidate += 1
    return ports


def _run(
    command: list[str],
    *,
    env: dict[str, str] | None = None,
    stdin: str = "",
    timeout: float = _COMMAND_S,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        cwd=ROOT,
    )


def _checked(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.args} ended with {done.returncode}: {done.stderr}"
    return done.stdout.strip()
