"""Work on a disk is divided into steps of a limited size."""

from __future__ import annotations

import pytest

from kraftjbod.storage.segments.steps import STEP_BYTES, Steps, run_all, take_step


def work(parts: list[int], done: list[int]) -> Steps[str]:
    for part in parts:
        done.append(part)
        yield part
    return "result"


def test_take_step_pauses_after_step_bytes_and_returns_the_result_last() -> None:
    done: list[int] = []
    made = work([STEP_BYTES // 2] * 5, done)
    results, counts = [], []
    while not results:
        results = take_step(made)
        counts.append(len(done))
    assert (results, counts) == (["result"], [2, 4, 5])


def test_run_all_calls_beat_after_each_step() -> None:
    beats: list[int] = []
    done: list[int] = []
    result = run_all(work([STEP_BYTES] * 3, done), lambda: beats.append(len(done)))
    assert (result, beats) == ("result", [1, 2, 3])


def test_take_step_passes_the_error_of_the_work() -> None:
    def broken() -> Steps[None]:
        yield STEP_BYTES
        raise OSError

    made = broken()
    assert take_step(made) == []
    with pytest.raises(OSError):
        take_step(made)
