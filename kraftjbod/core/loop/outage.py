"""PURE. ``Outage``: decides when to log an operation that is retried and fails repeatedly.

* The first failure is logged, then one every ten minutes, and the end of a logged outage.
* An outage that begins within a minute of the last log line is logged after that minute, if it
  still lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LOG_EVERY_MS: Final = 600_000
QUIET_MS: Final = 60_000


@dataclass(slots=True)
class Outage:
    """Series of failures of one operation that is retried. Decides which failures are logged.

    Arguments ``now_ms`` are monotonic milliseconds.
    """

    failures: int = 0
    """Number of failures in a row."""
    _began_ms: int = 0
    _logged_ms: int | None = None
    """Time of the last log line, of this outage or an earlier one."""
    _is_logged: bool = False

    def failed(self, now_ms: int) -> bool:
        """Count a failure of the operation. Return True if the caller has to log it now. False if
        the last line is less than 10 minutes old, or less than a minute if it is of an earlier
        outage.
        """
        if self.failures == 0:
            self._began_ms = now_ms
        self.failures += 1
        silence_ms = LOG_EVERY_MS if self._is_logged else QUIET_MS
        if self._logged_ms is not None and now_ms < self._logged_ms + silence_ms:
            return False
        self._logged_ms, self._is_logged = now_ms, True
        return True

    def ended(self, now_ms: int) -> int | None:
        """End the outage.

        Return its duration in milliseconds if the end must be logged, else None.
        """
        was_logged, self._is_logged, self.failures = self._is_logged, False, 0
        if not was_logged:
            return None
        self._logged_ms = now_ms
        return now_ms - self._began_ms
