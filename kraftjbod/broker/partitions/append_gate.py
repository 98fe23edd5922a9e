"""PURE. ``AppendGate``: holds back the leader's appends to one replica while a move swaps its
copies.

* Appends that arrive while the gate is closed run in the order of arrival when it opens.
* Deletions of records (KIP-107) pass here too: both copies must have the same log start offset.
* Reads do not pass here. A follower's own appends are paused in its fetch loop instead.
* A gate is closed for milliseconds, or for as long as a disk hangs. A held append has a deadline
  of its own, and ``recheck`` ends the wait when another broker becomes leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kraftjbod.core.errors import OverloadedError

MAX_APPENDS_AT_GATE: Final = 2_000


class AppendGate:
    """Holds back the leader's appends to one replica while it is closed. A new gate is open."""

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
        """Keep ``append`` until the gate opens or :meth:`recheck` is called.

        :raises OverloadedError: ``MAX_APPENDS_AT_GATE`` appends wait already.
        """
        assert self.is_closed, self
        if len(self._waiting) >= MAX_APPENDS_AT_GATE:
            raise OverloadedError(
                f"{MAX_APPENDS_AT_GATE} appends wait for a replica that changes its directory"
            )
        self._waiting.append(append)

    def recheck(self) -> None:
        """Run each held append once, oldest first, after a change of the replica's role.

        The gate stays as it is. An append that must still wait calls :meth:`hold` again.
        """
        waiting, self._waiting = self._waiting, []
        for append in waiting:
            append()

    def open(self) -> None:
        """Open the gate and run the held appends, oldest first."""
        self.is_closed = False
        self.recheck()
