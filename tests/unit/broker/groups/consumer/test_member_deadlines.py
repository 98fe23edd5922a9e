"""``MemberDeadlines``: each deadline is reported once."""

from __future__ import annotations

from kraftjbod.broker.groups.consumer.member_deadlines import NEVER, MemberDeadlines, Overdue


def test_member_deadlines_overdue_reports_sessions_and_phases_once() -> None:
    deadlines = MemberDeadlines()
    deadlines.renew_session("a", 0, 10)
    deadlines.begin_phase("a", 0, 5)
    deadlines.begin_phase("a", 3, 5)
    deadlines.renew_session("b", 0, 20)
    assert deadlines.next_ms == 5 and deadlines.overdue(4) == []
    assert deadlines.overdue(5) == [Overdue("a", is_session=False)]
    deadlines.renew_session("a", 5, 10)
    assert deadlines.overdue(15) == [Overdue("a", is_session=True)]
    deadlines.begin_phase("b", 15, 1)
    deadlines.end_phase("b")
    assert deadlines.overdue(20) == [Overdue("b", is_session=True)]
    assert deadlines.next_ms == NEVER
