"""``ControllerResult``."""

from __future__ import annotations

from kraftjbod.controller.result import ControllerResult


def test_controller_result_without_records_defaults_to_empty_tuple() -> None:
    assert ControllerResult(response="yes") == ControllerResult(records=(), response="yes")
