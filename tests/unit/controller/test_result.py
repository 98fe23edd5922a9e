"""A decision is a value."""

from __future__ import annotations

from kraftjbod.controller.result import ControllerResult


def test_a_decision_without_records_changes_nothing() -> None:
    assert ControllerResult(response="yes") == ControllerResult(records=(), response="yes")
