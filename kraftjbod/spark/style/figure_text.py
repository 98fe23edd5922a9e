"""WIRE. Formats figures as text: times, durations, sizes, rates and shares."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from kraftjbod.core.text.size_text import size_text

#: Text of an unknown figure.
NOTHING: Final = "—"
_NEXT_TO_NOTHING: Final = 100
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY
_STEPS: Final = ((_YEAR, "y"), (_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1, "s"))
#: Longer durations are not precise enough to be shown.
_LONGEST_S: Final = 10 * _YEAR
#: Seconds of year 9999: what calendars can say.
_LAST_S: Final = 253_370_764_800


def time_text(epoch_s: float | None) -> str:
    """Return ``2026-11-14 03:05:09`` in UTC for seconds since 1970; a dash if unknown."""
    if epoch_s is None or not 0 <= epoch_s < _LAST_S:
        return NOTHING
    return f"{datetime.fromtimestamp(epoch_s, UTC):%Y-%m-%d %H:%M:%S}"


def minute_text(epoch_s: float | None) -> str:
    """Return ``2026-11-14 03:05`` in UTC for seconds since 1970; a dash if unknown."""
    return time_text(epoch_s).rpartition(":")[0] or NOTHING


def duration_text(seconds: float | None) -> str:
    """Return ``3 d 4 h``: the largest unit and the next smaller one, unless that is 0.

    A dash if unknown; ``more than 10 y`` from ten years on.
    """
    if seconds is None:
        return NOTHING
    if seconds >= _LONGEST_S:
        return "more than 10 y"
    left = max(0, round(seconds))
    for (size, unit), (small, small_unit) in pairwise(_STEPS):
        if left >= size:
            rest = left % size // small
            return f"{left // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{left} s"


def bytes_text(size: float | None) -> str:
    """Return ``1.5 GiB``; negative sizes are allowed. A dash if unknown."""
    if size is None:
        return NOTHING
    return f"-{size_text(-size)}" if size < 0 else size_text(size)


def rate_text(bytes_per_s: float | None) -> str:
    """Return ``12.0 MiB/s``; rates below 100 B/s are shown per day. A dash if unknown."""
    if bytes_per_s is None:
        return NOTHING
    if 0 < abs(bytes_per_s) < _NEXT_TO_NOTHING:
        return f"{bytes_text(bytes_per_s * _DAY)}/d"
    return f"{bytes_text(bytes_per_s)}/s"


def share_text(part: float | None, whole: float | None) -> str:
    """Return ``41.5 %`` for ``part`` of ``whole``; a dash if unknown."""
    return f"{100 * part / whole:.1f} %" if part is not None and whole else NOTHING


def ms_text(milliseconds: float | None) -> str:
    """Return ``3.2 ms``, or ``1.50 s`` from a second on; a dash if unknown."""
    if milliseconds is None:
        return NOTHING
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.2f} s"
    return f"{milliseconds:.1f} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"


def count_text(count: float | None, one: str = "", many: str = "") -> str:
    """Return ``1,234 directories``; a dash if unknown.

    :param many: plural of ``one``; by default ``one`` with an s.
    """
    if count is None:
        return NOTHING
    word = one if count == 1 else (many or (f"{one}s" if one else ""))
    return f"{count:,.0f} {word}".rstrip()
