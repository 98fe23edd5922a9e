"""PURE. Legal topic names, as in Kafka's ``Topic.validate``."""

from __future__ import annotations

import re
from typing import Final

from kraftjbod.core.errors import ErrorCode

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")
#: Longer names do not fit into a directory name.
MAX_NAME_CHARS: Final = 249
_FOLDERS: Final = frozenset({".", ".."})


def why_illegal(name: str) -> str | None:
    """Return why ``name`` is not a legal topic name; None if it is legal."""
    if name in _FOLDERS:
        return f"A topic cannot be called '{name}'."
    if len(name) > MAX_NAME_CHARS:
        return f"A topic name has at most {MAX_NAME_CHARS} characters, this one has {len(name)}."
    if not _LEGAL.fullmatch(name):
        return f"Topic name '{name}' must be one or more ASCII letters, digits, '.', '_' or '-'."
    return None


def code_of_absence(name: str) -> ErrorCode:
    """Return the error code for an unknown topic: INVALID_TOPIC_EXCEPTION if the name is not
    legal.
    """
    if why_illegal(name) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.INVALID_TOPIC_EXCEPTION
