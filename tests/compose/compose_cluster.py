"""The cluster of docker-compose.yml as tests see it: in a project and on ports of its own.

A user's cluster of the same checkout is not touched. What a killed run left behind is taken down
before the next one. An engine that had to be started is stopped again once nothing runs on it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import zlib
from collections.abc import Callable
from typing import Any, Final

from tests.checkout import ROOT

#: Where cluster.sh has its files, too; git ignores it.
RUN_DIR: Final = ROOT / "run/docker"
CLUSTER_SH: Final = ROOT / "conf/docker/cluster.sh"
BIN: Final = ROOT / "bin"
BROKERS: Final = (1, 2, 3)
CONTROLLERS: Final = ("controller", "controller-101", "controller-102")
SERVICES: Final = (*CONTROLLERS, *(f"broker-{number}" for number in BROKERS))
WAIT_S: Final = 120.0
#: Packages, base and image from nothing, on a slow machine.
BUILD_S: Final = 900.0
_COMMAND_S: Final = 120.0
_POLL_S: Final = 0.2
#: Below the ports that the system gives to the near end of connections.
_FIRST_PORT: Final = 15_092
_LABEL: Final = "com.docker.compose"


class ComposeCluster:
    """Containers by service, brokers by number."""

    def __init__(self) -> None:
        """The engine has to run: what it has still to run may come back with it, ports and all."""
        RUN_DIR.mkdir(parents=True, exist_ok=True)
        # One per checkout: two of them on a machine are two clusters.
        self.project = f"kraftjbod-test-{zlib.crc32(str(ROOT).encode()):08x}"
        self.ports = _free_ports(len(BROKERS))
        ports = {f"BROKER_{n}_PORT": str(port) for n, port in zip(BROKERS, self.ports, strict=True)}
        self._env = {**os.environ, "COMPOSE_PROJECT_NAME": self.project, **ports}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def do(self, *words: str, timeout_s: float = _COMMAND_S) -> str:
        """conf/docker/cluster.sh in this project; what it prints.

        :raises AssertionError: with what it says, if it fails.
        """
        return _checked(_run([str(CLUSTER_SH), *words], env=self._env, timeout=timeout_s))

    def docker(self, *words: str) -> str:
        """What a docker command prints.

        :raises AssertionError: with what it says, if it fails.
        """
        return _checked(_run(["docker", *words], env=self._env))

    def inside(self, service: str, *words: str, stdin: str = "") -> str:
        """What a command prints that runs in the container of ``service``, as its user."""
        command = ["docker", "exec", "-i", self.container(service), *words]
        return _checked(_run(command, env=self._env, stdin=stdin))

    def tool(self, name: str, *words: str) -> str:
        """What one of our tools prints, run on the host."""
        command = [str(BIN / f"kraftjbod-{name}"), "--bootstrap-server", self.bootstrap, *words]
        return _checked(_run(command))

    def container(self, service: str) -> str:
        """The id of its container, running or not."""
        [found] = self._find("ps", "-a", f"{_LABEL}.service={service}")
        return found

    def left_behind(self) -> dict[str, list[str]]:
        """What the engine has of this project, by kind."""
        found = {
            "containers": self._find("ps", "-a"),
            "networks": self._find("network ls"),
            "volumes": self._find("volume ls"),
        }
        return {kind: names for kind, names in found.items() if names}

    def health(self, service: str) -> str:
        """What the engine makes of the service's health check."""
        return self.docker("inspect", "-f", "{{.State.Health.Status}}", self.container(service))

    def ask_health(self, broker: int) -> dict[str, Any]:
        """What kraftjbod-health reports of a broker in its own container."""
        words = ("kraftjbod-health", "--bootstrap-server", "127.0.0.1:9092", "--json")
        printed: dict[str, Any] = json.loads(self.inside(f"broker-{broker}", *words))
        return printed

    def dir_states(self, broker: int) -> dict[str, str]:
        """State of each log directory, by path."""
        return {found["path"]: found["state"] for found in self.ask_health(broker)["logDirs"]}

    def dir_ids(self) -> dict[tuple[int, str], str]:
        """What the directories are called, by broker and path."""
        answered = json.loads(self.tool("log-dirs", "--describe", "--json"))
        return {
            (broker["broker"], log_dir["logDir"]): log_dir["directoryId"]
            for broker in answered["brokers"]
            for log_dir in broker["logDirs"]
        }

    def replicas_in(self, broker: int, path: str, topic: str) -> set[int]:
        """Partitions of ``topic`` that have a current copy in a directory."""
        answered = json.loads(
            self.tool("log-dirs", "--describe", "--json", "--broker-list", str(broker))
        )
        [found] = [d for d in answered["brokers"][0]["logDirs"] if d["logDir"] == path]
        names = [p["partition"] for p in found["partitions"] if not p["isFuture"]]
        return {int(n.rpartition("-")[2]) for n in names if n.rpartition("-")[0] == topic}

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        """As kraftjbod-topics describes them."""
        answered = json.loads(self.tool("topics", "--describe", "--topic", topic, "--json"))
        partitions: list[dict[str, Any]] = answered["topics"][0]["partitions"]
        return partitions

    def is_whole(self, topic: str) -> bool:
        """Every replica is in sync."""
        return all(
            part["leader"] >= 0 and sorted(part["isr"]) == sorted(part["replicas"])
            for part in self.partitions(topic)
        )

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Poll until ``condition`` is true; a command that fails counts as not yet.

        :raises AssertionError: saying for what it waited, with the daemons' last words.
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
        raise AssertionError(f"waited {WAIT_S:.0f} s for {what}: {trouble}\n{self.story()}")

    def wait_whole(self, topic: str) -> None:
        self.wait(f"every replica of {topic} to be in sync", lambda: self.is_whole(topic))

    def story(self) -> str:
        """The last lines of every container."""
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
    """Unless one answers; why none can run here."""
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
