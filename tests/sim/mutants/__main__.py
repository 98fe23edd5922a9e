"""``make sim-mutants SEEDS=300``: holes that were closed once, put back one at a time.

Each patch of ``mutants/`` is applied to a copy of the package, and seeds are run on it until one
fails. A hole that the simulator does not find is one that it would not have found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[3]
_PATCHES: Final = sorted((_ROOT / "tests/sim/mutants").glob("*.patch"))


def seeds_until_found(patch: Path, seeds: int) -> str:
    """What the run on one mutant came to, in a line."""
    with tempfile.TemporaryDirectory() as home:
        for folder in ("kraftjbod", "tests"):
            shutil.copytree(_ROOT / folder, Path(home, folder))
        subprocess.run(["patch", "-s", "-p1", "-i", str(patch)], cwd=home, check=True)
        quorum = ["--controllers", "3"] if patch.stem.startswith("raft_") else []
        command = [sys.executable, "-m", "tests.sim.sim", "--seed", "1", "--seeds", str(seeds)]
        done = subprocess.run(
            [*command, *quorum, "--stop", "--no-shrink", "--lines", "0"],
            cwd=home,
            env={**os.environ, "PYTHONPATH": home},
            capture_output=True,
            text=True,
            check=False,
        )
    found = re.search(r"FOUND by seed .*\n.*", done.stdout)
    if found is None and done.returncode != 0:
        return f"could not be run:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}"
    return f"not found by {seeds} seeds" if found is None else found[0].replace("\n", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=300)
    asked = parser.parse_args()
    missed = 0
    for patch in _PATCHES:
        said = seeds_until_found(patch, asked.seeds)
        missed += not said.startswith("FOUND")
        print(f"{patch.stem}: {said}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
