"""PURE. ``WallGuard``: what time it is, for decisions that a clock which jumps must not make.

The wall clock is compared with the monotonic one. If it moved by more than ten minutes against
that, nobody knows for now which is right: the wall clock, which may have been set, or the time that
it would show without the jump, which it may go back to. For a day, or until it is back, both count:

* what may be deleted because it is old is judged by the *earlier* of the two;
* whether a timestamp can be is judged by both: it has to fit only one of them.

After that day the wall clock is believed. A machine that slept, whose monotonic clock stood still,
looks like that, too, and loses nothing by it. A clock that is wrong from the start is not noticed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_MINUTE_MS: Final = 60_000
#: A step that matters neither to retention nor to timestamps; clocks are corrected by less.
LARGEST_STEP_MS: Final = 10 * _MINUTE_MS
#: How long a jump has to last until the wall clock is believed again.
SETTLES_AFTER_MS: Final = 24 * 60 * _MINUTE_MS


class PossibleNow(NamedTuple):
    """Wall-clock ms; twice the same if there is no doubt."""

    earliest_ms: int
    latest_ms: int

    @property
    def doubt_ms(self) -> int:
        return self.latest_ms - self.earliest_ms


class WallGuard:
    """One per process. Whoever wants to know the time passes what both clocks say."""

    def __init__(self) -> None:
        self._offset_ms: int | None = None
        #: Since when the wall clock is another one, on the monotonic clock; and which.
        self._doubted_since_ms: int | None = None
        self._doubted_offset_ms = 0

    def sample(self, now_ms: int, wall_ms: int) -> PossibleNow:
        """``now_ms`` is the monotonic clock's."""
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
