"""``seed_pool.py``: processes that run seeds, and die."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from tests.sim.seed_pool import MAX_POOL_DEATHS, in_processes


def _double(seed: int) -> int:
    return 2 * seed


def _die_once(marker: Path, seed: int) -> int:
    if seed == 3 and not marker.exists():
        marker.touch()
        os._exit(9)
    return seed


def _die(_: int) -> int:
    os._exit(9)


def test_in_processes_yields_the_result_of_each_seed() -> None:
    assert sorted(in_processes(_double, range(5), jobs=2)) == [0, 2, 4, 6, 8]


def test_in_processes_runs_the_seeds_of_a_dead_process_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = in_processes(partial(_die_once, tmp_path / "died"), range(6), jobs=2)
    assert sorted(seeds) == [0, 1, 2, 3, 4, 5]
    assert f"Attempt 1 of {MAX_POOL_DEATHS} with new processes" in capsys.readouterr().out


def test_in_processes_ends_if_processes_die_again_and_again() -> None:
    with pytest.raises(SystemExit, match=f"Processes died {MAX_POOL_DEATHS + 1} times"):
        list(in_processes(_die, range(3), jobs=1))
