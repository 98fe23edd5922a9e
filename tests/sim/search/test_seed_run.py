"""Whole runs: fifty fixed seeds, and fifty that are new with each commit.

``make test`` runs light ones; the long tests run the new seeds completely, and ``make sim
SEEDS=10000`` runs many."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import pytest

from kraftjbod.raft.log.snapshot_files import SNAPSHOT_PIECE_BYTES
from tests.conftest import SAMPLE
from tests.sim.search.faults.play_kinds import schedule_of
from tests.sim.search.faults.schedule import Kind, Shape
from tests.sim.search.seed_run import Outcome, SeedRun, run_seed

# Virtual duration; that of `make sim` is 20 s.
_LIGHT_MS = 3_000
_WHOLE_MS = 10_000


def _fresh() -> list[int]:
    rng = random.Random(os.environ[SAMPLE])
    return [rng.randrange(1_000_000, 2_000_000_000) for _ in range(50)]


def _require_running(outcome: Outcome, how: str) -> None:
    story = "\n".join([*outcome.story[-150:], *outcome.findings])
    assert not outcome.findings, f"{story}\nrun it again: make sim SEED={outcome.seed} {how}"
    assert outcome.acked > 0


def _require_light(seed: int) -> None:
    outcome = run_seed(seed, duration_ms=_LIGHT_MS, is_light=True)
    _require_running(outcome, f"DURATION={_LIGHT_MS // 1000} LIGHT=1")


@pytest.mark.parametrize("seed", range(1, 51))
def test_light_run_of_fixed_seed_breaks_no_invariant(seed: int) -> None:
    _require_light(seed)


@pytest.mark.parametrize("index", range(50))
def test_light_run_of_new_seed_breaks_no_invariant(index: int) -> None:
    _require_light(_fresh()[index])


@pytest.mark.long
@pytest.mark.parametrize("index", range(50))
def test_long_run_of_new_seed_breaks_no_invariant(index: int) -> None:
    outcome = run_seed(_fresh()[index], duration_ms=_WHOLE_MS)
    _require_running(outcome, f"DURATION={_WHOLE_MS // 1000}")


def test_run_seed_has_same_trace_with_other_string_hashes() -> None:
    """In each process, a set of strings has another order, which must not affect the daemons.

    Seed 7 syncs several index files of a future replica at once, which were in such a set."""
    script = (
        "from tests.sim.search.seed_run import run_seed;"
        "print(run_seed(7, is_light=True).trace_hash)"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    first, second = (run.communicate()[0].strip() for run in runs)
    assert len(first) == 32
    assert first == second


@pytest.mark.parametrize(
    "shape",
    [
        Shape(partitions=2, controllers=3, large_configs=20),
        pytest.param(Shape(partitions=2, crowd=550), marks=pytest.mark.long),
    ],
)
def test_large_clusters_break_no_invariant(shape: Shape) -> None:
    kinds = [Kind.KILL, Kind.CONTROLLER_KILL, Kind.POWER_CUT]
    outcome = SeedRun(11, shape, schedule_of(kinds)).run()
    assert outcome.findings == [] and not outcome.skipped
    story = "\n".join(outcome.story)
    sizes = [
        int(size) for size in re.findall(r"metadata_snapshot_written .*size_bytes=(\d+)", story)
    ]
    assert not shape.large_configs or max(sizes) > SNAPSHOT_PIECE_BYTES


def test_run_seed_twice_has_the_same_story_and_trace() -> None:
    first, second = (run_seed(77, duration_ms=2_000) for _ in range(2))
    assert first.story == second.story
    assert first.trace_hash == second.trace_hash
