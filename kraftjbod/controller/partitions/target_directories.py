"""PURE. Find the broker directory that a text names (``any``, a path, or ``dirid:`` and an id).

A path has a meaning on one broker only. The controller knows the paths from the registrations and
interprets them only in this file.
"""

from __future__ import annotations

import posixpath

from kraftjbod.core.errors import ErrorCode, InvalidUuidText, OperatingError
from kraftjbod.core.ids import ANY_DIRECTORY, DIRECTORY_ID_PREFIX, DirectoryId
from kraftjbod.metadata.registrations import BrokerRegistration


def resolve_directory(text: str, broker: BrokerRegistration) -> DirectoryId | None:
    """Return the id of the directory of ``broker`` that ``text`` names, online or not; None for
    ``any``.

    :raises OperatingError: INVALID_REQUEST: the text is malformed. LOG_DIR_NOT_FOUND: the broker
        has no such directory; the message lists those it has.
    """
    if text == ANY_DIRECTORY:
        return None
    named = _parse_id(text)
    if named is not None:
        if named in broker.known_log_dirs:
            return named
    elif text.startswith("/"):
        path = posixpath.normpath(text)
        for directory_id in (*broker.log_dirs, *broker.offline_log_dirs):
            if broker.log_dir_paths.get(directory_id) == path:
                return directory_id
    else:
        raise OperatingError(
            f"'{text}' names no directory: write {ANY_DIRECTORY}, the absolute path of one of the "
            f"broker's log directories, or {DIRECTORY_ID_PREFIX} and its id.",
            code=ErrorCode.INVALID_REQUEST,
        )
    raise OperatingError(
        f"Broker {broker.broker_id} has no log directory {text}; {_directories_of(broker)}.",
        code=ErrorCode.LOG_DIR_NOT_FOUND,
    )


def placement_refusal(broker: BrokerRegistration) -> str | None:
    """Return the reason why no directory of ``broker`` takes new replicas; None if one does
    (KIP-1066)."""
    if broker.takes_new_replicas:
        return None
    known, online = broker.known_log_dirs, set(broker.log_dirs)
    cordoned = online & set(broker.cordoned_log_dirs)
    if cordoned == known:
        return "all its log directories are cordoned"
    reasons = {
        "cordoned": len(cordoned),
        "impaired": len(online - cordoned),
        "offline": len(known - online),
    }
    why = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
    return f"none of its log directories takes new replicas ({why})"


def _parse_id(text: str) -> DirectoryId | None:
    try:
        return DirectoryId.from_reference(text)
    except InvalidUuidText as e:
        raise OperatingError(f"'{text}': {e}.", code=ErrorCode.INVALID_REQUEST) from e


def _directories_of(broker: BrokerRegistration) -> str:
    known = [
        f"{broker.log_dir_paths.get(directory_id, 'unknown path')} ({directory_id.reference})"
        for directory_id in sorted(broker.known_log_dirs)
    ]
    return f"it has {', '.join(known)}" if known else "it registered none"
