"""PURE. ``Outage``: when to tell of something that is tried again and fails again.

* The first failure is told, then one every ten minutes, and the end of what was told.
* One that begins within a minute of the last words is told when that minute is over, if it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TOLD_EVERY_MS: Final = 600_000
QUIET_MS: Final = 60_000


@dataclass(slots=True)
class Outage:
    """``now_ms`` is any clock that does not go back."""

    failures: int = 0
    """In a row, up to now."""
    _began_ms: int = 0
    _told_ms: int | None = None
    """When there was last something to tell, of this outage or of an earlier one."""
    _is_told: bool = False

    def failed(self, now_ms: int) -> bool:
        """Whether to tell of this failure."""
        if self.failures == 0:
            self._began_ms = now_ms
        self.failures += 1
        silence_ms = TOLD_EVERY_MS if self._is_told else QUIET_MS
        if self._told_ms is not None and now_ms < self._told_ms + silence_ms:
            return False
        self._told_ms, self._is_told = now_ms, True
        return True

    def ended(self, now_ms: int) -> int | None:
        """How many milliseconds it lasted, if that is to be told; None else."""
        was_told, self._is_told, self.failures = self._is_told, False, 0
        if not was_told:
            return None
        self._told_ms = now_ms
        return now_ms - self._began_ms
