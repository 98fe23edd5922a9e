"""LOOP. ``UnsettledChanges``: what a follower began on its log, and is on its way in the dir's
thread.

Nobody leads before that is over, and no file may say more than is true whichever way it ends.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple


class TruncationUnderWay(NamedTuple):
    """No less than ``left`` will be left; the log starts at ``log_start`` then, or before."""

    left: int
    log_start: int


class UnsettledChanges:
    """Of one log. All methods are for the loop's thread."""

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
        """Whether the log's next role has to wait for them."""
        return self.has_truncations or (will_lead and self._appends > 0)

    async def settled(self) -> None:
        """Wait until there is none; as long as the disk hangs, if it does."""
        await self._is_settled.wait()

    def certain_end(self, offset: int) -> int:
        """How much of what lies below ``offset`` none of them takes away."""
        if not self._truncations:
            return offset
        return min([offset, *(one.left for one in self._truncations)])

    def certain_start(self, offset: int) -> int:
        """Of a log that starts at ``offset``: before what there will be nothing after them."""
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
