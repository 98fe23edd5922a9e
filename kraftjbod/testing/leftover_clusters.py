"""WIRE. Removal of the daemons and disks of killed tests.

Daemons of a test have their own sessions and outlive a killed test. The name of their run directory
contains the pid of the test's process; disks are recognised in the same way (mounts.py). Daemons
and disks of a living process are never touched. Run directories stay, since their logs may be
needed.
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
    """Create a temporary directory for the files of a cluster, whose name has the pid of this
    process."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def undo_left_overs() -> None:
    """Kill daemons of ended tests, then unmount their disks.

    :raises DiskKitError: a disk cannot be unmounted.
    """
    deadline = time.monotonic() + _END_TIMEOUT_S
    # A process that waits for a hung disk ends later, together with the hang.
    while (left := _left_daemons()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    mounts.reap()


def _left_daemons() -> list[int]:
    """Return the pids of daemons of ended tests that this user may kill."""
    parent = re.escape(str(Path(tempfile.gettempdir()).resolve()))
    config = re.compile(rf"{parent}/{_PREFIX}(\d+)-.*\.properties")
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
            is_ours = os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
        except OSError:
            # The process ended meanwhile.
            continue
        owners = [match[1] for word in words if (match := config.fullmatch(word))]
        if is_ours and owners and not os.path.exists(f"/proc/{owners[0]}"):
            found.append(pid)
    return found
