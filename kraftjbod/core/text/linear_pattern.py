"""PURE. ``LinearPattern``: regular expressions from clients, matched in linear time by RE2.

Python's ``re`` backtracks, and some expressions take exponential time. RE2, which Kafka uses as
well, does not. It supports neither back-references nor look-around.
"""

from __future__ import annotations

from typing import Final

import re2

from kraftjbod.core.errors import ErrorCode, OperatingError

_MAX_PATTERN_CHARS: Final = 10_000
#: Limit for the compiled expression and RE2's cache of states.
_MAX_PATTERN_BYTES: Final = 1 << 20


class PatternError(OperatingError):
    """A regular expression is malformed or too large.

    ``why`` is the reason without the expression.
    """

    def __init__(self, pattern: str, why: str) -> None:
        super().__init__(
            f"{pattern!r} is no regular expression that is understood here: {why}",
            code=ErrorCode.INVALID_REGULAR_EXPRESSION,
        )
        self.why = why


class LinearPattern:
    """A regular expression from a client, compiled for matching in linear time. :meth:`fits`
    matches whole texts only.
    """

    def __init__(self, pattern: str) -> None:
        """Compile ``pattern``.

        :raises PatternError: ``pattern`` is malformed or too large.
        """
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
    """Return the text of RE2's error, which may be bytes."""
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(error)
