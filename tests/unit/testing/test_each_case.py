from __future__ import annotations

import inspect

import pytest

from tests.each_case import each_case


def test_each_case_runs_all_combinations_and_keeps_other_parameters() -> None:
    ran = []

    @each_case("seed", range(2))
    @each_case("at", [5, 6])
    def test(kind: str, seed: int, at: int) -> None:
        ran.append((kind, seed, at))

    assert list(inspect.signature(test).parameters) == ["kind"]
    test(kind="x")
    assert ran == [("x", 0, 5), ("x", 0, 6), ("x", 1, 5), ("x", 1, 6)]


async def test_each_case_failure_of_a_coroutine_names_its_value() -> None:
    @each_case("seed", range(9))
    async def test(seed: int) -> None:
        assert seed < 7

    with pytest.raises(AssertionError) as failed:
        await test()
    assert failed.value.__notes__ == ["with seed=7"]


def test_each_case_refuses_an_unknown_parameter() -> None:
    with pytest.raises(AssertionError, match="sed"):

        @each_case("sed", [1])
        def test(seed: int) -> None: ...
