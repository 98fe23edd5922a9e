from __future__ import annotations

import pytest

from kraftjbod.storage.log import unified_log
from tests.sim.search.applications import expiring
from tests.sim.search.applications.chosen import Kind
from tests.sim.search.applications.expiring import Expiring
from tests.sim.search.applications.lives import live
from tests.sim.search.faults.schedule import Kind as FaultKind


def test_retention_during_moves_and_disk_failure_breaks_no_invariant() -> None:
    application, findings = live(Kind.EXPIRING, [FaultKind.MOVES, FaultKind.EIO])
    assert findings == []
    assert isinstance(application, Expiring)
    assert application.latest_start > 0


@pytest.mark.long
def test_retention_that_deletes_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_but_one(segments: list[object], *_: object, **__: object) -> int:
        return len(segments) - 1

    monkeypatch.setattr(unified_log, "count_expendable", all_but_one)
    # More than is written between two retention checks.
    monkeypatch.setattr(expiring, "_RETAINED_BYTES", 8_000)
    _, findings = live(Kind.EXPIRING)
    assert any(finding.startswith("retention left ") for finding in findings), findings
