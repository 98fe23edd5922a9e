"""WIRE. What a killed test left: its daemons and its disks.

Daemons of a test live in sessions of their own and outlive it if it is killed. They are known by
their run directory, whose name holds the pid of the test's process; disks are known in the same
way (mounts.py). What belongs to a process that is alive is never touched. Run directories stay:
what daemons logged may be what somebody needs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Final

from kraftjbod.testing import mounts

_PREFIX: Final = "kraftjbod-cluster-"
_END_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.02


def make_run_dir() -> Path:
    """A fresh directory for a cluster of this process."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def undo_left_overs() -> None:
    """Kill daemons of tests that are gone, then undo their disks.

    :raises DiskKitError: if a disk cannot be undone.
    """
    deadline = time.monotonic() + _END_TIMEOUT_S
    # One that waits for a hung disk ends when that does, later.
    while (left := _left_daemons()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    mounts.reap()


def _left_daemons() -> list[int]:
    """Daemons in run directories of tests that are gone, as far as this user may kill them."""
    parent = re.escape(str(Path(tempfile.gettempdir()).resolve()))
    config = re.compile(rf"{parent}/{_PREFIX}(\d+)-.*\.properties")
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
            is_ours = os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
        except OSError:
            # It ended a moment ago.
            continue
        owners = [match[1] for word in words if (match := config.fullmatch(word))]
        if is_ours and owners and not os.path.exists(f"/proc/{owners[0]}"):
            found.append(pid)
    return found
