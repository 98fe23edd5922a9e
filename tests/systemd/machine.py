"""Boots a Debian with systemd as PID 1 in separate namespaces, and removes all traces of it.

* ``systemd-nspawn --boot`` runs the tree under an overlay in memory. The machine has only a
  loopback network.
* The checkout is mounted at ``/src`` and the needed Python packages at ``/wheels``, both read-only,
  so that the machine installs without a network.
* nspawn puts a machine into cgroups below its own one. The cgroup of nspawn is created for it and
  removed afterwards with all cgroups below. A run removes the cgroups of killed runs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from tests.checkout import ROOT
from tests.systemd import debian_tree, wheelhouse

PACKAGES: Final = ("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "make")
COMMAND_TIMEOUT_S: Final = 120
WAIT_S: Final = 60.0
_BOOT_S: Final = 60.0
_POLL_S: Final = 0.1
_PREFIX: Final = "kraftjbod-test-"
_SAID_CHARS: Final = 4_000
_ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "/wheels",
}


class MachineError(Exception):
    """The machine did not boot; the message has the end of its console output."""


def why_not() -> str | None:
    """Return the reason why no machine can be booted here, or None."""
    if (reason := debian_tree.why_not()) is not None:
        return reason
    if shutil.which("systemd-nspawn") is None:
        return "systemd-nspawn is not installed"
    if not _cgroup_roots():
        return "no cgroup hierarchy is mounted that systemd could use"
    return None


class Machine:
    """A booted machine. Commands run in its namespaces as its root."""

    def __init__(self, nspawn: subprocess.Popen[bytes], console: Path) -> None:
        self._nspawn = nspawn
        self._console = console
        self._init = self._wait_init()

    def run(self, *command: str, text: str = "", may_fail: bool = False) -> str:
        """Run a command with ``text`` as its input and return its standard output.

        :raises AssertionError: the command failed; the message has its output.
        """
        done = subprocess.run(
            [
                *("nsenter", f"--target={self._init}", "--mount", "--uts", "--ipc", "--net"),
                *("--pid", "--cgroup", "--", *command),
            ],
            input=text,
            env=_ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert may_fail or done.returncode == 0, (
            f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def sh(self, script: str) -> str:
        """Run a bash script that stops at the first error; return its standard output."""
        return self.run("bash", "-euo", "pipefail", "-c", script)

    def show(self, unit: str, name: str) -> str:
        """Return the property ``name`` of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def entries(self, *matches: str) -> list[dict[str, Any]]:
        """Return the journal's entries that match, oldest first."""
        self.run("journalctl", "--sync")
        printed = self.run("journalctl", "--output=json", "--no-pager", *matches)
        return [json.loads(line) for line in printed.splitlines()]

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Poll until ``condition`` is true.

        :raises AssertionError: after ``WAIT_S``; the message has ``what`` and the journal's end.
        """
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                printed = self.run("journalctl", "--no-pager", "--lines=40", may_fail=True)
                raise AssertionError(f"waited {WAIT_S:.0f} s for {what}\n{printed}")
            time.sleep(_POLL_S)

    def _wait_init(self) -> int:
        """Wait until systemd has booted the machine; return its pid in this PID namespace.

        :raises MachineError: nspawn ended, or the boot took longer than ``_BOOT_S``.
        """
        deadline = time.monotonic() + _BOOT_S
        while time.monotonic() < deadline and self._nspawn.poll() is None:
            children = psutil.Process(self._nspawn.pid).children()
            self._init = children[0].pid if children else 0
            if self._init and self._is_up():
                return self._init
            time.sleep(_POLL_S)
        said = self._console.read_text(errors="replace")[-_SAID_CHARS:]
        raise MachineError(f"no system came up; systemd-nspawn said:\n{said}")

    def _is_up(self) -> bool:
        state = self.run("systemctl", "is-system-running", may_fail=True).strip()
        return state in ("running", "degraded")


@contextlib.contextmanager
def booted(scratch: Path) -> Iterator[Machine]:
    """Boot a machine and end it after the ``with`` block. Its console output is in ``scratch``.

    :raises MachineError: the machine did not boot.
    """
    tree, wheels = debian_tree.debian_tree(PACKAGES), wheelhouse.wheels()
    name = f"{_PREFIX}{os.getpid()}"
    console = scratch / "console"
    with _own_cgroups(name) as groups, console.open("wb") as out:
        nspawn = subprocess.Popen(
            [
                *("bash", "-c", _ENTER_AND_EXEC, "enter", *map(str, groups), "--"),
                *("systemd-nspawn", "--boot", f"--directory={tree}", f"--machine={name}"),
                *("--volatile=overlay", "--private-network", "--link-journal=no"),
                *("--register=no", "--keep-unit"),
                *(f"--bind-ro={ROOT}:/src", f"--bind-ro={wheels}:/wheels"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            yield Machine(nspawn, console)
        finally:
            _end(nspawn)


#: Enters the cgroups named before ``--`` and executes the command after it. If this process is
#: killed, the machine gets SIGTERM and powers off.
_ENTER_AND_EXEC: Final = """
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done
shift
exec setpriv --pdeathsig TERM "$@"
"""


def _end(nspawn: subprocess.Popen[bytes]) -> None:
    """Kill the machine: an orderly shutdown would only take longer."""
    for process in psutil.Process(nspawn.pid).children() if nspawn.poll() is None else ():
        # A PID namespace ends with its first process.
        process.send_signal(signal.SIGKILL)
    try:
        nspawn.wait(timeout=COMMAND_TIMEOUT_S)
    finally:
        nspawn.kill()
        nspawn.wait()


def _cgroup_roots() -> list[Path]:
    """Return the mount points of systemd's named cgroup v1 hierarchy and of cgroup v2."""
    found = []
    for mount in psutil.disk_partitions(all=True):
        is_systemds = mount.fstype == "cgroup" and "name=systemd" in mount.opts
        if is_systemds or mount.fstype == "cgroup2":
            found.append(Path(mount.mountpoint))
    return found


@contextlib.contextmanager
def _own_cgroups(name: str) -> Iterator[list[Path]]:
    """Create a cgroup per hierarchy and remove it afterwards. Remove those of killed runs, too."""
    roots = _cgroup_roots()
    for left in itertools.chain(*(root.glob(f"{_PREFIX}*") for root in roots)):
        if not psutil.pid_exists(int(left.name.removeprefix(_PREFIX))):
            _remove_cgroups(left)
    groups = [root / name for root in roots]
    for group in groups:
        group.mkdir()
    try:
        yield groups
    finally:
        for group in groups:
            _remove_cgroups(group)


def _remove_cgroups(group: Path) -> None:
    """Kill all processes in the cgroup, which belong to a machine, and remove it."""
    for path, _, _ in os.walk(group, topdown=False):
        for pid in Path(path, "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _remove_cgroup(path)


def _remove_cgroup(path: str) -> None:
    """Remove the cgroup as soon as its last killed process has ended."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            os.rmdir(path)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return
