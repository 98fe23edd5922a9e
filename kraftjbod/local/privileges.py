"""WIRE. The user and capabilities of local daemons, chosen so that file permissions apply to them.

Root ignores file modes, so a daemon of root would not notice ``chmod 000`` on its disk. If root
starts the cluster, the daemons therefore run

* as ``nobody``, if that user can read this code and this Python;
* else as root without the capabilities that let root ignore file modes.

:func:`chmod_bites` checks the result.
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
    """The user of the daemons, and the command prefix that switches to that user."""

    description: str
    command_prefix: tuple[str, ...] = ()
    owner: tuple[int, int] | None = None
    """User and group ids that must own the daemons' directories; ``None``: the creator's."""

    def give(self, path: Path) -> None:
        """Change the owner of ``path`` to the daemons' user. No effect without :attr:`owner`."""
        if self.owner is not None:
            os.chown(path, *self.owner)


def choose_privileges(run_dir: Path) -> Privileges:
    """Return the privileges for daemons whose files are under ``run_dir``, such that file modes
    apply.

    Without root they are those of this process. Root gets those of an unprivileged user, or, if
    that user cannot read this code, root's without the capabilities that override file modes.
    """
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
                # setpriv executes the next program with root's capabilities. Only after env has
                # dropped them is the interpreter looked up as that user.
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
    """Return whether mode 000 prevents a process with ``privileges`` from reading a directory.
    Tries it with a temporary directory in ``run_dir``."""
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
    """Return whether the user can import this package and reach its directories."""
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
