"""PURE. ``WallGuard``: bounds on the current time that hold even if the wall clock jumps.

The wall clock is compared with the monotonic clock. If the difference changes by more than ten
minutes, either the wall clock was set, or it will jump back to the time without the jump. Until
one day has passed, or the clock has jumped back, both times are considered possible:

* Retention deletes by the *earlier* of the two times.
* A record timestamp is accepted if it fits one of the two times.

After that day the wall clock is trusted. A suspended machine, whose monotonic clock paused, looks
the same, and the delay does no harm there. A clock that is wrong from the start is not detected.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_MINUTE_MS: Final = 60_000
#: Smaller steps are ordinary clock corrections, and matter neither to retention nor to timestamps.
LARGEST_STEP_MS: Final = 10 * _MINUTE_MS
#: Duration after which a jumped wall clock is trusted.
SETTLES_AFTER_MS: Final = 24 * 60 * _MINUTE_MS


class PossibleNow(NamedTuple):
    """Range in which the current time lies, in wall-clock ms. Both ends are equal unless the clock
    jumped by more than 10 minutes within the last day.
    """

    earliest_ms: int
    latest_ms: int

    @property
    def doubt_ms(self) -> int:
        return self.latest_ms - self.earliest_ms


class WallGuard:
    """Detects jumps of the wall clock by comparison with the monotonic clock. The caller passes the
    readings of both.
    """

    def __init__(self) -> None:
        self._offset_ms: int | None = None
        #: Monotonic time of the jump, and the offset of the wall clock since then.
        self._doubted_since_ms: int | None = None
        self._doubted_offset_ms = 0

    def sample(self, now_ms: int, wall_ms: int) -> PossibleNow:
        """Compare the two clocks, and return the range of possible wall-clock times.

        :param now_ms: monotonic time now.
        :param wall_ms: wall clock time now.
        """
        offset_ms = wall_ms - now_ms
        if self._offset_ms is None or abs(offset_ms - self._offset_ms) <= LARGEST_STEP_MS:
            self._offset_ms, self._doubted_since_ms = offset_ms, None
            return PossibleNow(wall_ms, wall_ms)
        is_same = abs(offset_ms - self._doubted_offset_ms) <= LARGEST_STEP_MS
        if self._doubted_since_ms is None or not is_same:
            self._doubted_since_ms = now_ms
        elif now_ms - self._doubted_since_ms >= SETTLES_AFTER_MS:
            self._offset_ms, self._doubted_since_ms = offset_ms, None
            return PossibleNow(wall_ms, wall_ms)
        self._doubted_offset_ms = offset_ms
        steady_ms = now_ms + self._offset_ms
        return PossibleNow(min(wall_ms, steady_ms), max(wall_ms, steady_ms))
