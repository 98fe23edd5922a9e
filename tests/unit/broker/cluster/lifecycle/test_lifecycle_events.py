"""Events and actions are values: equal by what they say."""

from __future__ import annotations

from kraftjbod.broker.cluster.lifecycle.lifecycle_events import (
    ArmReportDeadline,
    MetadataReplayed,
    ShutdownRequested,
)
from kraftjbod.core.ids import DirectoryId


def test_equal_events_and_actions_are_the_same() -> None:
    assert MetadataReplayed(offset=3) == MetadataReplayed(offset=3)
    assert ShutdownRequested() == ShutdownRequested(at_once=False)
    d = DirectoryId(b"d" * 16)
    assert len({ArmReportDeadline(d, 7), ArmReportDeadline(d, 7), ArmReportDeadline(d, 8)}) == 2
