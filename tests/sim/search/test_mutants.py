"""Six holes that were closed once, put back one at a time: the simulator finds each.

A patch is applied to a copy of the package, and seeds are run on it until one fails; 300 at most.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_PATCHES = sorted((_ROOT / "tests/sim/mutants").glob("*.patch"))
_SEEDS = 300


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("patch", _PATCHES, ids=lambda patch: patch.stem)
def test_a_hole_that_is_put_back_is_found(patch: Path, tmp_path: Path) -> None:
    for folder in ("kraftjbod", "tests"):
        shutil.copytree(_ROOT / folder, tmp_path / folder)
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "tests.sim.sim", "--seed", "1", "--seeds", str(_SEEDS)]
    done = subprocess.run(
        [*command, "--stop", "--no-shrink", "--lines", "0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-2_000:])
    assert done.returncode == 1 and "FOUND by seed" in done.stdout, done.stdout + done.stderr
