"""PURE. ``MemberDeadlines``: session and rebalance deadlines of the members of a consumer group.

Each member has a session, which its heartbeats renew, and during a rebalance step a phase with its
own deadline. All times are monotonic milliseconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NEVER: Final = 1 << 62


class Overdue(NamedTuple):
    member_id: str
    is_session: bool
    """Whether its session has expired, else its phase."""


class MemberDeadlines:
    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        self._phases: dict[str, int] = {}
        #: At or before the next deadline.
        self.next_ms = NEVER

    def renew_session(self, member_id: str, now_ms: int, timeout_ms: int) -> None:
        self._sessions[member_id] = self._due(now_ms + timeout_ms)

    def begin_phase(self, member_id: str, now_ms: int, timeout_ms: int) -> None:
        """Start a deadline ``timeout_ms`` from now for the step that the member must take next: to
        sync, rejoin or revoke partitions. No effect if such a deadline runs already.
        """
        if member_id not in self._phases:
            self._phases[member_id] = self._due(now_ms + max(0, timeout_ms))

    def end_phase(self, member_id: str) -> None:
        self._phases.pop(member_id, None)

    def overdue(self, now_ms: int) -> list[Overdue]:
        """Remove the deadlines that have passed at ``now_ms``, and return them."""
        if self.next_ms > now_ms:
            return []
        over = []
        for deadlines, is_session in ((self._sessions, True), (self._phases, False)):
            for member_id in [one for one, at_ms in deadlines.items() if at_ms <= now_ms]:
                del deadlines[member_id]
                over.append(Overdue(member_id, is_session))
        left = (*self._sessions.values(), *self._phases.values())
        self.next_ms = min(left, default=NEVER)
        return over

    def _due(self, at_ms: int) -> int:
        self.next_ms = min(self.next_ms, at_ms)
        return at_ms
