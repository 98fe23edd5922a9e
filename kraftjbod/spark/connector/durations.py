"""PURE. Parses durations in options, such as ``90 seconds``, ``5 min``, ``500 ms`` and ``7d``."""

from __future__ import annotations

import re
from typing import Final

from kraftjbod.core.errors import ConfigError

#: 13 digits suffice for a hundred years in milliseconds.
_DURATION: Final = re.compile(r"(\d{1,13})\s*([a-z]*)")
_UNITS: Final = {
    1: ("ms", "millisecond", "milliseconds"),
    1000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
}
_UNIT_MS: Final = {name: unit_ms for unit_ms, names in _UNITS.items() for name in names}
#: A hundred years; longer durations are treated as mistakes.
_MOST_MS: Final = 100 * 365 * 86_400_000


def duration_ms(text: str, option: str, *, bare_unit: str = "") -> int:
    """Parse a duration to milliseconds.

    :param option: name of the option, for the error.
    :param bare_unit: unit of a number without unit; by default such a text is an error.
    :raises ConfigError: ``text`` is not a duration, or is above a hundred years.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    unit_ms = None if match is None else _UNIT_MS.get(match[2] or bare_unit)
    if match is None or unit_ms is None:
        raise ConfigError(f"{option} {text!r}: expected a duration such as `30 seconds` or `5 min`")
    millis = int(match[1]) * unit_ms
    if millis > _MOST_MS:
        raise ConfigError(f"{option} {text!r}: expected a hundred years at most")
    return millis


def duration_s(text: str, option: str) -> int:
    """Parse a duration to whole seconds, at least one.

    :raises ConfigError: ``text`` is no such duration.
    """
    millis = duration_ms(text, option)
    if millis < 1000 or millis % 1000:
        raise ConfigError(f"{option} {text!r}: expected whole seconds, and one at least")
    return millis // 1000
