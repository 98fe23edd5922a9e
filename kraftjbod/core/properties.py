"""PURE. Parsing and formatting of Java-style ``.properties`` text.

Used for daemon configuration and for ``meta.properties``.
"""

from __future__ import annotations

from collections.abc import Mapping

import javaproperties

from kraftjbod.core.errors import ConfigError


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Return keys and values of ``text`` in file order. The last value of a repeated key wins.

    :param source: path or other name of the text, for the error message.
    :raises ConfigError: naming ``source``, if an escape in the text is malformed.
    """
    try:
        return dict(javaproperties.loads(text))
    except javaproperties.InvalidUEscapeError:
        # The error quotes the text after the escape, which may be that of a password.
        raise ConfigError(
            f"{source}: \\u is not followed by four hexadecimal digits: write \\\\ for a backslash"
        ) from None


def format_properties(values: Mapping[str, str], comment: str) -> str:
    """Return the text of ``values``, sorted by key under the line ``comment``, in the format of
    Java's ``Properties.store`` without its time line.
    """
    text: str = javaproperties.dumps(
        dict(values), comments=comment, timestamp=False, sort_keys=True
    )
    return text
