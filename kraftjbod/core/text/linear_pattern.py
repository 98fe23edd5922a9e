"""PURE. Regular expressions that strangers send, matched in time that grows with the text alone.

Python's own engine tries one way after the other, and some expressions have more ways than a broker
has time for. These are RE2's, as Kafka's are: there are no back-references and no look-around.
"""

from __future__ import annotations

from typing import Final

import re2

from kraftjbod.core.errors import ErrorCode, OperatingError

_MAX_PATTERN_CHARS: Final = 10_000
#: Of what an expression is compiled to, and of what is remembered of its way through texts.
_MAX_PATTERN_BYTES: Final = 1 << 20


class PatternError(OperatingError):
    """INVALID_REGULAR_EXPRESSION; ``why`` without the expression."""

    def __init__(self, pattern: str, why: str) -> None:
        super().__init__(
            f"{pattern!r} is no regular expression that is understood here: {why}",
            code=ErrorCode.INVALID_REGULAR_EXPRESSION,
        )
        self.why = why


class LinearPattern:
    """:meth:`fits` for whole texts."""

    def __init__(self, pattern: str) -> None:
        """:raises PatternError: for what is none, or too much."""
        if len(pattern) > _MAX_PATTERN_CHARS:
            raise PatternError(pattern[:40] + "...", f"longer than {_MAX_PATTERN_CHARS} characters")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = _MAX_PATTERN_BYTES
        try:
            self._compiled = re2.compile(pattern, options)
        except (re2.error, UnicodeEncodeError) as e:
            raise PatternError(pattern, _reason(e)) from e

    def fits(self, text: str) -> bool:
        return self._compiled.fullmatch(text) is not None


def _reason(error: Exception) -> str:
    """RE2 says it in bytes."""
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(error)
