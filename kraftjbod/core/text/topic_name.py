"""PURE. What topics may be called: Kafka's rule (``Topic.validate``)."""

from __future__ import annotations

import re
from typing import Final

from kraftjbod.core.errors import ErrorCode

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")
#: More makes no name of a folder.
MAX_NAME_CHARS: Final = 249
_FOLDERS: Final = frozenset({".", ".."})


def why_illegal(name: str) -> str | None:
    """What keeps a topic from being called so; None if it may be."""
    if name in _FOLDERS:
        return f"A topic cannot be called '{name}'."
    if len(name) > MAX_NAME_CHARS:
        return f"A topic name has at most {MAX_NAME_CHARS} characters, this one has {len(name)}."
    if not _LEGAL.fullmatch(name):
        return f"Topic name '{name}' must be one or more ASCII letters, digits, '.', '_' or '-'."
    return None


def code_of_absence(name: str) -> ErrorCode:
    """For who asks for a topic that there is not: one that could not be is another matter."""
    if why_illegal(name) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.INVALID_TOPIC_EXCEPTION
