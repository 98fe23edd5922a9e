"""PURE. The broker's checks of a change of ``cordoned.log.dirs`` before the controller gets it.

Only the broker knows its ``log.dirs`` and can resolve a relative path (KIP-1066). The forwarded
value is spelled like ``log.dirs``: absolute, without ``.`` and trailing slashes.
"""

from __future__ import annotations

from collections.abc import Collection

from kraftjbod.core.config import STAR_STANDS_ALONE, BrokerConfig
from kraftjbod.core.config_model import list_items
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.node_config import ALL_LOG_DIRS
from kraftjbod.protocol.rpc_config_messages import ConfigChange


def checked_cordons(
    change: ConfigChange, config: BrokerConfig, known_dirs: Collection[str], *, is_own: bool
) -> ConfigChange:
    """Return ``change`` with absolute paths, for the controller.

    :param known_dirs: the directories that may be cordoned.
    :param is_own: whether the change is for this broker alone. If so, the value in its file applies
        until a dynamic one is set.
    :raises OperatingError: INVALID_REQUEST, with Kafka's message.
    """
    if change.value is None:
        return change
    written = list_items(change.value)
    paths = [path for item in written for path in config.absolute_dirs(item)]
    if ALL_LOG_DIRS in paths and len(paths) > 1:
        raise _invalid(STAR_STANDS_ALONE)
    for item, path in zip(written, paths, strict=True):
        if path not in known_dirs and path != ALL_LOG_DIRS:
            raise _invalid(
                f"Invalid entry in cordoned.log.dirs: {item}. "
                "All cordoned log dirs must be entries of log.dirs or log.dir."
            )
    base = ",".join(config.cordoned_log_dirs) if is_own else None
    return change.model_copy(update={"value": ",".join(dict.fromkeys(paths)), "base": base})


def _invalid(message: str) -> OperatingError:
    return OperatingError(message, code=ErrorCode.INVALID_REQUEST)
