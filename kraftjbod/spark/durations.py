"""Durations as people write them in options: ``90 seconds``, ``1 minute``, ``7d``."""

from __future__ import annotations

import re
from typing import Final

from kraftjbod.core.errors import ConfigError

_DURATION: Final = re.compile(r"(\d+)\s*([a-z]+)")
_UNIT_S: Final = {
    "s": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86_400,
    "day": 86_400,
}
#: A hundred years; more is a slip.
_MOST_S: Final = 100 * 365 * 86_400


def duration_s(text: str, option: str) -> int:
    """Whole seconds, at least one.

    :raises ConfigError: naming ``option``, if it is no duration.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    unit = None if match is None else _UNIT_S.get(match[2]) or _UNIT_S.get(match[2].rstrip("s"))
    if match is None or unit is None:
        raise ConfigError(
            f"{option} {text!r}: expected a duration such as `30 seconds` or `7 days`"
        )
    seconds = int(match[1]) * unit
    if not 1 <= seconds <= _MOST_S:
        raise ConfigError(f"{option} {text!r}: expected a second at least, a hundred years at most")
    return seconds
