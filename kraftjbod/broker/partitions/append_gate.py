"""PURE. ``AppendGate``: where the leader's appends to one replica wait while its copies change
places.

* What arrives while the gate is closed goes through in the order of arrival when it opens.
* Deletions of records (KIP-107) pass here too: the copies must agree on where they start.
* Reads do not pass here, and a follower's own appends are stopped at their fetch loop.
* A gate is closed for milliseconds, or as long as a disk hangs; who waits longer has a deadline of
  its own, and once another broker leads nobody waits here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kraftjbod.core.errors import OverloadedError

MAX_APPENDS_AT_GATE: Final = 2_000


class AppendGate:
    """Open when made."""

    __slots__ = ("_waiting", "is_closed")

    def __init__(self) -> None:
        self.is_closed = False
        self._waiting: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<AppendGate {'closed' if self.is_closed else 'open'} {len(self._waiting)}>"

    def close(self) -> None:
        assert not self.is_closed, self
        self.is_closed = True

    def hold(self, append: Callable[[], None]) -> None:
        """Keep ``append`` until the gate opens.

        :raises OverloadedError: if too many wait already.
        """
        assert self.is_closed, self
        if len(self._waiting) >= MAX_APPENDS_AT_GATE:
            raise OverloadedError(
                f"{MAX_APPENDS_AT_GATE} appends wait for a replica that changes its directory"
            )
        self._waiting.append(append)

    def recheck(self) -> None:
        """The replica's role changed: who may still wait comes back, in the same order."""
        waiting, self._waiting = self._waiting, []
        for append in waiting:
            append()

    def open(self) -> None:
        """Let everybody through, oldest first."""
        self.is_closed = False
        self.recheck()
