"""Lifecycle events and actions are compared by value."""

from __future__ import annotations

from kraftjbod.broker.cluster.lifecycle.lifecycle_events import (
    ArmReportDeadline,
    MetadataReplayed,
    ShutdownRequested,
)
from kraftjbod.core.ids import DirectoryId


def test_lifecycle_events_and_actions_with_equal_fields_are_equal() -> None:
    assert MetadataReplayed(offset=3) == MetadataReplayed(offset=3)
    assert ShutdownRequested() == ShutdownRequested(at_once=False)
    d = DirectoryId(b"d" * 16)
    assert len({ArmReportDeadline(d, 7), ArmReportDeadline(d, 7), ArmReportDeadline(d, 8)}) == 2
