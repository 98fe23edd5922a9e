"""Programs that start Spark themselves, in separate processes as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.checkout import ROOT

# Two test processes share one core, and Java starts in both.
LONGEST_S: Final = 280
# For processes of about a minute: the second compiler level is half of the start's cost.
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUICK: Final = {"SPARK_SUBMIT_OPTS": QUICK_JAVA, "SPARK_LAUNCHER_OPTS": QUICK_JAVA}
_INHERITED: Final = ("SPARK_", "PYSPARK_", "JAVA_HOME", "PYTHON")


def environment(**changes: str) -> dict[str, str]:
    """Return our environment without a session's changes, with a fast start, and with
    ``changes``."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_INHERITED)}
    return {**kept, **_QUICK, **changes}


def run(
    *command: str,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    longest_s: float = LONGEST_S,
) -> subprocess.CompletedProcess[str]:
    """Run a command until it ends."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=longest_s,
        check=False,
        env=environment() if env is None else dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
    )


def run_python(
    *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program with our Python."""
    return run(sys.executable, *arguments, env=env)
