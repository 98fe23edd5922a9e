"""WIRE. One daemon as a process: start, stop, kill, and read its events.

* Before a process is signalled, its command line must name the daemon's configuration file.
* The daemon has its own session, so that Ctrl-C in a terminal does not end it.
* Its standard error, one JSON event per line, goes to its telemetry file.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kraftjbod.core.errors import StartupError
from kraftjbod.local import network_hosts
from kraftjbod.local.privileges import PACKAGE_ROOT, Privileges

_POLL_S = 0.02
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFiles:
    """Name, role (``broker`` or ``controller``), address and paths of one daemon."""

    name: str
    role: str
    node_id: int
    host: str
    port: int
    directory: Path
    metadata_dir: Path
    log_dirs: tuple[Path, ...]
    client_port: int | None = None
    """Port of the secure listener for clients. If None, clients use ``port``."""

    @property
    def config_path(self) -> Path:
        return self.directory / f"{self.name}.properties"

    @property
    def telemetry_path(self) -> Path:
        return self.directory / "telemetry.jsonl"

    @property
    def metrics_path(self) -> Path:
        return self.directory / "metrics.json"


class DaemonProcess:
    """A daemon on this machine, whether it runs or not: starts and stops its process, and reads its
    log.

    :param pid: its process, if it was started by another process; :meth:`find` searches for it.
    """

    def __init__(
        self,
        files: DaemonFiles,
        *,
        command: Sequence[str],
        privileges: Privileges,
        pid: int | None = None,
    ) -> None:
        self.files = files
        #: The program and its arguments; the configuration file follows as the last argument.
        self.command = tuple(command)
        self._privileges = privileges
        self._child: subprocess.Popen[bytes] | None = None
        self._pid = pid

    def __repr__(self) -> str:
        return f"<DaemonProcess {self.files.name} pid={self._pid} running={self.is_running}>"

    @property
    def address(self) -> str:
        return f"{self.files.host}:{self.files.port}"

    @property
    def client_address(self) -> str:
        """``host:port`` for clients; differs from :attr:`address` in a secure cluster."""
        return f"{self.files.host}:{self.files.client_port or self.files.port}"

    @property
    def pid(self) -> int | None:
        """The process id, or ``None`` if the daemon does not run."""
        return self._pid if self.is_running else None

    @property
    def is_running(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return self._pid is not None and self._is_ours(self._pid)

    @property
    def exit_code(self) -> int | None:
        """Exit code of a child that ended, or minus the number of the signal that ended it.

        None while it runs, and for a daemon that this process did not start.
        """
        return None if self._child is None else self._child.poll()

    def start(self) -> None:
        """Start the process, which must not run, and return without waiting until it serves."""
        assert not self.is_running, self
        with self.files.telemetry_path.open("ab") as telemetry:
            self._child = subprocess.Popen(  # noqa: S603 - our own words, no shell
                [
                    *network_hosts.command_prefix(self.files.host),
                    *self._privileges.command_prefix,
                    *self.command,
                    str(self.files.config_path),
                ],
                cwd=PACKAGE_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=telemetry,
                stderr=telemetry,
                start_new_session=True,
            )
        self._pid = self._child.pid

    def find(self) -> None:
        """Search all processes of this machine for the daemon unless its known pid runs.

        The pid is unknown if the starting process died before it wrote ``cluster.json``, or if
        the daemon was started by hand.
        """
        if not self.is_running:
            pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
            self._pid = next(filter(self._is_daemon, pids), None)

    def terminate(self) -> None:
        """Send SIGTERM, without waiting. No effect if the daemon does not run."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL. Wait for the end of the process if this process started it."""
        self._signal(signal.SIGKILL)
        if self._child is not None:
            self._child.wait()

    async def stop(self, timeout_s: float = 30.0) -> bool:
        """Send SIGTERM and wait up to ``timeout_s`` seconds, then send SIGKILL. Return False if
        SIGKILL was necessary."""
        self.terminate()
        if await self.wait_exit(timeout_s):
            return True
        self.kill()
        return False

    async def wait_exit(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds for the end of the process; return whether it has
        ended."""
        deadline = time.monotonic() + timeout_s
        while self.is_running:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return the logged events, oldest first, restricted to those called ``name`` if given."""
        return [event for event in self._all_events() if name in (None, event.get("event"))]

    def last_words(self) -> str:
        """Return the last five lines of the telemetry file, for an error message."""
        if not self.files.telemetry_path.exists():
            return "(it said nothing)"
        lines = self.files.telemetry_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-5:]) or "(it said nothing)"

    def require_running(self) -> None:
        """Check that the daemon runs.

        :raises StartupError: the daemon ended. The message has the last printed lines, or the last
            events if the daemon printed none.
        """
        if self.is_running:
            return
        words = self.last_words()
        for_people = [line for line in words.splitlines() if not line.startswith("{")]
        raise StartupError(
            f"{self.files.name} ended with exit code {self.exit_code}:\n"
            + (
                "\n".join([*for_people, f"see {self.files.telemetry_path}"])
                if for_people
                else words
            )
        )

    def _all_events(self) -> Iterator[dict[str, Any]]:
        if not self.files.telemetry_path.exists():
            return
        with self.files.telemetry_path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                yield from _events_on(line)

    def _signal(self, signum: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(signum)
        elif self._pid is not None and self._is_ours(self._pid):
            os.kill(self._pid, signum)

    def _is_ours(self, pid: int) -> bool:
        """Return whether the process has this daemon's configuration; pids are reused."""
        return str(self.files.config_path) in command_line(pid)

    def _is_daemon(self, pid: int) -> bool:
        """Return whether the process is the daemon and not, for example, an editor of its file."""
        programs = {self.command[-1], f"kraftjbod-{self.files.role}"}
        return self._is_ours(pid) and not programs.isdisjoint(
            word.rpartition("/")[2] for word in command_line(pid)
        )


def command_line(pid: int) -> list[str]:
    """Return the arguments of a process; ``[]`` if there is none, ``[""]`` for a zombie."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except OSError:
        return []


def _events_on(line: str) -> Iterator[dict[str, Any]]:
    """Yield the complete JSON events of one line.

    A killed daemon may leave its last line unterminated, and its successor continues that line.
    """
    position = line.find("{")
    while position >= 0:
        try:
            event, position = _DECODER.raw_decode(line, position)
        except ValueError:
            position += 1
        else:
            if isinstance(event, dict) and "event" in event:
                yield event
        position = line.find("{", position)
