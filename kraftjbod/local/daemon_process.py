"""WIRE. One daemon as a process: start, ask to stop, kill, read what it logged.

* A process is signalled only after it proved to be the daemon it is taken for: its command line
  names the daemon's own configuration file.
* The daemon lives in a session of its own, so that Ctrl-C in a terminal ends the tour, not it.
* What it writes to standard error, one JSON event per line, goes to its telemetry file.
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
    """Who a daemon is and where its files are."""

    name: str
    role: str
    node_id: int
    host: str
    port: int
    directory: Path
    metadata_dir: Path
    log_dirs: tuple[Path, ...]

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
    """A daemon that this process started, or found running: by the pid in ``cluster.json``, or
    else by :meth:`find`."""

    def __init__(
        self,
        files: DaemonFiles,
        *,
        command: Sequence[str],
        privileges: Privileges,
        pid: int | None = None,
    ) -> None:
        self.files = files
        self._command = tuple(command)
        self._privileges = privileges
        self._child: subprocess.Popen[bytes] | None = None
        self._pid = pid

    def __repr__(self) -> str:
        return f"<DaemonProcess {self.files.name} pid={self._pid} running={self.is_running}>"

    @property
    def address(self) -> str:
        return f"{self.files.host}:{self.files.port}"

    @property
    def pid(self) -> int | None:
        """The process id, as long as the daemon runs."""
        return self._pid if self.is_running else None

    @property
    def is_running(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return self._pid is not None and self._is_ours(self._pid)

    @property
    def exit_code(self) -> int | None:
        """The exit code of a child that ended; negative: the signal that ended it."""
        return None if self._child is None else self._child.poll()

    def start(self) -> None:
        """Start the daemon; returns at once."""
        assert not self.is_running, self
        with self.files.telemetry_path.open("ab") as telemetry:
            self._child = subprocess.Popen(  # noqa: S603 - our own words, no shell
                [
                    *network_hosts.command_prefix(self.files.host),
                    *self._privileges.command_prefix,
                    *self._command,
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
        """Unless it runs as far as is known, search for it among all processes of this machine: who
        started it may have died before its pid was written down, or was somebody at a prompt."""
        if not self.is_running:
            pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
            self._pid = next(filter(self._is_daemon, pids), None)

    def terminate(self) -> None:
        """Ask for an orderly stop."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """``kill -9``, and wait until the process is gone."""
        self._signal(signal.SIGKILL)
        if self._child is not None:
            self._child.wait()

    async def stop(self, timeout_s: float = 30.0) -> bool:
        """Ask for an orderly stop and wait; kill after ``timeout_s``. Whether it was orderly."""
        self.terminate()
        if await self.wait_exit(timeout_s):
            return True
        self.kill()
        return False

    async def wait_exit(self, timeout_s: float) -> bool:
        """Whether the daemon ended within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while self.is_running:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What the daemon logged so far, oldest first; only events called ``name`` if given."""
        return [event for event in self._all_events() if name in (None, event.get("event"))]

    def last_words(self) -> str:
        """The last lines of the telemetry file, for an error message."""
        if not self.files.telemetry_path.exists():
            return "(it said nothing)"
        lines = self.files.telemetry_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-5:]) or "(it said nothing)"

    def require_running(self) -> None:
        """:raises StartupError: with the daemon's last words, if it ended: what it printed, if
        it printed anything, for its events say the same at length."""
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
        """Pids are used again, so the command line must name this daemon's configuration."""
        return str(self.files.config_path) in command_line(pid)

    def _is_daemon(self, pid: int) -> bool:
        """Whether it is ours and no editor, say, in which somebody reads the configuration."""
        programs = {self._command[-1], f"kraftjbod-{self.files.role}"}
        return self._is_ours(pid) and not programs.isdisjoint(
            word.rpartition("/")[2] for word in command_line(pid)
        )


def command_line(pid: int) -> list[str]:
    """The words that a process was started with; none of one that ended."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except OSError:
        return []


def _events_on(line: str) -> Iterator[dict[str, Any]]:
    """Whole events on one line: what was killed may have left its last line without an end,
    and what was started after it goes on there.
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
