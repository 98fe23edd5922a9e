"""WIRE. How the daemons of a local cluster are started so that file permissions mean something to
them.

Root may read and write whatever its mode says, so a disk "killed" by ``chmod 000`` would not even
be noticed by a daemon of root's. Started by root, daemons therefore run

* as ``nobody``, if that user can read this code and this Python;
* else as root without the capabilities that let root ignore file modes.

What was chosen is tried, not believed: see :func:`chmod_bites`.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_DAC = "dac_override", "dac_read_search"


@dataclass(frozen=True, slots=True, kw_only=True)
class Privileges:
    """The user daemons run as, and the words before their command that make it so."""

    description: str
    command_prefix: tuple[str, ...] = ()
    owner: tuple[int, int] | None = None
    """Whom the daemons' directories must belong to; ``None``: whoever makes them."""

    def give(self, path: Path) -> None:
        """Hand ``path`` over to the daemons' user."""
        if self.owner is not None:
            os.chown(path, *self.owner)


def choose_privileges(run_dir: Path) -> Privileges:
    """The best that this machine allows for daemons whose files live under ``run_dir``."""
    if os.geteuid() != 0:
        return Privileges(description=f"as {pwd.getpwuid(os.geteuid()).pw_name}")
    user = _unprivileged_user()
    if user is not None:
        as_user = Privileges(
            description=f"as {user.pw_name}, since root started the cluster",
            command_prefix=(
                "setpriv",
                f"--reuid={user.pw_uid}",
                f"--regid={user.pw_gid}",
                "--clear-groups",
                "--bounding-set=-all",
                "--inh-caps=-all",
                # setpriv opens the program it becomes with root's capabilities still in hand;
                # env has lost them, so the interpreter is found as that user or not at all.
                "env",
            ),
            owner=(user.pw_uid, user.pw_gid),
        )
        if _can_work(as_user, run_dir):
            return as_user
    return Privileges(
        description=(
            "as root without CAP_DAC_OVERRIDE, since others cannot read this code or its Python"
        ),
        command_prefix=(
            "setpriv",
            "--bounding-set=" + ",".join(f"-{name}" for name in _DAC),
            "--inh-caps=-all",
        ),
    )


def chmod_bites(privileges: Privileges, run_dir: Path) -> bool:
    """Whether a process with ``privileges`` is kept out of a directory of mode 000."""
    with tempfile.TemporaryDirectory(dir=run_dir, prefix="probe-") as name:
        probe = Path(name)
        (probe / "inside").touch()
        privileges.give(probe / "inside")
        privileges.give(probe)
        probe.chmod(0o000)
        try:
            return not _succeeds((*privileges.command_prefix, "cat", str(probe / "inside")))
        finally:
            probe.chmod(0o700)


def _unprivileged_user() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        return None


def _can_work(privileges: Privileges, run_dir: Path) -> bool:
    """Whether the user can import this package and reach its directories."""
    program = "import os, sys, kraftjbod.core.config; os.stat(sys.argv[1])"
    return _succeeds(
        (*privileges.command_prefix, sys.executable, "-c", program, f"{run_dir}/."),
        cwd=PACKAGE_ROOT,
    )


def _succeeds(command: Sequence[str], cwd: Path | None = None) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - our own words, no shell
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
