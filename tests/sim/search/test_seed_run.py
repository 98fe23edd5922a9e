"""Whole runs: some seeds that are the same each time, and some that are new with each commit.

``make test`` takes a few of either, the long rest fifty of each; ``make sim SEEDS=10000`` many.
"""

from __future__ import annotations

import os
import random

import pytest

from kraftjbod.testing.simulation.search.seed_run import Outcome, run_seed
from tests.conftest import SAMPLE

#: Virtual; half of what `make sim` takes.
_DURATION_MS = 10_000


def _fresh() -> list[int]:
    rng = random.Random(os.environ[SAMPLE])
    return [rng.randrange(1_000_000, 2_000_000_000) for _ in range(50)]


def _require_whole(outcome: Outcome) -> None:
    told = "\n".join([*outcome.story[-150:], *outcome.findings])
    replay = f"make sim SEED={outcome.seed} DURATION={_DURATION_MS // 1000}"
    assert not outcome.findings, f"{told}\nrun it again: {replay}"
    assert outcome.acked > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(1, 51))
def test_nothing_that_was_promised_is_broken(seed: int) -> None:
    _require_whole(run_seed(seed, duration_ms=_DURATION_MS))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("index", range(50))
def test_nor_by_faults_that_nobody_has_seen(index: int) -> None:
    _require_whole(run_seed(_fresh()[index], duration_ms=_DURATION_MS))


def test_the_same_seed_is_the_same_run() -> None:
    first, second = (run_seed(77, duration_ms=2_000) for _ in range(2))
    assert first.story == second.story
    assert first.trace_hash == second.trace_hash
