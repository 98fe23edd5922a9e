"""``FailureReports``: the deadlines for reporting failed directories."""

from __future__ import annotations

from kraftjbod.broker.cluster.lifecycle.failure_reports import FailureReports
from kraftjbod.broker.cluster.lifecycle.lifecycle_events import (
    ArmReportDeadline,
    DirectoryFailed,
    DisarmReportDeadline,
    ShutDown,
)
from kraftjbod.core.ids import DirectoryId

A, B = DirectoryId(b"A" * 16), DirectoryId(b"B" * 16)


def failure(
    directory_id: DirectoryId, *, leads: bool = True, unreported: list[str] | None = None
) -> DirectoryFailed:
    return DirectoryFailed(
        directory_id=directory_id,
        leads=lambda: leads,
        has_unreported_replicas=lambda: bool(unreported),
    )


def test_failure_deadline_is_armed_until_the_failure_is_reported() -> None:
    reports = FailureReports(timeout_ms=100)
    assert reports.began(failure(B), 0) == [ArmReportDeadline(B, 100)]
    assert reports.began(failure(A), 5) == [ArmReportDeadline(A, 105)]
    assert reports.reported({B, A}) == [DisarmReportDeadline(A), DisarmReportDeadline(B)]
    assert not reports.unreported and reports.deadline_passed(A, 105) == []


def test_report_deadline_stops_broker_that_leads_in_the_directory_or_is_extended() -> None:
    reports = FailureReports(timeout_ms=100)
    reports.began(failure(A, leads=False), 0)
    reports.began(failure(B), 0)
    assert reports.deadline_passed(A, 100) == [ArmReportDeadline(A, 200)]
    (stop,) = reports.deadline_passed(B, 100)
    assert isinstance(stop, ShutDown) and "timeout.ms=100" in str(stop.error)


def test_failure_of_returned_or_released_directory_has_no_deadline() -> None:
    reports, unreported = FailureReports(timeout_ms=100), ["t-0"]
    reports.began(failure(A, unreported=unreported), 0)
    reports.began(failure(B), 0)
    assert reports.reported({A}) == [] and reports.unreported == {B}
    assert reports.over(A) == [DisarmReportDeadline(A)]
    assert reports.over(B) == [DisarmReportDeadline(B)]
    assert reports.over(B) == [] and not reports.unreported
    for directory_id in (A, B):
        assert reports.deadline_passed(directory_id, 100) == []


def test_late_assignment_report_ends_the_deadline() -> None:
    reports, unreported = FailureReports(timeout_ms=100), ["t-0"]
    reports.began(failure(A, unreported=unreported), 0)
    reports.reported({A})
    unreported.clear()
    assert reports.deadline_passed(A, 100) == [] and reports.over(A) == []
