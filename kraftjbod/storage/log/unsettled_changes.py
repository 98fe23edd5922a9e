"""LOOP. ``UnsettledChanges``: truncations and follower appends of one log that are still pending.

The replica does not become leader before they have ended in the directory's thread. Checkpoints
must be correct whether they succeed or fail.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple


class TruncationUnderWay(NamedTuple):
    """A pending truncation of a log. All records at offsets from the log start to below ``left``
    remain.

    ``log_start`` is an upper bound of the log start after the truncation.
    """

    left: int
    log_start: int


class UnsettledChanges:
    """Truncations and follower appends of one log that have not ended in the directory's thread
    yet. All methods run on the event loop.

    Used to delay the change to leader, and to keep offsets that a pending truncation may remove out
    of checkpoints.
    """

    def __init__(self) -> None:
        self._truncations: list[TruncationUnderWay] = []
        self._appends = 0
        self._is_settled = asyncio.Event()
        self._is_settled.set()

    def __repr__(self) -> str:
        return f"<UnsettledChanges truncations={len(self._truncations)} appends={self._appends}>"

    @property
    def has_truncations(self) -> bool:
        return bool(self._truncations)

    def has_role_wait(self, *, will_lead: bool) -> bool:
        """Return whether the replica must wait before it takes its next role.

        A follower waits for truncations, a leader also for appends.
        """
        return self.has_truncations or (will_lead and self._appends > 0)

    async def settled(self) -> None:
        """Wait until no truncation or follower append is pending. The wait lasts as long as the
        disk hangs.
        """
        await self._is_settled.wait()

    def certain_end(self, offset: int) -> int:
        """Return ``offset``, lowered if necessary so that pending truncations keep everything below
        it.
        """
        if not self._truncations:
            return offset
        return min([offset, *(one.left for one in self._truncations)])

    def certain_start(self, offset: int) -> int:
        """Return ``offset``, lowered if necessary to the lowest ``log_start`` of the pending
        truncations.
        """
        return min([offset, *(one.log_start for one in self._truncations)])

    def begin_truncation(self, left: int, log_start: int) -> TruncationUnderWay:
        truncation = TruncationUnderWay(left, log_start)
        self._truncations.append(truncation)
        self._is_settled.clear()
        return truncation

    def end_truncation(self, truncation: TruncationUnderWay) -> None:
        self._truncations.remove(truncation)
        self._note_if_settled()

    def begin_append(self) -> None:
        self._appends += 1
        self._is_settled.clear()

    def end_append(self) -> None:
        self._appends -= 1
        self._note_if_settled()

    def _note_if_settled(self) -> None:
        if not (self._truncations or self._appends):
            self._is_settled.set()
