"""Programs that start Spark by themselves, in a process of their own as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.checkout import ROOT

#: One core is shared by two test processes, and Java starts in both.
LONGEST_S: Final = 280
#: For processes that live for a minute: half of what a start costs is the compiler's second level.
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUICK: Final = {"SPARK_SUBMIT_OPTS": QUICK_JAVA, "SPARK_LAUNCHER_OPTS": QUICK_JAVA}
_INHERITED: Final = ("SPARK_", "PYSPARK_", "JAVA_HOME", "PYTHON")


def environment(**changes: str) -> dict[str, str]:
    """Ours without what a session in this process set, quick to start, and with ``changes``."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_INHERITED)}
    return {**kept, **_QUICK, **changes}


def run(
    *command: str,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    longest_s: float = LONGEST_S,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
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
    """Run our Python on a program."""
    return run(sys.executable, *arguments, env=env)
