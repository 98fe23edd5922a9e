"""PURE. Which directories of a broker its dynamic configuration cordons (KIP-1066).

The configuration is the one source of truth: where ``cordoned.log.dirs`` was set for a broker, or
for all of them, the controller reads the cordons there, and what the broker itself says does not
count. So a restart, a late heartbeat or a dead broker cannot bring back a cordon that was lifted.
A broker's own file counts only where nothing was set; only the broker knows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kraftjbod.core.config import CORDONED_LOG_DIRS
from kraftjbod.core.config_model import list_items
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.node_config import ALL_LOG_DIRS
from kraftjbod.metadata.records import ResourceType
from kraftjbod.metadata.registrations import BrokerRegistration

Configs = Mapping[tuple[ResourceType, str], Mapping[str, str]]
"""Committed values by resource, as the metadata has them."""


def dynamic_cordons(configs: Configs, broker: BrokerRegistration) -> tuple[DirectoryId, ...] | None:
    """Sorted ids of the cordoned directories that ``broker`` registered; None if nothing is set.

    Paths that it did not register are passed over: they may be its offline directories.
    """
    text = dynamic_value(configs, broker.broker_id)
    return None if text is None else cordoned_ids(broker, list_items(text))


def dynamic_value(configs: Configs, broker_id: BrokerId) -> str | None:
    """What was set for the broker, or else for all of them."""
    for name in (str(broker_id), ""):
        text = configs.get((ResourceType.BROKER, name), {}).get(CORDONED_LOG_DIRS)
        if text is not None:
            return text
    return None


def cordoned_ids(broker: BrokerRegistration, paths: Iterable[str]) -> tuple[DirectoryId, ...]:
    """Ids of the directories of ``broker`` among ``paths``."""
    wanted = frozenset(paths)
    return tuple(
        directory_id
        for directory_id in sorted(broker.known_log_dirs)
        if ALL_LOG_DIRS in wanted or broker.log_dir_paths.get(directory_id) in wanted
    )
