"""``make sim-mutants SEEDS=300``: reintroduces closed defects one at a time.

Each patch of ``mutants/`` is applied to a copy of the package, and seeds run on it until one fails.
A defect that the simulator does not find now would not have been found by it before. The seed that
found it also runs without the patch: a seed that fails there as well proves nothing.

A patch may begin with a line ``options: --controllers 3`` with options for its seeds."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[3]
_PATCHES: Final = {
    path.stem: path for path in sorted((_ROOT / "tests/sim/mutants").glob("*.patch"))
}
_OPTIONS: Final = re.compile(r"options: (.*)\n")
_FOUND: Final = re.compile(r"FOUND by seed (\d+).*\n *(.*)")


def until_found(patch: Path, asked: argparse.Namespace) -> str:
    """Return the result of the runs on one mutant, in one line."""
    named = _OPTIONS.match(patch.read_text())
    options = named[1].split() if named else []
    options += ["--light"] if asked.light else []
    if asked.duration is not None and "--duration" not in options:
        options += ["--duration", f"{asked.duration:g}"]
    began_s, first = time.monotonic(), asked.seed
    with tempfile.TemporaryDirectory() as home:
        for folder in ("kraftjbod", "tests"):
            shutil.copytree(_ROOT / folder, Path(home, folder))
        subprocess.run(["patch", "-s", "-p1", "-i", str(patch)], cwd=home, check=True)
        try:
            done = _run(Path(home), first, asked.seeds, options, asked)
        except subprocess.TimeoutExpired as e:
            return f"not found within {asked.minutes:g} minutes: {_last_line(e.stdout)}"
    found = _FOUND.search(done.stdout)
    if found is None and done.returncode != 0:
        return f"could not be run:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}"
    if found is None:
        return f"not found by {asked.seeds} seeds"
    seed, took_s = int(found[1]), time.monotonic() - began_s
    what = f"by seed {seed}, {took_s:.0f} s, {' '.join(options)}: {found[2]}"
    without = _run(_ROOT, seed, 1, options, asked)
    return f"FOUND {what}" if without.returncode == 0 else f"fails without the mutant too {what}"


def _run(
    home: Path, seed: int, seeds: int, options: list[str], asked: argparse.Namespace
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.sim.sim", "--seed", str(seed), "--seeds", str(seeds)]
    command += ["--stop", "--no-shrink", "--lines", "0", "--jobs", str(asked.jobs), *options]
    return run_bounded(command, home, asked.minutes * 60)


def run_bounded(
    command: list[str], home: Path, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in ``home``, and end it with all its descendants after ``timeout_s``.

    :raises subprocess.TimeoutExpired: with the output so far.
    """
    environ = {**os.environ, "PYTHONPATH": str(home)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=home, env=environ, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # Killing the process alone leaves the workers of its pool running.
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _last_line(said: bytes | str | None) -> str:
    text = said.decode() if isinstance(said, bytes) else said or ""
    return (text.strip().splitlines() or ["no progress"])[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--light", action="store_true", help="small clusters, a light load")
    parser.add_argument("--duration", type=float, help="virtual seconds of faults")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=60.0, help="for one mutant")
    parser.add_argument("mutants", nargs="*", metavar="MUTANT", help="all, if none is named")
    asked = parser.parse_args()
    missed = 0
    for name in asked.mutants or _PATCHES:
        said = until_found(_PATCHES[name], asked)
        missed += not said.startswith("FOUND")
        print(f"{name}: {said}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
