"""``ControllerResult``."""

from __future__ import annotations

from kraftjbod.controller.result import ControllerResult


def test_controller_result_is_atomic_and_complete_by_default() -> None:
    result = ControllerResult(response="yes")
    assert (result.records, result.is_atomic, result.is_part) == ((), True, False)
