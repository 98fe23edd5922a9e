"""Creates a Debian root file system in a directory with debootstrap, and keeps it for the next run.

The directory is in ``.cache/``, which ``make clean`` removes. Machines run it under an overlay, so
that it never changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.checkout import ROOT

SUITE: Final = "bookworm"
CACHE: Final = ROOT / ".cache" / "debian"
_TIMEOUT_S: Final = 600
_SAID_CHARS: Final = 2_000


class TreeError(Exception):
    """debootstrap failed; the message has the end of its output."""


def why_not() -> str | None:
    """Return the reason why no tree can be created here, or None."""
    if os.geteuid() != 0:
        return "debootstrap needs root"
    if shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        return "debootstrap is not installed"
    return None


def debian_tree(packages: Sequence[str]) -> Path:
    """Return the path of a minimal Debian with ``packages``.

    The first call takes a minute and needs the network.

    :raises TreeError: debootstrap failed.
    """
    packages = sorted(packages)
    key = hashlib.sha256(" ".join([SUITE, *packages]).encode()).hexdigest()[:12]
    tree = CACHE / f"{SUITE}-{key}"
    with _alone():
        if not tree.exists():
            for left in CACHE.glob("*.part"):
                shutil.rmtree(left)
            part = tree.with_suffix(".part")
            _debootstrap(part, packages)
            part.rename(tree)
    return tree


def _debootstrap(target: Path, packages: Sequence[str]) -> None:
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}"]
    done = subprocess.run(
        [*command, SUITE, str(target)],
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise TreeError(done.stdout[-_SAID_CHARS:])
    for package in (target / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold a lock, so that one process at a time creates a tree."""
    CACHE.mkdir(parents=True, exist_ok=True)
    turn = os.open(CACHE, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
    finally:
        os.close(turn)
