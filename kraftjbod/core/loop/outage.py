"""PURE. ``Outage``: when to log something that is tried again and fails again.

* The first failure is logged, then one every ten minutes, and the end of an outage that was logged.
* One that begins within a minute of the last event is logged when that minute is over, if it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LOG_EVERY_MS: Final = 600_000
QUIET_MS: Final = 60_000


@dataclass(slots=True)
class Outage:
    """``now_ms`` is any clock that does not go back."""

    failures: int = 0
    """In a row, up to now."""
    _began_ms: int = 0
    _logged_ms: int | None = None
    """When something was last logged, of this outage or of an earlier one."""
    _is_logged: bool = False

    def failed(self, now_ms: int) -> bool:
        """Whether to log this failure."""
        if self.failures == 0:
            self._began_ms = now_ms
        self.failures += 1
        silence_ms = LOG_EVERY_MS if self._is_logged else QUIET_MS
        if self._logged_ms is not None and now_ms < self._logged_ms + silence_ms:
            return False
        self._logged_ms, self._is_logged = now_ms, True
        return True

    def ended(self, now_ms: int) -> int | None:
        """How many milliseconds it lasted, if that is to be logged; None else."""
        was_logged, self._is_logged, self.failures = self._is_logged, False, 0
        if not was_logged:
            return None
        self._logged_ms = now_ms
        return now_ms - self._began_ms
