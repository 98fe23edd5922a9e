from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.sim.mutants.__main__ import run_bounded


def test_run_bounded_after_its_time_ends_descendants(tmp_path: Path) -> None:
    """Before, a pool's workers survived the time limit of ``--minutes`` and kept a core busy."""
    script = "sleep 600 & echo $!; wait"
    with pytest.raises(subprocess.TimeoutExpired) as e:
        run_bounded(["sh", "-c", script], tmp_path, timeout_s=2.0)
    assert e.value.stdout is not None
    status = Path("/proc", str(int(e.value.stdout)), "status")
    for _ in range(500):
        # No process may reap the killed one: a zombie has ended, too.
        if not status.exists() or "State:\tZ" in status.read_text():
            return
        time.sleep(0.01)
    pytest.fail("a descendant still runs")
